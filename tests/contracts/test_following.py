"""A controller's core and agents' cores, joined by the messages themselves: agents that follow what they ask for know
of it what the controller knows, whatever crosses on the way."""

import random
from collections import deque

import pytest

from controlplane.core.events import HelloReceived, MessageReceived, StreamEnded
from hostagent import limits
from hostagent.controller import convert
from hostagent.controller.refusals import Refusals
from hostagent.core import effects, events
from hostagent.core.clock import WINDOW
from hostagent.core.fetches import Fetches
from hostagent.core.lone_chunks import LoneChunks
from kvchunk.ids import ChunkKey
from kvclient.messages import Kind, Where
from kvproto.cells import Cell, Cells
from kvproto.chunk_table import KEPT, Interned
from kvproto.rpc import control_pb2 as rpc
from kvproto.wire.data import Fabric
from tests.unit.controlplane.helpers import Scene as Cluster
from tests.unit.controlplane.helpers import hello, key, record
from tests.unit.hostagent.core_harness import ENGINE, PAGE
from tests.unit.hostagent.core_harness import Scene as Agent

AGENT = 9
"""Session and number of the agent that follows."""


class Follower:
    """An agent's core on a stream to a cluster's controller; messages wait until they are passed on."""

    def __init__(self, cluster: Cluster, rows_max: int = 1000, *, at_once: bool = True, **changes: object) -> None:
        self.cluster = cluster
        self.agent = Agent(replica_bytes=rows_max * limits.REPLICA_ROW_BYTES, follows_at_once=at_once)
        self.up: deque[rpc.FromAgent] = deque()
        self.session = AGENT
        self.seen = 0
        self.attach(**changes)

    @property
    def directory(self):
        return self.agent.core.directory

    def attach(self, **changes: object) -> None:
        self.cluster.sent[self.session] = []
        self.seen = 0
        looks = self.agent.core.fetches.look_ups
        said = {"follows": looks.follows, "replica_rows": looks.whole_rows_max} | changes
        said = hello(AGENT, incarnation=self.session, takes_columns=True, **said)
        self.cluster.handle(HelloReceived(self.session, said))
        self.cluster.advance()

    def attach_again(self, **changes: object) -> None:
        """The stream breaks: what was on the way either way is lost."""
        self.cluster.handle(StreamEnded(self.session))
        self.up.clear()
        self.agent.say(events.ControllerLost())
        self.session += 100
        self.attach(**changes)

    def hear(self, count: int = 1 << 30) -> bool:
        """Take in some of what the controller has said. False: there was nothing."""
        said = self.cluster.sent[self.session][self.seen : self.seen + count]
        self.seen += len(said)
        for message in said:
            assert not message.refusals.refused
            for event in convert.events_of(message, Fabric(0, 0, 0, PAGE), Refusals()):
                self.agent.say(event)
        for kind in (effects.LookUp, effects.Announce):
            self.up += [convert.message_of(effect, columns=True) for effect in self.agent.take(kind)]
        return bool(said)

    def speak(self, count: int = 1 << 30) -> bool:
        """Let the controller hear some of what the agent has said."""
        some = [self.up.popleft() for _ in range(min(count, len(self.up)))]
        for message in some:
            self.cluster.handle(MessageReceived(self.session, message))
            self.cluster.advance()
        return bool(some)

    def settle(self) -> None:
        """Let everything arrive."""
        self.hear()
        while self.speak() or self.hear():
            self.hear()

    def ask(self, *names: object) -> int:
        """An engine asks where chunks are; the number of its request."""
        self.agent.request += 1
        keys = tuple(ChunkKey(key(name)) for name in names)
        self.agent.say(events.KeysRequested(ENGINE, self.agent.request, Kind.CONTAINS, keys))
        self.hear(0)
        return self.agent.request

    def answers(self) -> list[bytes]:
        return [answer.values for answer in self.agent.take(effects.KeysAnswered)]

    def knows(self, name: object) -> bool:
        return self.directory.find(ChunkKey(key(name))) is not None


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(with_switch=False)
    made.attach(1, [record("a"), record("b", "a", 1), record("z")])
    return made


