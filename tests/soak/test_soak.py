"""The soak's own arithmetic, and a short soak (`make test-long`)."""

from __future__ import annotations

import contextlib
import json
import signal
import socket
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from bmv2_testbed.content import content_of
from bmv2_testbed.network.namespaces import can_unshare
from bmv2_testbed.network.wired import have_mininet
from kvclient.client import AgentUnavailableError
from kvproto.limits import NAMESPACE_BYTES_MAX
from kvproto.printable import printable
from kvproto.records import check_namespace
from tests.soak import __main__ as command
from tests.soak import looks
from tests.soak.attacker import KINDS, frames, harmless
from tests.soak.labels import LABELS, label_of, obeyed
from tests.soak.load import CHUNK_BYTES, DEADLINE_S, EPOCH_S, HUNG_S, LATE_S, WINDOW_EPOCHS, Clock, Diary
from tests.soak.loader import FORKS, Loader, Told
from tests.soak.plan import (
    DISTURBANCES,
    HONEST,
    MEMBER,
    PORTS,
    RESTART_EVERY,
    RESTARTS,
    STRANGER,
    TURN_S,
    TURNS_SHARE,
    troubles,
    turns,
)
from tests.soak.report import (
    FDS_SPARE,
    SPEED_MIN,
    Note,
    Report,
    Size,
    TurnTaken,
    compare_sizes,
    cpu_by_kind,
    made,
    take_leftovers,
    take_turns,
)
from tests.soak.silent import Silence
from tests.unit.hostagent.service_manager import ServiceManager
from tests.unit.hostagent.test_pool_keeping import configure

CLOCK = Clock(100.0, 7, HONEST)


@pytest.mark.long
@pytest.mark.root
def test_everything_goes_wrong_for_a_minute(tmp_path: Path) -> None:
    if not (can_unshare() and have_mininet()):
        pytest.skip("needs root, namespaces and the Debian package mininet (make system)")
    path = tmp_path / "report.json"
    assert command.main(["--minutes", "1", "--seed", "3", "--json", str(path)]) == 0
    report = json.loads(path.read_text())
    assert report["complete"] > 50
    assert report["troubles"]


def test_the_same_seed_makes_the_same_troubles_and_every_kind_comes() -> None:
    some = troubles(5, 600.0)
    assert some == troubles(5, 600.0)
    assert some != troubles(6, 600.0)
    restarts = [one for one in some if one.kind == "agent restarted"]
    assert restarts == some[1::RESTART_EVERY]
    assert {one.detail for one in restarts} == RESTARTS.keys()
    others = [one for one in some if one.kind != "agent restarted"]
    kinds = len(DISTURBANCES) + len(PORTS) + 2 * len(KINDS)
    assert len({one.name for one in others[:kinds]}) == kinds
    assert {one.host for one in some if one.kind == "member sends"} == {MEMBER}
    assert {one.host for one in some if one.kind == "stranger sends"} == {STRANGER}
    assert sum(one.lasts_s + one.calm_s for one in some[:-1]) < 600.0


@pytest.mark.parametrize("kind", KINDS)
def test_attackers_send_what_a_link_carries(kind: str) -> None:
    made_frames = frames(kind, CLOCK, STRANGER + 1, 1, lambda: 120.0)
    for _ in range(20):
        assert 60 <= len(next(made_frames)) <= 9014


def test_harmless_frames_are_as_large_and_mean_nothing() -> None:
    made_frames, sizes = (frames("noise", CLOCK, MEMBER + 1, 1, lambda: 120.0) for _ in range(2))
    for frame, as_large in zip(harmless(made_frames, MEMBER + 1), sizes, strict=False):
        assert len(frame) == len(as_large)
        assert frame[12:14] == b"\x88\xb5"
        if len(frame) > 200:
            break


def test_what_is_fetched_is_what_was_put_lately() -> None:
    now_s = CLOCK.began_s + 10 * EPOCH_S + 0.1
    window = CLOCK.window(now_s)
    assert len(window) == WINDOW_EPOCHS * HONEST
    assert CLOCK.prefix(10, 0) in window
    assert CLOCK.prefix(11, 0) not in window
    assert len({one.seed for one in window}) == len(window)


