"""What operators set, kept outside the controller: as a document, in a file, with who set what and when."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from pathlib import Path

import pytest

from controlplane import kept_state
from controlplane.config import parse
from controlplane.core.events import Deposed, ExpulsionsChanged, Requested, StateFound
from controlplane.core.ids import Mark
from controlplane.core.operator_state import OperatorState
from controlplane.daemon import Controller
from controlplane.kept_state import KeptState, replace_lasting
from controlplane.state_document import StateError, document_of, state_in
from kvproto.rpc import control_pb2 as rpc
from tests.unit.controlplane.fake_agent import agents
from tests.unit.controlplane.helpers import Scene, key, record
from tests.unit.controlplane.test_daemon import PREFIX, QUICK, eventually, operator, run

ANNE, BOB = (
    Mark("spiffe://kvcast.internal/operator at 10.0.0.7", 1_795_000_000_000),
    Mark("10.0.0.8", 1_795_000_001_000),
)


def some_state() -> OperatorState:
    state = OperatorState()
    state.set_drained("n1", True, ANNE)
    state.set_drained("n2", True, BOB)
    state.set_switch_pins([key("a"), key("b")], True, ANNE)
    state.set_expelled(frozenset({"n3"}), BOB)
    return state


def test_a_document_says_who_set_what_and_when() -> None:
    message = some_state().message()
    document = json.loads(document_of(message))
    assert document["revision"] == 4
    assert document["drained"] == [
        {"by": ANNE.by, "at": "2026-11-18T11:06:40.000+00:00", "what": ["n1"]},
        {"by": BOB.by, "at": "2026-11-18T11:06:41.000+00:00", "what": ["n2"]},
    ]
    again = OperatorState()
    assert again.take_repeated(state_in(document_of(message)))
    assert again.message() == message


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b"[" * 100_000,
        b'{"form": 1}',
        b'{"form": 2, "revision": 1}',
        json.dumps({"form": 1, "revision": 1, "drained": [], "expelled": [], "switch_pins": 7}).encode(),
        json.dumps(
            {"form": 1, "revision": -1, "drained": [], "expelled": [], "switch_pins": []},
        ).encode(),
        json.dumps(
            {
                "form": 1,
                "revision": 1,
                "drained": [],
                "expelled": [{"by": "", "at": "2026-11-18T11:06:40+00:00", "what": ["a b"]}],
                "switch_pins": [],
            }
        ).encode(),
    ],
)
def test_what_no_controller_wrote_is_one_line(content: bytes) -> None:
    with pytest.raises(StateError) as caught:
        state_in(content)
    assert len(str(caught.value)) < 200
    assert "\n" not in str(caught.value)


def test_who_set_a_thing_first_has_set_it_and_the_mark_goes_with_it() -> None:
    state = some_state()
    state.set_drained("n1", True, BOB)
    assert state.revision == 4
    document = json.loads(document_of(state.message()))
    assert document["drained"][0]["by"] == ANNE.by
    state.set_drained("n1", False, BOB)
    assert [run["what"] for run in json.loads(document_of(state.message()))["drained"]] == [["n2"]]


def test_what_was_set_at_another_leader_counts_when_this_one_leads_again() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1)
    scene.ask(Requested("drain", rpc.DrainRequest(node="n1"), ANNE))
    scene.handle(Deposed("another one leads"))
    scene.handle(StateFound(rpc.OperatorState(revision=9), "etcd"))
    assert scene.core.operator_state.drained == set(), "it was taken back there"


def test_one_revision_that_many_agents_repeat_is_news_once() -> None:
    here = OperatorState()
    here.set_drained("n9", True, ANNE)
    said = rpc.OperatorState(revision=9, drained=["n1"])
    assert here.take_repeated(said)
    revision = here.revision
    assert not here.take_repeated(said)
    assert here.revision == revision
    assert here.drained == {"n1", "n9"}


def test_what_operators_do_is_one_line_with_who_did_it() -> None:
    scene = Scene(with_switch=False)
    scene.attach(1, [record("a"), record("b", "a", 1)])
    scene.attach(2)
    name = key("a").hex()
    scene.ask(Requested("pin", rpc.PinRequest(key_hex=name), ANNE))
    scene.ask(Requested("evict", rpc.EvictRequest(key_hex=name, hosts=True), ANNE))
    scene.ask(Requested("warm", rpc.WarmRequest(key_hex=name, nodes=["n2"]), ANNE))
    scene.ask(Requested("drain", rpc.DrainRequest(node="n1"), BOB))
    said = [line for line in scene.informed if line.startswith((ANNE.by, BOB.by))]
    assert said == [
        f"{ANNE.by}: pin {name}",
        f"{ANNE.by}: evict {name} from hosts, too",
        f"{ANNE.by}: warm n2 with {name}",
        f"{BOB.by}: drain n1",
    ]


def test_agents_carry_who_is_put_out_too() -> None:
    old = Scene(with_switch=False)
    for number in (1, 2):
        old.attach(number)
    old.handle(ExpulsionsChanged(frozenset({"n2"}), ANNE))
    old.advance()
    kept = [one.operator_state for one in old.sent[1] if one.HasField("operator_state")][-1]
    new = Scene(with_switch=False, incarnation=2000)
    new.attach(1, operator_state=kept)
    new.attach(2, incarnation=2)
    assert new.closed[2].code == "PERMISSION_DENIED"
    assert new.core.operator_state.message().marks == kept.marks


def test_a_file_outlives_controller_and_agents(tmp_path: Path) -> None:
    settings = QUICK | {"state": "kept.json"}

    async def steps() -> None:
        first = Controller(parse(settings, tmp_path))
        await first.start()
        async with agents(first.grpc_address, PREFIX, []), operator(first.grpc_address) as ask:
            async for _ in ask.Drain(rpc.DrainRequest(node="n1")):
                pass
            await ask.Expel(rpc.ExpelRequest(node="n9"))
        await first.stop()
        document = json.loads((tmp_path / "kept.json").read_text())
        assert document["drained"][0]["what"] == ["n1"]
        assert document["drained"][0]["by"] == "127.0.0.1"
        second = Controller(parse(settings, tmp_path))
        await second.start()
        try:
            async with agents(second.grpc_address, PREFIX) as (agent,):
                await agent.until(lambda: agent.node_named("n1").draining, "the drain")
            assert second.core.expelled == {"n9"}
        finally:
            await second.stop()

    run(steps())


def test_a_file_that_cannot_be_is_said_and_written_anew(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "kept.json"
    path.write_text("{}")

    async def steps() -> None:
        kept = KeptState(path, None, some_state().message, lambda: None)
        assert kept.filed() is None
        kept.look(4)
        writing = asyncio.create_task(kept.run())
        await eventually(lambda: path.read_text() != "{}", "it is written")
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)

    run(steps())
    assert [record.getMessage() for record in caplog.records] == [
        f"state {path} is not taken: it is no state that a controller wrote (KeyError); it will be written anew"
    ]
    assert path.stat().st_mode & 0o777 == 0o600
    assert state_in(path.read_bytes()).revision == 4


def test_a_file_is_on_the_disk_before_it_has_its_name_and_its_name_is_there_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "kept.json"
    synced: list[tuple[str, bool]] = []
    real = os.fsync

    def fsync(descriptor: int) -> None:
        real(descriptor)
        synced.append((Path(os.readlink(f"/proc/self/fd/{descriptor}")).name, path.exists()))

    monkeypatch.setattr(os, "fsync", fsync)
    replace_lasting(path, b"{}")
    (content, was_named), folder = synced
    assert content.startswith(".kept.json")
    assert not was_named
    assert folder == (tmp_path.name, True)


@pytest.mark.parametrize("is_changed", [False, True], ids=["as it was", "changed meanwhile"])
def test_who_stops_while_it_is_written_leaves_the_last_state(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_changed: bool
) -> None:
    path, state = tmp_path / "kept.json", some_state()
    begun, may_go_on = threading.Event(), threading.Event()

    def slowly(into: Path, content: bytes) -> None:
        if not begun.is_set():
            begun.set()
            assert may_go_on.wait(10)
        replace_lasting(into, content)

    monkeypatch.setattr(kept_state, "replace_lasting", slowly)

    async def steps() -> None:
        kept = KeptState(path, None, state.message, lambda: None)
        kept.look(state.revision)
        writing = asyncio.create_task(kept.run())
        await eventually(begun.is_set, "a thread writes")
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        if is_changed:
            state.set_drained("n1", False, BOB)
            kept.look(state.revision)
        closing = asyncio.create_task(kept.close())
        await asyncio.sleep(0)
        may_go_on.set()
        await closing
        assert state_in(path.read_bytes()).revision == state.revision

    run(steps())
    assert state_in(path.read_bytes()).revision == state.revision, "and no thread writes after that"


def test_what_could_not_be_written_before_is_written_at_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "later"

    async def steps() -> None:
        kept = KeptState(folder / "kept.json", None, some_state().message, lambda: None)
        kept.look(4)
        writing = asyncio.create_task(kept.run())
        await eventually(lambda: bool(caplog.records), "it cannot be written")
        folder.mkdir()
        writing.cancel()
        await asyncio.gather(writing, return_exceptions=True)
        await kept.close()

    run(steps())
    assert state_in((folder / "kept.json").read_bytes()).revision == 4


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def steps() -> None:
        kept = KeptState(tmp_path / "no" / "kept.json", None, some_state().message, lambda: None)
        for _ in range(3):
            kept.look(4)
            await kept.close()
            kept.look(5)
            await kept.close()

    run(steps())
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path}/no/kept.json: operators' state cannot be written: No such file or directory"
    ]


def test_the_service_managers_folder_is_where_the_file_is(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse({}, Path()).state is None
    monkeypatch.setenv("STATE_DIRECTORY", "/var/lib/kvcast")
    assert parse({}, Path()).state == Path("/var/lib/kvcast/operator-state.json")
    assert os.fspath(parse({"state": "x.json"}, Path("/etc")).state or "") == "/etc/x.json"