def followed(cluster: Cluster, **changes: object) -> Follower:
    follower = Follower(cluster, **changes)
    follower.agent.say(events.EngineConnected(ENGINE, "t"))
    follower.settle()
    follower.agent.made.clear()
    return follower


def test_the_whole_directory_is_known_until_it_has_become_too_large(cluster: Cluster) -> None:
    follower = followed(cluster, rows_max=10, at_once=False)
    looks = follower.agent.core.fetches.look_ups
    assert 7 <= looks.whole_rows_max <= 10
    assert (follower.knows("a"), looks.is_partial) == (True, False)
    for number in range(9):
        cluster.announce(1, [record(number)])
    follower.settle()
    (again,) = follower.agent.take(effects.AttachAgain)
    assert again.reason.startswith(f"the directory has {looks.whole_rows_max + 1} chunks")
    follower.attach_again()
    follower.settle()
    assert looks.is_partial
    assert follower.knows("a"), "what was known goes on answering"
    follower.agent.pass_ms(2 * limits.STALE_DIRECTORY_S * 1000)
    assert not follower.knows("a")
    assert follower.agent.take(effects.AttachAgain) == []
    follower.ask("a", "nowhere")
    follower.settle()
    assert follower.answers() == [bytes((Where.REMOTE, Where.NOWHERE))]
    assert followed_by(cluster, "a", "b", "nowhere") == ["a", "nowhere"]
    follower.attach_again()
    follower.settle()
    assert looks.is_partial, "it stays so"


def test_who_comes_to_a_directory_that_is_too_large_follows_at_once(cluster: Cluster) -> None:
    follower = followed(cluster, rows_max=3, at_once=False)
    assert follower.agent.core.fetches.look_ups.is_partial
    assert follower.agent.take(effects.AttachAgain) == []
    assert follower.directory.chunks_count == 0
    follower.ask("a")
    follower.settle()
    assert follower.answers() == [bytes((Where.REMOTE,))]


def test_where_the_controller_takes_no_look_ups_the_whole_directory_is_kept(cluster: Cluster) -> None:
    follower = followed(cluster, rows_max=10, at_once=False)
    looks = follower.agent.core.fetches.look_ups
    looks.stream_began(takes_look_ups=False, follows=False)
    for number in range(20):
        cluster.announce(1, [record(number)])
    follower.settle()
    assert (looks.is_partial, looks.follows, follower.directory.chunks_count) == (False, False, 23)


def test_nothing_is_told_that_nobody_asked_for(cluster: Cluster) -> None:
    follower = followed(cluster)
    cluster.announce(1, [record("c", "b", 2)])
    follower.settle()
    assert follower.directory.chunks_count == 0
    assert follower.directory.node_named("n1") is not None


def test_an_engine_waits_for_the_answer_and_gets_it(cluster: Cluster) -> None:
    follower = followed(cluster)
    follower.ask("a", "b", "nowhere")
    assert follower.answers() == []
    follower.settle()
    assert follower.answers() == [bytes((Where.REMOTE, Where.REMOTE, Where.NOWHERE))]
    follower.ask("a", "nowhere")
    assert follower.answers() == [bytes((Where.REMOTE, Where.NOWHERE))], "both are known by now, one not to be there"


def test_what_nobody_had_is_news_when_somebody_has_it(cluster: Cluster) -> None:
    follower = followed(cluster)
    follower.ask("later")
    follower.settle()
    follower.answers()
    cluster.announce(1, [record("later")])
    follower.settle()
    follower.ask("later")
    assert follower.answers() == [bytes((Where.REMOTE,))]


def test_a_prefix_is_followed_where_it_grows(cluster: Cluster) -> None:
    follower = followed(cluster)
    follower.ask("b")
    follower.settle()
    cluster.announce(1, [record("c", "b", 2), record("d", "c", 3), record("y", "z", 1)])
    follower.settle()
    assert [follower.knows(name) for name in ("a", "b", "c", "d", "y", "z")] == [False, True, True, True, False, False]