def fetched(began_s: float, took_s: float = 0.1, host: int = 0, **changes: Any) -> dict[str, Any]:
    line = {"what": "fetched", "host": host, "who": "engine", "at_s": began_s + took_s, "began_s": began_s}
    return line | {"took_s": took_s, "outcome": "OK", "chunks": 4, "wrong": 0} | changes


def begun(at_s: float, host: int = 0) -> dict[str, Any]:
    return {"what": "begun", "host": host, "who": "engine", "at_s": at_s}


def lost(began_s: float, took_s: float, host: int = 0) -> dict[str, Any]:
    return fetched(began_s, took_s, host, what="lost")


def leased(way: str, *, lost: bool, wrong: int = 0) -> dict[str, Any]:
    line = {"what": "leased", "host": 0, "who": "loader", "at_s": 5.0, "way": way}
    return line | {"chunks": 3, "wrong": wrong, "lost": lost}


def probed(began_s: float, daemon: str, *, answered: bool) -> dict[str, Any]:
    line = {"what": "probed", "host": -1, "who": "probe", "at_s": began_s + 1.0, "began_s": began_s, "took_s": 1.0}
    return line | {"daemon": daemon, "page": "livez", "answered": answered}


FROZEN = Note("agent frozen", "agent frozen", 0, 20.0, 24.0, 25.0)


def test_a_wrong_byte_fails_a_soak() -> None:
    report = made([begun(1), fetched(1), begun(2), fetched(2, wrong=1)], [], 10.0)
    assert (report.fetches, report.complete, report.wrong, report.bad) == (2, 2, 1, True)


def test_who_hangs_is_found_unless_its_agent_was_away() -> None:
    long_s = DEADLINE_S + LATE_S + 1
    assert not made([begun(1), fetched(1)], [], 10.0).bad
    assert made([begun(30), lost(30, long_s)], [FROZEN], 100.0).hung == 1
    assert made([begun(15), lost(15, long_s)], [FROZEN], 100.0).hung == 0
    assert made([begun(15, 1), lost(15, long_s, 1)], [FROZEN], 100.0).hung == 1
    assert made([begun(15)], [], 15 + DEADLINE_S + HUNG_S + 1).hung == 1
    assert made([begun(15)], [], 16.0).hung == 0
    late = made([begun(30), fetched(30, long_s)], [FROZEN], 100.0)
    assert (late.late, late.bad) == (1, False)


def test_engine_and_loader_of_a_host_are_waited_for_each_by_itself() -> None:
    long_s = DEADLINE_S + HUNG_S + 1
    loader = {"who": "loader"}
    assert made([begun(1), begun(2) | loader, fetched(1)], [], 2 + long_s).hung == 1
    assert made([begun(1), begun(2) | loader, fetched(1), fetched(2) | loader], [], 2 + long_s).hung == 0


def test_other_bytes_under_a_lease_fail_a_soak_unless_the_lease_was_said_to_be_lost() -> None:
    kept = [leased("local", lost=False), leased("agent", lost=False), leased("local", lost=False)]
    report = made([*kept, leased("local", lost=True, wrong=2)], [], 10.0)
    assert report.leases == {"local kept": 2, "agent kept": 1, "local lost": 1}
    assert (report.lost_with_others_bytes, report.wrong, report.chunks, report.bad) == (2, 0, 9, False)
    assert made([leased("agent", lost=False, wrong=1)], [], 10.0).bad


def test_a_child_that_is_not_told_fails_a_soak() -> None:
    line = {"what": "forked", "host": 0, "who": "loader", "at_s": 5.0, "how": "os.fork", "untold": []}
    report = made([line, line | {"how": "multiprocessing"}], [], 10.0)
    assert (report.forks, report.bad) == ({"os.fork": 1, "multiprocessing": 1}, False)
    report = made([line | {"untold": ["put", "release"]}], [], 10.0)
    assert (report.untold, report.bad) == ({"os.fork: put": 1, "os.fork: release": 1}, True)


