"""A newcomer follows tutorials and how-to pages: every command block, verbatim, on machines of their own."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable

import pytest

from tests.field.conftest import Office
from tests.field.follow import follow
from tests.field.lab import Lab
from tests.field.pages import ROOT, Block, blocks

pytestmark = pytest.mark.field


def page(name: str) -> list[Block]:
    return blocks(ROOT / name)


def with_addresses(lab: Lab) -> Lab:
    """Hosts as pages on daily work find them: data interfaces up, in a subnet, with MTU 9000."""
    for number in (1, 2, 3):
        lab["sw"].say(f"ip link set eth{number} mtu 9000 up")
        address = f"172.31.0.{number}/16"
        lab[f"n{number}"].say(f"ip addr add {address} dev eth1 && ip link set eth1 mtu 9000 up")
    return lab


def test_from_the_start_to_daily_work(office: Office, capsys: pytest.CaptureFixture[str]) -> None:
    """In an environment with nothing but pip. The pages after the first go on with the cluster that it leaves: one that
    runs, with a prefix in the pool."""
    path = office.environment("newcomer")
    with office.lab("start", path) as lab:
        began_s = time.monotonic()
        start = page("docs/tutorials/start.md")
        made = 1 + next(number for number, block in enumerate(start) if "kvcast pki" in block.text)
        follow(lab, start[:made])
        for number in (1, 2, 3):  # the page copies them by SSH
            shutil.copytree(lab["sw"].home / "tls", lab[f"n{number}"].home / "tls")
        said = follow(lab, start[made:])
        minutes = (time.monotonic() - began_s) / 60
        fetched = [text for text in said.values() if "bytes right: True" in text]
        assert any("'CAST'" in text for text in fetched), fetched
        # The other pages have operators at n1.
        shutil.copytree(lab["sw"].home / ".config", lab["n1"].home / ".config")
        follow(lab, page("docs/how-to/troubleshooting.md"))
        follow(lab, page("docs/how-to/engine.md"))
        follow(lab, page("docs/how-to/run.md"))
        follow(lab, page("docs/how-to/watch.md"))
    with capsys.disabled():
        print(f"\nminutes from an empty environment through the first page: {minutes:.1f}")


def test_certificates(lab: Callable[[], Lab]) -> None:
    """Between the page's first block and the others, files go where its table says."""
    machines = with_addresses(lab())
    first, *steps = page("docs/how-to/certificates.md")
    follow(machines, [first])
    homes = [machines["sw"].home, machines["n1"].home, machines["sw"].home / ".config" / "kvcast"]
    for home in homes:
        shutil.copytree(machines["sw"].home / "tls", home, dirs_exist_ok=True)
    follow(machines, steps)
    status, said = machines["sw"].run("kvcast doctor cluster --json")
    found = {one["check"]: (one["level"], one["found"]) for one in json.loads(said)["findings"]}
    assert status == 1, "n2 has not attached"
    assert found["security"] == ("ok", "control channel and P4Runtime by TLS")
    assert found["certificates"][0] == "ok"
    assert found["put"][0] == found["fill"][0] == "ok"
    status, said = machines["n1"].run("kvcast ls --controller 10.0.0.1:4800")
    assert status == 2, said
    assert "it speaks TLS" in said


def test_targets_and_p4switch_alone(lab: Callable[[], Lab]) -> None:
    machines = with_addresses(lab())
    follow(machines, page("docs/how-to/targets.md"))
    machines["sw"].say("kvcast-controller --config controller.yaml --check")
    machines["sw"].running("kvcast switch").stop()
    follow(machines, page("p4switch/docs/tutorial.md"))
