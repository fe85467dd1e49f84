"""The live page in a real browser, over a running testbed: what it shows, what it asks for, how it comes back."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bmv2_testbed import client
from bmv2_testbed.bench.group import ReaderGroup, put_prefix
from bmv2_testbed.client import Testbed
from bmv2_testbed.content import Prefix
from bmv2_testbed.processes import python_module
from bmv2_testbed.spec import TestbedSpec
from tests.e2e import browser
from tests.e2e.browser import Page

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(browser.find() is None, reason="needs the Debian package chromium (make system-checks)"),
]

HOSTS = 4
PREFIX = Prefix(seed=77, size_bytes=2 * 2**20, chunk_bytes=256 * 1024)
NAME = PREFIX.chunk_keys()[0].hex()[:12]
CONTRAST_MIN = 4.5
"""WCAG 2.2, 1.4.3, level AA."""
LUMINANCE = """
const channel = (value) => (value /= 255) <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
const luminance = (name) => {
  const hex = getComputedStyle(document.documentElement).getPropertyValue(name).trim().slice(1);
  const [r, g, b] = [0, 2, 4].map((at) => channel(parseInt(hex.slice(at, at + 2), 16)));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (one, other) => {
  const [high, low] = [luminance(one), luminance(other)].sort((a, b) => b - a);
  return (high + 0.05) / (low + 0.05);
};
"""


@pytest.fixture(scope="module")
def testbed() -> Iterator[Testbed]:
    spec = TestbedSpec(hosts=HOSTS, pool_bytes=32 * 2**20, slots=2048)
    with client.running(spec) as running:
        put_prefix(running, PREFIX)
        running.serve_from_switch(PREFIX.chunk_keys()[-1], PREFIX.chunks)
        read(running, 1, 2, 3)
        yield running


def read(testbed: Testbed, *hosts: int) -> None:
    """These hosts fetch the prefix at the same time."""
    with ReaderGroup(testbed, PREFIX, hosts) as readers:
        readers.start()
        for report in readers.reports():
            assert report is not None
            assert report.verified, report.reason


def settings(testbed: Testbed) -> dict[str, Any]:
    value: dict[str, Any] = yaml.safe_load((testbed.directory / "controller.yaml").read_text())
    return value


def address(testbed: Testbed) -> str:
    return f"http://{settings(testbed)['metrics']}/"


def network(testbed: Testbed) -> str:
    """The controller's."""
    return f"/proc/{testbed.pid}/ns/net"


@pytest.fixture
def page(testbed: Testbed, tmp_path: Path) -> Iterator[Page]:
    with browser.page(tmp_path, network(testbed)) as one:
        one.open(address(testbed))
        one.until("document.querySelector('#state').dataset.state === 'live'", "live")
        yield one
        assert one.problems == []


def text(page: Page, selector: str) -> str:
    value: str = page.evaluate(f"document.querySelector('{selector}').textContent")
    return value


def test_it_shows_what_happens(testbed: Testbed, page: Page) -> None:
    page.until("document.querySelectorAll('#network .box').length === 4", "four nodes")
    assert page.evaluate("[...document.querySelectorAll('#network .strong')].map((one) => one.textContent)") == [
        "p4switch: ready",
        *(f"h{host}" for host in range(HOSTS)),
    ]
    assert "h0 attached, h1 attached" in page.evaluate("document.querySelector('#network').getAttribute('aria-label')")
    page.until(f"document.querySelector('#prefixes').textContent.includes('{NAME}')", "the prefix")
    (row,) = page.evaluate(
        "[...document.querySelectorAll('#prefixes tr')].map((row) => [...row.cells].map((one) => one.textContent))"
    )
    assert row[2:4] == [str(PREFIX.chunks), "2.0 MiB"]
    assert row[7] == str(PREFIX.chunks)
    assert int(row[8]) >= 3 * PREFIX.chunks - 3
    served = page.evaluate("document.querySelectorAll('#slots .cell').length")
    assert served == 256
    page.until("[...document.querySelectorAll('#slots .cell')].some((one) => one.style.fill)", "slots in use")
    assert "served by the switch" in text(page, "#events")
    assert text(page, "#kept") not in ("–", "0 B")
    page.until("document.querySelector('#sources .s-switch').getAttribute('d')", "bytes from the switch")
    assert page.evaluate("document.querySelector('#sources-legend').textContent").count("%") == 6


def test_it_asks_nobody_but_its_controller(testbed: Testbed, page: Page) -> None:
    page.until("rows('nodes').length === 4", "the nodes")
    home = address(testbed)
    assert page.requested == [home, f"{home}live"]
    refused = page.evaluate("fetch('http://127.0.0.1:1/').then(() => 'asked', (error) => error.constructor.name)")
    assert refused == "TypeError"
    assert any("Content Security Policy" in problem for problem in page.problems)
    page.problems.clear()


def test_what_stays_the_same_is_not_drawn_anew(testbed: Testbed, page: Page) -> None:
    page.until(f"document.querySelector('#prefixes').textContent.includes('{NAME}')", "the prefix")
    page.evaluate("for (const one of document.querySelectorAll('main *')) one.mark = true")
    reads = int(page.evaluate("number(rows('prefixes')[0].reads)"))
    read(testbed, 1, 3)
    page.until(f"number(rows('prefixes')[0].reads) >= {reads + 2}", "two reads more")
    for selector in ("#network .box", "#prefixes tr", "#slots .cell", "#sources path"):
        assert page.evaluate(f"[...document.querySelectorAll('{selector}')].every((one) => one.mark)"), selector


@pytest.mark.parametrize("colours", ["light", "dark"])
def test_it_can_be_read(testbed: Testbed, page: Page, colours: str) -> None:
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": colours}])
    page.until(f"document.documentElement.dataset.theme === '{colours}'", colours)
    for words, behind in (("--text", "--card"), ("--quiet", "--card"), ("--quiet", "--back"), ("--focus", "--back")):
        found = page.evaluate(f"(() => {{ {LUMINANCE} return contrast('{words}', '{behind}'); }})()")
        assert found >= CONTRAST_MIN, f"{words} on {behind}"
    for width in (1280, 1440, 700):
        page.open(address(testbed), width=width, height=800)
        page.until("document.querySelector('#state').dataset.state === 'live'", "live")
        page.until("rows('prefixes').length > 0", "prefixes")
        if width >= 1280:
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), f"it is wider than {width}"
    unnamed = page.evaluate(
        "[...document.querySelectorAll('main > section, svg[role=img], button, .scroll')].filter((one) =>"
        " !(one.getAttribute('aria-label') || one.getAttribute('aria-labelledby') || one.textContent.trim())).length"
    )
    assert unnamed == 0