def test_pages_answer_unless_their_daemon_is_away() -> None:
    killed = Note("controller killed", "controller killed", 0, 20.0, 24.0, 25.0)
    restarted = Note("agent restarted: killed", "agent restarted", 1, 20.0, 24.0, 25.0)
    excused = [probed(22, "controller", answered=False), probed(24.5, "agent1", answered=False)]
    report = made([probed(1, "agent0", answered=True), *excused], [killed, restarted], 100.0)
    assert (report.probes, report.unanswered, report.bad) == (3, {}, False)
    for line in (probed(22, "agent0", answered=False), probed(26, "controller", answered=False)):
        report = made([line], [killed, restarted], 100.0)
        assert (report.unanswered, report.bad) == ({f"{line['daemon']} /livez": 1}, True)


def test_a_line_of_no_kind_is_noticed() -> None:
    with pytest.raises(ValueError, match="no such line"):
        made([begun(1) | {"what": "danced"}], [], 10.0)


# ---------------------------------------------------------------------- labels, and what operators see of them


def test_labels_are_of_every_kind_and_an_agent_takes_them() -> None:
    for label in LABELS:
        check_namespace(label)
    assert len({label_of(number) for number in range(100)}) == len(LABELS)
    assert {len(label.encode()) for label in LABELS} >= {0, 1, NAMESPACE_BYTES_MAX}
    everything = "".join(LABELS)
    assert set(map(chr, range(1, 32))) | {"\x7f", "\x9b", "\u202e", "[", "\\", '"', "'", "<"} <= set(everything)


def test_what_a_terminal_obeys_is_found_and_what_is_shown_is_not() -> None:
    assert obeyed("a\x1b]b\u202e\r\n") == {"\x1b", "\u202e"}
    for label in LABELS:
        assert looks.text_problems("kvcast ls", printable(label)) == []
    assert looks.text_problems("kvcast ls", "\x07") == [r"kvcast ls lets \x07 out"]
    assert looks.status_problems("kvcast top", 0, "fine") == []
    assert looks.status_problems("kvcast top", 1, "Traceback (most recent)") != []


# ---------------------------------------------------------------------- those who say nothing


def test_the_silent_open_again_what_was_ended() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_server(("127.0.0.1", 0)) as other:
        silence = Silence([f"127.0.0.1:{one.getsockname()[1]}" for one in (server, other)])
        for _ in range(4):
            silence.open_one()
        assert sorted(silence.opened.values()) == [2, 2]
        taken = [server.accept()[0] for _ in range(2)]
        silence.drop_ended()
        assert not silence.ended
        taken[0].close()
        taken[1].sendall(b"hello")
        silence.drop_ended()
        assert silence.ended.total() == 1
        taken[1].close()
        silence.close()
    silence.open_one()
    assert silence.refused.total() == 1


# ---------------------------------------------------------------------- forks


def killed() -> Told:
    signal.raise_signal(signal.SIGKILL)
    raise AssertionError("it lives")


def test_children_of_both_kinds_are_heard_and_one_that_dies_says_nothing() -> None:
    for fork in FORKS.values():
        assert fork(lambda: {"fetch": True, "put": False}) == {"fetch": True, "put": False}
        assert fork(killed) is None


def test_a_loader_finds_out_that_its_agent_came_back_with_the_pool(tmp_path: Path) -> None:
    """A real agent, killed while the loader holds leases: it hears that they are lost, each once."""
    with contextlib.ExitStack() as closing:
        folder = Path(closing.enter_context(tempfile.TemporaryDirectory(prefix="kvcast-")))
        manager = ServiceManager(folder, configure(folder))
        closing.callback(manager.close)
        manager.start()
        out = closing.enter_context((tmp_path / "lines").open("ab", buffering=0))
        clock = Clock(time.monotonic(), 7, HONEST)
        loader = Loader(clock, Diary(out, 0, "loader"), str(folder / "agent.sock"))
        with loader.connect() as client:
            for key in clock.prefix(0, 0).chunk_keys():
                client.put(key, None, content_of(key, CHUNK_BYTES))
            while "leased" not in (tmp_path / "lines").read_text():
                loader.turn(client)
            manager.end()
            manager.start()
            with pytest.raises(AgentUnavailableError):
                loader.turn(client)
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    report = made(lines, [], time.monotonic())
    kept, lost = (sum(report.leases[f"{way} {how}"] for way in ("local", "agent")) for how in ("kept", "lost"))
    assert (kept, lost) == (1, 2)
    assert report.forks.total() > 0
    assert not (report.untold or report.wrong)


