"""A member that an operator puts out: its certificate and its tokens are no good from then on, wherever it turns."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from controlplane.config import parse
from controlplane.core.events import ExpulsionsChanged
from controlplane.core.ids import NOBODY
from controlplane.core.read_access import ExpulsionError, checked
from controlplane.core.switch.entries import EgressMemberEntry, PortMemberEntry, SourceEntry
from controlplane.daemon import Controller
from controlplane.kept_state import ExpelledFile, file_of, names_in
from hostagent.transport.read_protocol import KIND_READ, STATUS_OK, pack_tokens
from hostagent.transport.read_tokens import Refusal
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc.read_tokens import EXPELLED_MAX
from tests.security.test_read_tokens import Stranger, stranger
from tests.unit.controlplane.helpers import Scene, record
from tests.unit.controlplane.helpers import key as chunk_key
from tests.unit.controlplane.test_daemon import QUICK
from tests.unit.hostagent.agent_harness import MIB, Cluster, cluster, key

pytestmark = pytest.mark.security

BODY = random.Random(11).randbytes(MIB)
N1_ADDRESS = "127.79.0.2"


class Pool:
    """n0 has chunk 1, n1 chunk 2; the controller's list of expelled nodes is a file."""

    def __init__(self, it: Cluster, folder: Path) -> None:
        self.it = it
        self.file = folder / "expelled"
        self.controller = Controller(parse(QUICK | {"expelled": str(self.file)}, folder))
        it.do(self.controller.start())
        for _ in range(2):
            it.add(controllers=[self.controller.grpc_address])
        for index in range(2):
            it.client(index).put(key(index + 1), None, BODY)
        it.until(lambda: self.knows(0, 2) and self.knows(1, 1))

    def knows(self, index: int, number: int) -> bool:
        return self.it.agents[index].core.directory.find(key(number)) is not None

    def expel(self, node: str, *, cancel: bool = False) -> rpc.ExpelReply:
        return self.it.call(lambda: self.controller.expel(rpc.ExpelRequest(node=node, cancel=cancel), NOBODY))

    def close(self) -> None:
        for _, client in self.it.clients:
            client.close()
        for agent in self.it.agents:
            self.it.do(agent.stop())
        self.it.agents.clear()
        self.it.do(self.controller.stop())


@pytest.fixture
def pool(tmp_path: Path) -> Iterator[Pool]:
    with cluster(0) as it:
        one = Pool(it, tmp_path)
        try:
            yield one
        finally:
            one.close()


def read_for_ever(one: Stranger) -> None:
    while True:
        one.ask(KIND_READ, 1)


def test_who_is_expelled_reads_nothing_any_more_and_nobody_reads_from_it(pool: Pool) -> None:
    token = pool.it.call(lambda: pool.it.agents[1].tokens.shown)
    with stranger(pool.it, address=N1_ADDRESS) as open_before:
        open_before.sock.sendall(pack_tokens(token))
        assert open_before.ask(KIND_READ, 1) == (STATUS_OK, BODY[:4096])
        reply = pool.expel("n1")
        assert (list(reply.expelled), reply.lasting, reply.was_attached) == (["n1"], True, True)
        with pytest.raises(ConnectionResetError):
            read_for_ever(open_before)
    with stranger(pool.it, address=N1_ADDRESS) as again:
        again.sock.sendall(pack_tokens(token))
        assert again.ask(KIND_READ, 1) == (Refusal.EXPELLED, b"")
    pool.it.until(lambda: not pool.knows(0, 2))
    assert pool.it.call(lambda: pool.controller.core.nodes.named("n1")) is None
    assert names_in(pool.file.read_text()) == {"n1"}
    pool.it.until(lambda: pool.it.agents[1].health().missing)
    (missing,) = pool.it.call(pool.it.agents[1].health).missing
    assert missing.startswith("the controller refuses this node: node 'n1' is expelled")
    assert pool.it.call(pool.it.agents[0].health).missing == ()

    assert list(pool.expel("n1", cancel=True).expelled) == []
    pool.it.until(lambda: pool.knows(0, 2))
    assert not pool.it.call(pool.it.agents[1].health).missing
    with stranger(pool.it, address=N1_ADDRESS) as back:
        back.sock.sendall(pack_tokens(token))
        assert back.ask(KIND_READ, 1) == (STATUS_OK, BODY[:4096])


def test_the_controller_follows_its_file_and_no_file_that_cannot_be(
    pool: Pool, caplog: pytest.LogCaptureFixture
) -> None:
    pool.file.write_text("# by hand\nn1  # its disk was sold\n")
    pool.it.until(lambda: pool.controller.core.nodes.named("n1") is None)
    with caplog.at_level("WARNING", "controlplane.daemon"):
        pool.file.write_text("no name of a node\n")
        pool.it.until(lambda: "the list of expelled nodes stays as it is" in caplog.text)
    assert pool.it.call(lambda: pool.controller.core.expelled) == {"n1"}
    pool.file.unlink()
    pool.it.until(lambda: pool.knows(0, 2))


def test_its_place_in_the_switch_is_nobodys_and_no_other_controller_takes_it(tmp_path: Path) -> None:
    scene = Scene()
    for number in (1, 2, 3):
        scene.attach(number)
    scene.up()
    scene.announce(2, [record("a")])
    places = (PortMemberEntry, EgressMemberEntry, SourceEntry)

    def ports() -> set[int]:
        return {entry.port for entry in scene.switch.contents.values() if isinstance(entry, places)}

    assert ports() == {1, 2, 3}
    scene.handle(ExpulsionsChanged(frozenset({"n2"})))
    scene.advance()
    assert ports() == {1, 3}
    assert chunk_key("a") not in scene.replica(1)
    assert scene.closed[2].code == "PERMISSION_DENIED"
    (heard,) = [list(one.read_access.expelled) for one in scene.sent[1] if one.read_access.expelled]
    assert heard == ["n2"]
    scene.attach(2, incarnation=2)
    assert scene.closed[2].reason.startswith("node 'n2' is expelled")
    assert ports() == {1, 3}
    scene.handle(ExpulsionsChanged(frozenset()))
    scene.attach(2, incarnation=3)
    assert ports() == {1, 2, 3}

    file = ExpelledFile(tmp_path / "expelled")
    file.write(frozenset({"n2"}))
    successor = Scene(incarnation=2000)
    successor.handle(ExpulsionsChanged(ExpelledFile(file.path).read()))
    successor.attach(2)
    assert successor.closed[2].code == "PERMISSION_DENIED"


def test_lists_that_cannot_be_are_one_clear_line(tmp_path: Path) -> None:
    assert names_in(file_of(["b", "a"])) == {"a", "b"}
    for name in ("", "a b", "n\x01", "n" * 65):
        with pytest.raises(ExpulsionError, match="is not a valid node name"):
            checked({name})
    with pytest.raises(ExpulsionError, match="257 nodes are expelled, 256 at most"):
        checked(f"n{number}" for number in range(EXPELLED_MAX + 1))
    with pytest.raises(ExpulsionError, match="cannot write"):
        ExpelledFile(tmp_path / "no" / "folder").write(frozenset())
    wrong = tmp_path / "wrong"
    wrong.write_bytes(b"\xff\xfe")
    with pytest.raises(ExpulsionError, match="it is no UTF-8 text"):
        ExpelledFile(wrong).read()