def test_a_chunk_removed_while_it_is_asked_for_does_not_come_back(cluster: Cluster) -> None:
    for removed_first in (False, True):
        follower = followed(cluster)
        follower.ask("b")
        if not removed_first:
            follower.speak()
        cluster.say(1, announce=rpc.Announce(removed=[key("b")]))
        follower.settle()
        assert not follower.knows("b")
        cluster.announce(1, [record("b", "a", 1)])
        follower.settle()
        assert follower.knows("b"), "and it is news again"
        follower.cluster.handle(StreamEnded(follower.session))


def test_news_of_what_was_let_go_is_out_of_date(cluster: Cluster) -> None:
    follower = followed(cluster, rows_max=2)
    follower.ask("a", "b", "z")
    follower.hear()
    follower.speak()
    follower.hear()
    assert follower.directory.chunks_count == 2, "the bound"
    gone = next(name for name in ("a", "b", "z") if not follower.knows(name))
    cluster.announce(1, [record(gone, size=7)] if gone != "b" else [record("b", "a", 1, size=7)])
    follower.hear()
    assert not follower.knows(gone), "the controller did not know yet that nobody wants it"
    follower.settle()
    cluster.say(1, announce=rpc.Announce(removed=[key(gone)]))
    follower.settle()
    follower.ask(gone)
    follower.settle()
    assert follower.answers()[-1] == bytes((Where.NOWHERE,))


def test_a_stream_that_breaks_answers_who_waits_and_begins_anew(cluster: Cluster) -> None:
    follower = followed(cluster)
    follower.ask("a")
    follower.agent.say(events.ControllerLost())
    assert follower.answers() == [bytes((Where.NOWHERE,))]
    follower.ask("a")
    assert follower.answers() == [bytes((Where.NOWHERE,))], "nobody is there to be asked"
    follower.attach_again()
    follower.settle()
    follower.ask("a")
    follower.settle()
    assert follower.answers() == [bytes((Where.REMOTE,))]


def test_a_silent_controller_holds_nobody_up(cluster: Cluster) -> None:
    follower = followed(cluster)
    follower.ask("a")
    follower.agent.pass_ms(limits.LOOK_UP_WAIT_S * 1e3 + 1)
    assert follower.answers() == [bytes((Where.NOWHERE,))]
    follower.settle()
    assert follower.knows("a"), "a late answer is an answer"


def test_nobody_hears_of_another_tenants_chunks() -> None:
    cluster = Cluster(with_switch=False)
    cluster.attach(1)
    announced = rpc.Announce(added=[record("a")], namespaces=["theirs/x"])
    cluster.say(1, announce=announced)
    follower = followed(cluster, interests=rpc.Interests(namespaces=["ours/*"]))
    follower.ask("a")
    follower.settle()
    cluster.say(1, announce=rpc.Announce(removed=[key("a")]))
    cluster.say(1, announce=announced)
    follower.settle()
    told = [m for m in cluster.sent[follower.session] if m.looked_up.found.chunks or m.looked_up.found.columns.keys]
    told += [m for m in cluster.sent[follower.session] if m.directory.chunks or m.directory.columns.keys]
    assert told == []
    assert not any(m.directory.chunks_gone for m in cluster.sent[follower.session])
    news = [m for m in cluster.sent[follower.session] if m.directory.HasField("after") and not m.directory.nodes]
    assert news == [], "nor that anything changed"


def test_who_follows_too_much_is_refused_and_knows_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("controlplane.core.directory.following.FOLLOWED_PER_NODE_MAX", 2)
    follower = followed(cluster)
    follower.ask("a", "b", "z")
    follower.settle()
    assert follower.answers() == [bytes((Where.NOWHERE,) * 3)]
    follower.ask("a")
    assert follower.answers() == [], "nothing is remembered of it"
    follower.settle()
    assert follower.answers() == [bytes((Where.REMOTE,))]


def test_rows_that_only_a_stream_kept_go_with_it(cluster: Cluster) -> None:
    follower = followed(cluster)
    table = cluster.core.directory.table
    follower.ask(*(f"nobody {number}" for number in range(50)))
    follower.settle()
    assert all(table.row(ChunkKey(key(f"nobody {number}"))) >= 0 for number in range(50))
    cluster.handle(StreamEnded(follower.session))
    assert all(table.row(ChunkKey(key(f"nobody {number}"))) < 0 for number in range(50))