def test_it_says_when_it_is_not_connected_and_comes_back(testbed: Testbed, page: Page) -> None:
    page.until("rows('nodes').length === 4", "the nodes")
    page.evaluate("window.mark = 'the same page'")
    testbed.kill("controller")
    page.until("document.querySelector('#state').textContent === 'not connected'", "that nobody is there")
    assert "Not connected to the controller at" in text(page, "#notice")
    assert page.evaluate("document.body.classList.contains('stale') && !document.querySelector('#notice').hidden")
    testbed.restart("controller")
    testbed.await_cluster()
    page.until("document.querySelector('#state').dataset.state === 'live' && rows('nodes').length === 4", "all again")
    assert page.evaluate("window.mark + document.querySelector('#notice').hidden") == "the same pagetrue"


def test_it_says_when_its_controller_is_on_standby(testbed: Testbed, tmp_path: Path) -> None:
    config = settings(testbed)
    with socket.create_server(("127.0.0.1", 0)) as free:
        config["metrics"] = f"127.0.0.1:{free.getsockname()[1]}"
    config["listen"] = "127.0.0.1:0"
    config["switch"]["election_id"] = 5
    (testbed.directory / "standby.yaml").write_text(yaml.safe_dump(config))
    argv = python_module("controlplane", "--config", f"{testbed.status()['directory']}/standby.yaml")
    testbed.run("standby", "switch", argv)
    testbed.await_ready("standby")
    try:
        with browser.page(tmp_path, network(testbed)) as page:
            page.open(f"http://{config['metrics']}/")
            page.until("document.querySelector('#state').textContent === 'on standby'", "on standby")
            assert "another one leads" in text(page, "#notice")
            testbed.kill("controller")
            page.until("document.querySelector('#state').dataset.state === 'live'", "that it leads now")
            assert page.evaluate("document.querySelector('#notice').hidden")
            assert page.problems == []
    finally:
        testbed.kill("standby")
        testbed.forget("standby")
        testbed.restart("controller")
        testbed.await_cluster()
