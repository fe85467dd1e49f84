"""Steps of an examination, taken by real agents on loopback, ordered by a coordinator that follows a script."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from hostagent import limits
from kvproto.blocks import TRIAL
from kvproto.probes import PROBE_NAMESPACE, probe_bytes, probe_key
from kvproto.rpc import control_pb2 as pb
from tests.unit.hostagent.channel_script import Stage, delta, staged

EXAMINATION = 0x0123_4567_89AB_CDEF


@pytest.fixture
def stage() -> Iterator[Stage]:
    with staged() as found:
        yield found


def ordered(stage: Stage, node: str, number: int, timeout_ms: int = 5_000, **step: object) -> pb.TaskResult:
    """What a node says of a step."""
    probe = pb.Probe(examination=EXAMINATION, **step)  # type: ignore[arg-type]
    stage.script.say(node, pb.ToAgent(task=pb.Task(task=number, timeout_ms=timeout_ms, probe=probe)))
    result: pb.TaskResult = stage.script.hear(node, "task_result")
    assert result.task == number
    return result


def test_a_chunk_is_put_announced_and_dropped(stage: Stage) -> None:
    stage.made.add(controllers=[stage.address])
    stage.script.attach("n0", 0)
    stage.script.hear("n0", "announce")
    done = ordered(stage, "n0", 1, put=pb.ProbePut(number=3, size_bytes=70_000))
    assert done.status == pb.TaskResult.DONE, done
    announced = stage.script.hear("n0", "announce")
    assert [record.key for record in announced.added] == [probe_key(EXAMINATION, 3)]
    assert list(announced.namespaces) == [PROBE_NAMESPACE]
    with stage.made.client(0).fetch([probe_key(EXAMINATION, 3)], deadline_s=1) as got:
        assert bytes(got.views[0]) == probe_bytes(probe_key(EXAMINATION, 3), 70_000).tobytes()
    assert ordered(stage, "n0", 2, drop=pb.ProbeDrop()).status == pb.TaskResult.DONE
    assert list(stage.script.hear("n0", "announce").removed) == [probe_key(EXAMINATION, 3)]


def test_chunks_go_by_themselves(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "EXAMINATION_LIFETIME_S", 0.2)
    stage.made.add(controllers=[stage.address])
    stage.script.attach("n0", 0)
    assert ordered(stage, "n0", 1, put=pb.ProbePut(number=3, size_bytes=70_000)).status == pb.TaskResult.DONE
    stage.made.until(lambda: stage.made.agents[0].core.pool.usage().chunks_count == 0)


@pytest.mark.parametrize(
    ("step", "said"),
    [
        (
            {"put": pb.ProbePut(number=1, size_bytes=limits.EXAMINATION_CHUNK_BYTES_MAX + 1)},
            "no chunk of 16777217 bytes",
        ),
        ({"put": pb.ProbePut(number=1)}, "no chunk of 0 bytes"),
        ({"send": pb.ProbeSend(nodes=[0], packet_bytes=1 << 20)}, "no packet of 1048576 bytes"),
        ({"send": pb.ProbeSend(block=TRIAL + 1, packet_bytes=4220)}, "there is no block 129 of members"),
        ({"hear": pb.ProbeHear(wait_ms=10)}, "another examination has begun"),
        ({}, "this agent does not know the step: update it"),
        ({"get": pb.ProbeGet(number=9, size_bytes=100)}, "the directory here does not name the chunk"),
    ],
)
def test_what_is_refused(stage: Stage, step: dict[str, object], said: str) -> None:
    stage.made.add(controllers=[stage.address])
    stage.script.attach("n0", 0)
    result = ordered(stage, "n0", 1, timeout_ms=1000, **step)
    assert (result.status, result.detail) == (pb.TaskResult.FAILED, said)
    assert stage.made.agents[0].core.idle


def two_agents(stage: Stage) -> list[pb.Node]:
    """Attached, and as the directory names them."""
    nodes = []
    for number in range(2):
        stage.made.add(controllers=[stage.address])
        hello = stage.script.attach(f"n{number}", number)
        nodes.append(pb.Node(node=number, name=hello.node, data_ip=hello.data_ip, read_endpoint=hello.read_endpoint))
    return nodes


def test_datagrams_of_both_sizes_reach_a_node_of_the_directory(stage: Stage) -> None:
    nodes = two_agents(stage)
    for name in ("n0", "n1"):
        stage.script.say(name, delta(1, nodes=nodes))
    facts = ordered(stage, "n1", 1, look=pb.ProbeLook()).probe.facts
    assert facts.hears
    assert facts.unix_ns > 0
    sent = ordered(stage, "n0", 2, send=pb.ProbeSend(nodes=[1, 7], packet_bytes=4220)).probe
    assert [(unsent.node, unsent.reason) for unsent in sent.unsent] == [(7, "the directory does not know it")]
    heard = ordered(stage, "n1", 3, hear=pb.ProbeHear(nodes=[0], wait_ms=5_000)).probe.heard
    assert [(one.node, one.small > 0, one.large > 0) for one in heard] == [(0, True, True)]


def test_datagrams_to_a_group_are_heard_by_its_members_and_by_nobody_else(stage: Stage) -> None:
    nodes = two_agents(stage)
    for name in ("n0", "n1"):
        stage.script.say(name, delta(1, nodes=nodes))
    facts = ordered(stage, "n0", 1, look=pb.ProbeLook()).probe.facts
    assert not facts.watches, "no group was named"
    assert ordered(stage, "n1", 2, look=pb.ProbeLook(block=TRIAL)).probe.facts.watches
    sent = ordered(stage, "n0", 3, send=pb.ProbeSend(block=TRIAL, packet_bytes=4220)).probe
    assert not sent.unsent
    hear = pb.ProbeHear(nodes=[0], wait_ms=5_000, by_group=True)
    heard = ordered(stage, "n1", 4, hear=hear).probe.heard
    assert [(one.node, one.small > 0, one.large > 0) for one in heard] == [(0, True, True)]
    alone = ordered(stage, "n1", 5, hear=pb.ProbeHear(nodes=[0], wait_ms=50)).probe.heard
    assert [(one.small, one.large) for one in alone] == [(0, 0)], "those to the group were not to the node"
    assert not ordered(stage, "n1", 6, look=pb.ProbeLook(block=TRIAL, watches=True)).probe.facts.watches, "loopback"
    ordered(stage, "n0", 7, send=pb.ProbeSend(block=TRIAL, packet_bytes=4220))
    ordered(stage, "n1", 8, look=pb.ProbeLook())
    assert ordered(stage, "n1", 9, hear=pb.ProbeHear(nodes=[0], wait_ms=50, by_group=True)).probe.heard[0].small == 0


def test_a_get_reads_what_another_node_has_put(stage: Stage) -> None:
    nodes = two_agents(stage)
    stage.script.hear("n0", "announce")
    put = ordered(stage, "n0", 1, put=pb.ProbePut(number=0, size_bytes=70_000))
    assert put.status == pb.TaskResult.DONE
    (record,) = stage.script.hear("n0", "announce").added
    chunk = pb.ChunkEntry(key=record.key, size_bytes=record.size_bytes, digest=record.digest, holders=[0])
    stage.script.say("n1", delta(1, nodes=nodes, chunks=[chunk]))
    got = ordered(stage, "n1", 2, get=pb.ProbeGet(number=0, size_bytes=70_000))
    assert (got.status, got.probe.source) == (pb.TaskResult.DONE, pb.SOURCE_HOLDER), got
    assert ordered(stage, "n1", 3, drop=pb.ProbeDrop(numbers=[0])).status == pb.TaskResult.DONE
    assert stage.made.agents[1].core.idle