def followed_by(cluster: Cluster, *names: object) -> list[object]:
    """Those that the controller keeps rows of although nobody may have them."""
    table = cluster.core.directory.table
    rows = {name: table.row(ChunkKey(key(name))) for name in names}
    return [name for name, row in rows.items() if row >= 0 and table.flags[row] & KEPT]


def test_what_went_is_let_go_like_what_nobody_had(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOOK_UP_ABSENT_MAX", 4)
    follower = followed(cluster)
    names = [f"short-lived {number}" for number in range(20)]
    cluster.announce(1, [record(name) for name in names])
    follower.ask(*names)
    follower.settle()
    cluster.say(1, announce=rpc.Announce(removed=list(map(key, names))))
    follower.settle()
    assert len(follower.agent.core.fetches.look_ups.absent) == 4
    assert followed_by(cluster, *names) == names[16:]
    follower.answers()
    follower.ask(*names[16:])
    assert follower.answers() == [bytes((Where.NOWHERE,) * 4)], "known without a question"


def test_an_agent_follows_its_own_copies_that_are_taken_and_no_more_than_it_may(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("controlplane.core.directory.following.FOLLOWED_PER_NODE_MAX", 3)
    cluster = Cluster(with_switch=False, copies_max=2)
    followed(cluster)
    cluster.announce(AGENT, [record("p"), record("q"), record("refused")])
    assert followed_by(cluster, "p", "q", "refused") == ["p", "q"]
    cluster.say(AGENT, announce=rpc.Announce(removed=[key("p"), key("q")]))
    cluster.announce(AGENT, [record("r"), record("s")])
    assert followed_by(cluster, "p", "q", "r", "s") == ["p", "q", "r"]
    keys = b"".join(map(key, "pqr"))
    cluster.say(AGENT, look_up=rpc.LookUp(number=1, keys=keys))
    assert not cluster.sent[AGENT][-1].looked_up.refused, "it follows these already"


def test_whose_prefix_another_cell_is_home_to_hears_so() -> None:
    west = Cell("west", controllers=("w1:4800",))
    cells = Cells("east", {"east": Cell("east", weight=0.0), "west": west})
    follower = followed(Cluster(with_switch=False, cells=cells))
    follower.ask("root", "next")
    assert [message.look_up.root for message in follower.up] == [key("root")]
    follower.settle()
    (answer,) = [one.looked_up for one in follower.cluster.sent[AGENT] if one.HasField("looked_up")]
    assert (answer.elsewhere.cell, list(answer.elsewhere.controllers)) == ("west", ["w1:4800"])
    assert follower.agent.core.fetches.look_ups.elsewhere_count == 1
    assert follower.answers() == [bytes((Where.NOWHERE, Where.NOWHERE))]


def test_a_prefix_that_is_at_home_or_not_named_is_nowhere_else(cluster: Cluster) -> None:
    follower = followed(cluster)
    follower.ask("a")
    follower.settle()
    cluster.say(AGENT, look_up=rpc.LookUp(number=9, keys=key("b")))
    answers = [one.looked_up for one in cluster.sent[AGENT] if one.HasField("looked_up")]
    assert [one.HasField("elsewhere") for one in answers] == [False, False]
    cluster.say(AGENT, look_up=rpc.LookUp(number=10, keys=key("b"), root=b"short"))
    assert cluster.sent[AGENT][-1].refusals.refused[0].what == "message"


def test_whose_engines_use_more_namespaces_asks_anew(cluster: Cluster) -> None:
    cluster.say(1, announce=rpc.Announce(added=[record("theirs")], namespaces=["theirs/x"]))
    cluster.say(1, announce=rpc.Announce(added=[record("ours")], namespaces=["ours/x"]))
    follower = followed(cluster, interests=rpc.Interests(namespaces=["ours/*"]))
    for _ in range(2):
        follower.ask("ours", "theirs")
        follower.settle()
    assert follower.answers()[-1] == bytes((Where.REMOTE, Where.NOWHERE))
    cluster.say(AGENT, interests=rpc.Interests(all=True))
    follower.settle()
    assert followed_by(cluster, "ours", "theirs") == [], "the replica is empty, and the controller knows that"
    follower.ask("ours", "theirs")
    follower.settle()
    assert follower.answers()[-1] == bytes((Where.REMOTE, Where.REMOTE))
    assert followed_by(cluster, "ours", "theirs") == ["ours", "theirs"]
    assert not follower.directory.let_go


def test_after_a_controllers_restart_followers_learn_who_has_what(cluster: Cluster) -> None:
    cluster.attach(2, [record("e")])
    follower = followed(cluster)
    follower.ask("a", "e")
    follower.settle()
    follower.answers()
    follower.cluster = restarted = Cluster(with_switch=False, incarnation=1001)
    restarted.attach(3, [record("f")])
    follower.attach_again(replica_of=1000, replica_nodes=3)
    follower.settle()
    follower.ask("a", "e", "f", "late")
    follower.settle()
    assert follower.answers() == [bytes((Where.REMOTE, Where.REMOTE, Where.REMOTE, Where.NOWHERE))]
    entry = follower.directory.find(ChunkKey(key("f")))
    assert [node.name for node in follower.directory.holders_elsewhere(entry.key)[0]] == ["n3"]
    restarted.attach(2, [record("late")], replica_of=1000, replica_nodes=3)
    restarted.attach(1, [record("a")], replica_of=1000, replica_nodes=3)
    follower.settle()
    follower.ask("late")
    assert follower.answers() == [bytes((Where.REMOTE,))]
    assert follower.directory.has_stale, "what the predecessor said counts for a while"
    follower.agent.pass_ms(limits.STALE_DIRECTORY_S * 1e3 + 1)
    follower.ask("a", "e", "f", "late")
    follower.settle()
    assert follower.answers() == [bytes((Where.REMOTE, Where.NOWHERE, Where.REMOTE, Where.REMOTE))]


def test_a_long_request_is_asked_for_whole_in_several_questions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [f"long {number}" for number in range(2 * limits.LOOK_UP_KEYS_MAX + 100)]
    cluster.announce(1, [record(names[-1])])
    follower = followed(cluster)
    follower.ask(*names)
    follower.speak(2)
    follower.hear()
    assert follower.answers() == [], "one question of three has no answer"
    follower.settle()
    assert follower.answers() == [bytes((Where.NOWHERE,) * (len(names) - 1) + (Where.REMOTE,))]
    monkeypatch.setattr(limits, "LOOK_UPS_MAX", 2)
    follower.ask(*(f"more {name}" for name in names))
    assert [len(said.look_up.keys) // 16 for said in follower.up] == [limits.LOOK_UP_KEYS_MAX] * 2


def test_a_long_fetch_looks_for_its_chunks_window_by_window(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at: list[ChunkKey] = []
    monkeypatch.setattr(Fetches, "is_nowhere", lambda self, one: looked_at.append(one) or True)
    follower = followed(cluster)
    keys = tuple(ChunkKey(key(f"long {number}")) for number in range(10 * WINDOW))
    follower.agent.say(events.ChunksRequested(ENGINE, 1, keys, 10.0, None))
    turns = 0
    while not follower.agent.take(effects.LookUp):
        assert len(looked_at) <= turns * WINDOW
        follower.agent.say(events.TimerFired())
        turns += 1
    assert turns >= 10
    assert looked_at == list(keys)
    follower.agent.pass_ms(limits.LOOK_UP_WAIT_S * 1e3 + 1)
    assert follower.agent.take(effects.FetchAnswered)
    assert follower.agent.core.idle


def test_what_is_let_go_is_offered_to_no_engine(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    changed: list[ChunkKey] = []
    monkeypatch.setattr(LoneChunks, "directory_changed", lambda self, keys: changed.extend(keys))
    follower = followed(cluster, rows_max=2)
    follower.ask("a", "b", "z")
    follower.settle()
    gone = next(name for name in ("a", "b", "z") if not follower.knows(name))
    assert changed[-1:] == [key(gone)]


def test_many_followers_cost_as_much_as_few(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = range(100, 130)
    for session in sessions:
        cluster.attach(session, takes_columns=True, follows=True)
        cluster.say(session, look_up=rpc.LookUp(number=1, keys=key("b") + (key("z") if session % 2 else b"")))
        cluster.sent[session].clear()
    taken: list[object] = []
    take = Interned.take
    monkeypatch.setattr(Interned, "take", lambda self, one: taken.append(one) or take(self, one))
    added = [record("y", "z", 1), record("c", "b", 2), record("d", "c", 3)]
    cluster.say(1, announce=rpc.Announce(added=added, removed=[key("a")]))
    for session in sessions:
        names = {"c", "d", "y"} if session % 2 else {"c", "d"}
        assert set(cluster.replica(session)) == {key(name) for name in names}
    followers = [one for one in taken if isinstance(one, frozenset) and one & set(sessions)]
    assert len(followers) == 3, "one for each chunk"
    messages = {id(cluster.sent[session][-1]) for session in sessions}
    assert len(messages) == 2, "those who follow the same get the same"
    cluster.say(1, announce=rpc.Announce(removed=[key("c")]))
    assert all(list(cluster.sent[session][-1].directory.chunks_gone) == [key("c")] for session in sessions)


@pytest.mark.parametrize("seed", range(20))
def test_whatever_crosses_both_agree_in_the_end(seed: int) -> None:
    rng = random.Random(seed)
    cluster = Cluster(with_switch=False)
    for number in (1, 2, 3):
        cluster.attach(number)
    follower = followed(cluster, rows_max=rng.choice((6, 15, 1000)))
    names = [f"{root}{at}" for root in "pqr" for at in range(12)]
    above = {name: f"{name[0]}{int(name[1:]) - 1}" if name[1:] != "0" else None for name in names}
    for _ in range(300):
        name, number = rng.choice(names), rng.choice((1, 2, 3))
        match rng.randrange(9):
            case 0 | 1:
                size = 4096 if rng.random() < 0.9 else 8192
                cluster.announce(number, [record(name, above[name], int(name[1:]), size=size)])
            case 2:
                cluster.say(number, announce=rpc.Announce(removed=[key(name)]))
            case 3 | 4:
                at = names.index(name)
                follower.ask(*names[at : at + rng.randrange(1, 5)])
            case 5:
                follower.speak(rng.randrange(1, 4))
            case 6:
                follower.hear(rng.randrange(1, 4))
            case 7 if rng.random() < 0.1:
                follower.attach_again()
            case 8 if rng.random() < 0.3:
                held = [one for one in names if rng.random() < 0.2]
                cluster.handle(StreamEnded(number))
                chunks = [record(one, above[one], int(one[1:])) for one in held]
                cluster.attach(number, chunks, incarnation=2 + rng.randrange(1 << 30))
    follower.settle()
    agent, core = follower.agent.core, cluster.core
    for one, entry in agent.directory.entries().items():
        chunk = core.directory.get(one)
        assert chunk is not None, f"{one!r} is nowhere"
        assert (entry.size_bytes, set(entry.holders)) == (chunk.facts.size_bytes, set(chunk.holders)), one
    for one in agent.fetches.look_ups.absent:
        assert core.directory.get(one) is None, f"{one!r} is said to be nowhere"
    assert agent.directory.chunks_count <= follower.agent.core.fetches.look_ups.rows_max
    assert not agent.directory.let_go
    known = {*agent.directory.entries(), *agent.fetches.look_ups.absent}
    assert {one for one in names if ChunkKey(key(one)) in known} == set(followed_by(cluster, *names))
    follower.agent.pass_ms(100)
    follower.agent.take(effects.KeysAnswered)
    follower.ask(*names)
    follower.settle()
    (answer,) = follower.answers()
    if agent.fetches.look_ups.rows_max >= len(names):
        expected = [Where.NOWHERE if core.directory.get(ChunkKey(key(one))) is None else Where.REMOTE for one in names]
        assert list(answer) == expected
