"""What an examination tries, in order. Pure: a generator that asks for batches of steps and is sent their results.

Nodes answer, datagrams pass, chunks are put and read on every path, each node casts to all others, each fills the
switch, each is served by it. A batch's steps run at the same time. Whatever happens, the chunks are dropped at the end.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from controlplane.core.examination.observations import NodeSeen, Observations
from controlplane.core.ids import ChunkKey, NodeIndex
from controlplane.core.locations import ip_text
from kvproto.probes import probe_key
from kvproto.rpc import control_pb2 as rpc

READ_BYTES: Final = 64 << 10
CAST_BYTES: Final = (1 << 20, 4 << 20, 16 << 20, 16 << 20, 16 << 20)
"""A cast needs readers that want the chunk at the same time: on fast links only a large one takes that long, and on
busy machines not each time."""
CAST_HOLDERS_MAX: Final = 16
LOOK_MS, STEP_MS, CAST_MS, FILL_NS = 2_000, 1_500, 4_000, 3_000_000_000
HEAR_MS: Final = 400
READ_BATCHES_FAILED_MAX: Final = 2
"""Where nothing can be read at all, more rounds would only take time."""
_UNREACHED: Final = "unavailable"
"""A reader's word for a chunk that it knows, of nodes that it could not reach."""
_ROUND, _CASTS_FROM, _FILLS_FROM = 10_000, 10_000_000, 90_000_000
"""Numbers of chunks: of reads in round k from k times the first, and so on; nodes' indexes are added."""


@dataclass(frozen=True, slots=True)
class Ask:
    """A step for an agent; its result is a TaskResult."""

    node: NodeIndex
    probe: rpc.Probe
    timeout_ms: int = STEP_MS


@dataclass(frozen=True, slots=True)
class FillSwitch:
    """Bring a chunk into the switch; its result is a TaskResult, too."""

    key: ChunkKey
    timeout_ns: int = FILL_NS


Step: TypeAlias = Ask | FillSwitch


