"""The live page on screens of any width, without a cluster: rows as the stream brings them, in a real browser."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e import browser
from tests.e2e.browser import Page

pytestmark = [
    pytest.mark.root,
    pytest.mark.skipif(browser.find() is None, reason="needs the Debian package chromium (make system-checks)"),
]

PAGE = Path(__file__).resolve().parents[2] / "controlplane" / "page" / "live.html"
LONG = "DeepSeek-R1-Distill-Qwen-32B-AWQ-INT4-g128-revision-main"


def key(number: int) -> str:
    return base64.b64encode(number.to_bytes(16, "big")).decode()


def increment() -> dict[str, object]:
    """Six nodes, a dozen prefixes with long names, a cast on its way."""
    names = [f"inference-node-{number}.example" for number in range(6)]
    delivered = {"local_bytes": 1 << 33, "cast_bytes": 1 << 34, "holder_bytes": 1 << 32}
    riders = [{"node": name, "arrived_percent": 40} for name in names[1:]]
    return {
        "snapshot": True,
        "status": {"uptime_ms": 20_000, "chunks": 1_000_000, "chunk_bytes": 1 << 44, "management_bytes": 1 << 40},
        "nodes": [{"node": {"name": name, "state": "attached", "port": 3}, "sent_bytes_per_s": 1e9} for name in names],
        "prefixes": [
            {"first": key(number), "last": key(number), "label": LONG, "delivered": delivered, "holders": names}
            for number in range(12)
        ],
        "transfers": [{"key": key(9), "holder": names[0], "cast": True, "size_bytes": 1 << 30, "riders": riders}],
        "sources": [{"bucket": bucket, "delivered": delivered if bucket == 5 else {}} for bucket in range(10)],
        "events": [{"number": 1, "kind": "gate", "text": f"{names[0]} fetches from other nodes: {LONG}", "times": 3}],
    }


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with browser.page(tmp_path_factory.mktemp("browser"), "/proc/self/ns/net") as one:
        yield one


@pytest.mark.parametrize("width", [360, 420, 560, 800, 1440])
def test_nothing_is_beyond_the_edge(page: Page, width: int, tmp_path: Path) -> None:
    page.open(PAGE.as_uri(), width=width)
    page.until("typeof take === 'function'", "the script")
    page.evaluate(f"take({json.dumps(increment())}); show(); document.body.className = ''")
    page.screenshot(tmp_path / f"{width}.png")
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    cut = "[...document.querySelectorAll('header *, dt')].filter((one) => one.scrollWidth > one.clientWidth + 1).length"
    assert page.evaluate(cut) == 0


def test_a_rate_between_two_bursts_is_not_0(page: Page) -> None:
    """Of ten seconds one bucket of two had something: the four after it do not say "nothing is fetched"."""
    page.open(PAGE.as_uri())
    page.until("typeof take === 'function'", "the script")
    page.evaluate(f"take({json.dumps(increment())}); show()")
    assert page.evaluate("document.getElementById('rate').textContent") == "2.8 GiB/s"