def test_recovery_is_when_everybody_fetches_again() -> None:
    lines = [fetched(10), fetched(10, host=1), fetched(24.5), fetched(26, host=1), fetched(30)]
    report = made(lines, [FROZEN], 40.0)
    assert report.recovery_s["agent frozen"] == [pytest.approx(2.1)]
    assert report.to_json()["recovery_s"] == {"agent frozen": [2.1]}


def test_whatever_is_left_is_a_leak_interest_too() -> None:
    report = Report()
    take_leftovers(report, [])
    assert not report.bad
    take_leftovers(report, ["switch: member 1 is in 1 interest sets"])
    assert (report.leaked, report.bad) == (["switch: member 1 is in 1 interest sets"], True)


def test_descriptors_that_pile_up_are_a_leak_and_memory_is_told() -> None:
    report = Report()
    before = {"agent0": Size(1, 100, 20), "agent1": Size(2, 100, 22), "controller": Size(3, 50, 30)}
    most = 22 + FDS_SPARE
    after = {"agent0": Size(1, 150, most + 1), "agent1": Size(9, 500, most), "controller": Size(3, 50, 30)}
    compare_sizes(report, before, after)
    assert report.rss_growth_bytes == {"agent0": 50, "controller": 0}
    assert report.leaked == [f"agent0: {most + 1} descriptors, 22 at the start"]
    assert report.bad


def test_speed_under_attack_is_measured_by_turns() -> None:
    some = turns(5, 120.0)
    assert some == turns(5, 120.0)
    assert [turn.harmless for turn in some] == [True, False, False, True] * 2
    assert [turn.sent for turn in some[::2]] == [turn.sent for turn in some[1::2]]
    assert len(some) * TURN_S < 120.0 * TURNS_SHARE
    assert len(turns(5, 1.0)) == 2
    report = Report()
    assert report.speed_under_attack is None
    taken = [TurnTaken(False, 10.0, 20.0), TurnTaken(True, 20.0, 30.0), TurnTaken(False, 30.0, 40.0)]
    lines = [fetched(11), fetched(21), fetched(22, chunks=2), fetched(23, outcome="DEADLINE"), fetched(31), begun(32)]
    take_turns(report, taken, lines)
    assert [turn.chunks for turn in report.turns] == [4, 6, 4]
    assert report.speed_under_attack == pytest.approx(0.6 / 0.4)
    assert report.work_under_attack is None, "nobody looked at what they used"
    assert report.to_json()["turns"][1] == [True, 10.0, 6]


def paired(*chunks: tuple[int, int]) -> Report:
    """Of pairs of turns: what came without attackers, and with them."""
    taken = [(TurnTaken(False, 0.0, 4.0, quiet), TurnTaken(True, 4.0, 8.0, attacked)) for quiet, attacked in chunks]
    return Report(turns=[turn for pair in taken for turn in pair])


def test_honest_hosts_that_are_surely_slowed_down_fail_a_soak() -> None:
    slow = paired((100, 80), (100, 82), (100, 78), (200, 162))
    assert slow.speed_under_attack == pytest.approx(0.804)
    assert slow.speed_error is not None and slow.speed_error < 0.01
    assert (slow.is_slow, slow.bad) == (True, True)
    chance = paired((100, 80), (300, 150), (100, 190), (60, 40))
    assert chance.speed_under_attack is not None and chance.speed_under_attack < SPEED_MIN
    assert (chance.is_slow, chance.bad) == (False, False)
    assert not paired((100, 95), (100, 96), (100, 94)).is_slow
    assert paired((100, 10)).speed_error is None


def test_what_attackers_make_daemons_do_is_told_by_kind_of_process() -> None:
    used = cpu_by_kind(
        {"agent0": 1.0, "agent1": 2.0, "switch": 5.0, "gone": 1.0}, {"agent0": 1.5, "agent1": 3.0, "switch": 5.0}
    )
    assert used == {"agent": 1.5, "switch": 0.0}
    report = Report(turns=[TurnTaken(False, 0.0, 10.0, cpu_s={"agent": 1.0}), TurnTaken(True, 10.0, 20.0, cpu_s=used)])
    assert report.cpu_under_attack == {"agent": pytest.approx(0.05)}
    fetches = [replace(turn, chunks=30) for turn in report.turns]
    assert Report(turns=fetches).work_under_attack == pytest.approx(1.0 / 1.5)