@dataclass(frozen=True, slots=True)
class Batch:
    """Steps that run at the same time."""

    phase: str
    steps: tuple[Step, ...]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a step."""

    result: rpc.TaskResult
    took_ns: int
    """From the order to the result."""
    ended_ns: int

    @property
    def problem(self) -> str:
        """Empty: it was done."""
        if self.result.status == rpc.TaskResult.DONE:
            return ""
        return self.result.detail or rpc.TaskResult.Status.Name(self.result.status).lower()


Script: TypeAlias = Generator[Batch, list[Outcome], None]


@dataclass(frozen=True, slots=True)
class Subject:
    """A node to be examined."""

    index: NodeIndex
    name: str
    version: str
    data_ip: bytes
    free_bytes: int
    """Of its pool."""
    port_problem: Callable[[], str]
    """Why no cast reaches it at this moment, as far as the controller knows; empty: casts reach it."""


class Examination:
    """One run of the script; `observations` fills as it goes."""

    def __init__(self, number: int, subjects: Sequence[Subject], observations: Observations, began_ns: int) -> None:
        """`number`: names the chunks; `began_ns`: when `observations.surroundings.unix_ns` was the time."""
        self._number = number
        self._subjects = {subject.name: subject for subject in subjects}
        self._began_ns = began_ns
        self.observations = observations

    def script(self) -> Script:
        """The batches."""
        yield from self._look()
        self._subjects = {name: one for name, one in self._subjects.items() if name in self.observations.nodes}
        yield from self._datagrams()
        yield from self._reads()
        yield from self._casts()
        yield from self._switch()
        yield self._batch("dropping the chunks", {name: {"drop": rpc.ProbeDrop()} for name in self._subjects})

    # -- phases

    def _look(self) -> Script:
        seen = self.observations
        asked = {name: {"look": rpc.ProbeLook()} for name in self._subjects}
        outcomes = yield self._batch("nodes", asked, LOOK_MS)
        for (name, subject), outcome in zip(self._subjects.items(), outcomes, strict=True):
            if outcome.problem:
                seen.absent[name] = outcome.problem
                continue
            facts = outcome.result.probe.facts
            middle_ns = outcome.ended_ns - outcome.took_ns // 2
            seen.nodes[name] = NodeSeen(
                name,
                subject.index,
                subject.version,
                ip_text(subject.data_ip),
                outcome.took_ns,
                facts.unix_ns - (seen.surroundings.unix_ns + middle_ns - self._began_ns),
                facts,
            )

    def _datagrams(self) -> Script:
        seen = self.observations
        ears = [name for name, node in seen.nodes.items() if node.facts.hears]
        others = {name: [self._subjects[one].index for one in ears if one != name] for name in ears}
        if len(ears) < 2:
            return
        send = {
            name: {"send": rpc.ProbeSend(nodes=theirs, packet_bytes=seen.packet_bytes)}
            for name, theirs in others.items()
        }
        outcomes = yield self._batch("datagrams", send)
        names = {self._subjects[name].index: name for name in ears}
        for name, outcome in zip(ears, outcomes, strict=True):
            for unsent in outcome.result.probe.unsent:
                seen.unsent[name, names[NodeIndex(unsent.node)]] = unsent.reason
        hear = {name: {"hear": rpc.ProbeHear(nodes=theirs, wait_ms=HEAR_MS)} for name, theirs in others.items()}
        outcomes = yield self._batch("datagrams", hear)
        for name, outcome in zip(ears, outcomes, strict=True):
            for heard in outcome.result.probe.heard:
                path = names[NodeIndex(heard.node)], name
                seen.small.note(path, "" if heard.small else "none came")
                seen.large.note(path, "" if heard.large else "none came")

    def _reads(self) -> Script:
        """In round k every node reads from the k-th after it what was put for this round: nobody else wants or has it,
        so it is neither cast nor read from a third node."""
        seen, names = self.observations, list(self._subjects)
        failed_count = 0
        for step in range(1, max(2, len(names))):
            numbers = {name: step * _ROUND + one.index for name, one in self._subjects.items()}
            puts = {name: {"put": rpc.ProbePut(number=numbers[name], size_bytes=READ_BYTES)} for name in names}
            outcomes = yield self._batch(f"reads, {step} of {len(names) - 1}", puts)
            for name, outcome in zip(names, outcomes, strict=True):
                seen.puts[name] = outcome.problem or seen.puts.get(name, "")
            pairs = [(names[(at + step) % len(names)], name) for at, name in enumerate(names)] if names[1:] else []
            pairs = [pair for pair in pairs if not seen.puts[pair[0]] and not self._is_hopeless(pair)]
            phase = f"reads, {step} of {len(names) - 1}"
            outcomes = yield self._read(phase, pairs, numbers)
            for pair, outcome in zip(pairs, outcomes, strict=True):
                seen.reads.note(pair, outcome.problem or _other_source(outcome, "holder"))
            # What a silent read owes is cast instead: a busy machine's once, a firewall's each time. A node that could
            # not be reached a while ago is asked for nothing, but this has it tried again.
            again = [
                pair
                for pair, outcome in zip(pairs, outcomes, strict=True)
                if outcome.problem == _UNREACHED or _other_source(outcome, "holder")
            ]
            if again:
                drops = {reader: {"drop": rpc.ProbeDrop(numbers=[numbers[holder]])} for holder, reader in again}
                yield self._batch(phase, drops)
                outcomes = yield self._read(phase, again, numbers)
                for pair, outcome in zip(again, outcomes, strict=True):
                    seen.reads.note(pair, outcome.problem or _other_source(outcome, "holder"))
            failed_count += bool(pairs) and not any(seen.reads.works(pair) for pair in pairs)
            if failed_count == READ_BATCHES_FAILED_MAX:
                seen.unfinished = "further reads, since none worked"
                return

    def _read(self, phase: str, pairs: list[tuple[str, str]], numbers: Mapping[str, int]) -> Batch:
        """Each of these readers (holder, reader) asks for its holder's chunk; no reader is named twice."""
        gets = {
            reader: {"get": rpc.ProbeGet(number=numbers[holder], size_bytes=READ_BYTES)} for holder, reader in pairs
        }
        return self._batch(phase, gets)

    def _is_hopeless(self, pair: tuple[str, str]) -> bool:
        """No datagram passes, and reads of one of the two have failed twice: more would only take time."""
        seen = self.observations
        failed = list(seen.reads.failed)
        return seen.is_cut(pair) and any(sum(node in path for path in failed) >= 2 for node in pair)

    def _casts(self) -> Script:
        """Where datagrams pass: what depends on them is broken elsewhere, and waiting for it would tell nothing."""
        seen = self.observations
        if seen.switch_state != "ready":
            return
        # By now every node has sent something that the switch can have seen.
        problems = {name: one.port_problem() for name, one in self._subjects.items()}
        seen.without_member = {name: problem for name, problem in problems.items() if problem}
        names = [name for name in self._subjects if not problems[name]]
        if len(names) < 3:
            return
        room_bytes = min(one.free_bytes for one in self._subjects.values()) // 4
        for attempt, size_bytes in enumerate(CAST_BYTES):
            if size_bytes > max(room_bytes, CAST_BYTES[0]):
                break
            for holder in names[:CAST_HOLDERS_MAX]:
                paths = [(holder, reader) for reader in names if reader != holder]
                paths = [path for path in paths if not seen.is_cut(path)]
                wanted = [
                    path
                    for path in paths
                    if path not in seen.casts.tried or (path in seen.came_otherwise and not seen.casts_pass(path))
                ]
                if not seen.puts[holder] and len(paths) > 1 and wanted:
                    yield from self._cast(holder, paths, attempt, size_bytes)

    def _cast(self, holder: str, paths: list[tuple[str, str]], attempt: int, size_bytes: int) -> Script:
        seen = self.observations
        number = _CASTS_FROM * (attempt + 1) + self._subjects[holder].index
        put = {holder: {"put": rpc.ProbePut(number=number, size_bytes=size_bytes)}}
        (outcome,) = yield self._batch("casts", put, CAST_MS)
        if outcome.problem:
            return
        gets = {reader: {"get": rpc.ProbeGet(number=number, size_bytes=size_bytes)} for _, reader in paths}
        outcomes = yield self._batch(f"casts of {holder}", gets, CAST_MS)
        for path, outcome in zip(paths, outcomes, strict=True):
            otherwise = _other_source(outcome, "cast", "switch")
            if not seen.casts.works(path):
                seen.casts.note(path, outcome.problem or otherwise)
                (seen.came_otherwise.add if otherwise else seen.came_otherwise.discard)(path)
        drops = {name: {"drop": rpc.ProbeDrop(numbers=[number])} for name in self._subjects}
        yield self._batch("casts", drops)

    def _switch(self) -> Script:
        seen = self.observations
        names = [name for name in self._subjects if name not in seen.without_member and not seen.puts.get(name, "-")]
        names = [name for name in names if not seen.is_cut_off(name)]
        if seen.switch_state != "ready" or not names:
            return
        numbers = {name: _FILLS_FROM + self._subjects[name].index for name in names}
        puts = {name: {"put": rpc.ProbePut(number=numbers[name], size_bytes=READ_BYTES)} for name in names}
        outcomes = yield self._batch("fills", puts)
        names = [name for name, outcome in zip(names, outcomes, strict=True) if not outcome.problem]
        fills = tuple(FillSwitch(probe_key(self._number, numbers[name])) for name in names)
        outcomes = yield Batch("fills", fills)
        for name, outcome in zip(names, outcomes, strict=True):
            if outcome.result.status == rpc.TaskResult.REFUSED:
                seen.no_room = outcome.problem
            else:
                seen.fills[name] = outcome.problem
        # From now on only the switch has them. What it serves bears the address of the node that filled it: a node may
        # not take packets with its own address, nor with one whose packets do not reach it.
        filled = [name for name in names if not seen.fills.get(name, "-")]
        yield self._batch("serving", {name: {"drop": rpc.ProbeDrop(numbers=[numbers[name]])} for name in filled})
        wanted = {}
        for reader in names:
            fillers = [name for name in filled if name != reader and not seen.is_cut((name, reader))]
            if fillers:
                wanted[reader] = numbers[fillers[(names.index(reader) + 1) % len(fillers)]]
        gets = {
            name: {"get": rpc.ProbeGet(number=number, size_bytes=READ_BYTES, from_switch=True)}
            for name, number in wanted.items()
        }
        outcomes = yield self._batch("serving", gets)
        for reader, outcome in zip(wanted, outcomes, strict=True):
            seen.serves[reader] = outcome.problem or _other_source(outcome, "switch")

    # -- inside

    def _batch(self, phase: str, steps: Mapping[str, Mapping[str, object]], timeout_ms: int = STEP_MS) -> Batch:
        """One step for each of these nodes, in this order."""
        asks = (
            Ask(self._subjects[name].index, rpc.Probe(examination=self._number, **step), timeout_ms)  # type: ignore[arg-type]
            for name, step in steps.items()
        )
        return Batch(phase, tuple(asks))


def _other_source(outcome: Outcome, *wanted: str) -> str:
    """By what other way than these a chunk came, in words; empty: by one of them, or not at all."""
    source = outcome.result.probe.source
    name = rpc.Source.Name(source).removeprefix("SOURCE_").lower() if source else ""
    return f"came by {_BY.get(name, name)}" if name and name not in wanted else ""


_BY: Final = {
    "holder": "reliable reads",
    "cast": "a cast",
    "switch": "the switch",
    "local": "itself",
    "disk": "the disk",
}
