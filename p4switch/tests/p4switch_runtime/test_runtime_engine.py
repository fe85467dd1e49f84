"""The traffic manager does with packets what bmv2's simple_switch does for v1model."""

from __future__ import annotations

import pytest

from p4switch.runtime import DigestEvent, LogEvent, PacketInEvent, Pipeline, Program, Status, Switch, SwitchConfig
from p4switch.values import ActionCall, Replica
from p4switch_runtime.runtime_frames import Op, command, ethernet, mac, reply


def group(pipeline: Pipeline, number: int, *replicas: tuple[int, int]) -> None:
    batch = pipeline.batch()
    batch.set_multicast_group(number, [Replica(*replica) for replica in replicas])
    assert batch.commit()[0].status is Status.OK


def session(pipeline: Pipeline, number: int, *replicas: tuple[int, int], truncate_bytes: int = 0) -> None:
    batch = pipeline.batch()
    batch.set_clone_session(number, [Replica(*replica) for replica in replicas], truncate_bytes)
    assert batch.commit()[0].status is Status.OK


def sent(switch: Switch, port: int, frame: bytes) -> list[tuple[int, bytes]]:
    switch.inject(port, frame)
    switch.step()
    return switch.collect()


def test_unicast_leaves_a_frame_as_it_was(switch: Switch, pipeline: Pipeline) -> None:
    frame = command(Op.FORWARD, 3, payload=b"p" * 1000)
    assert sent(switch, 1, frame) == [(3, frame)]


@pytest.mark.parametrize("payload_bytes", [0, 1, 30, 100, 4096, 9000, 65000])
def test_payloads_of_any_length_pass(switch: Switch, pipeline: Pipeline, payload_bytes: int) -> None:
    frame = command(Op.FORWARD, 3, payload=bytes(range(256)) * 254)[: 30 + payload_bytes]
    assert sent(switch, 1, frame) == [(3, frame)]


def test_a_packet_to_the_drop_port_is_dropped_and_counted(switch: Switch, pipeline: Pipeline) -> None:
    assert sent(switch, 1, command(Op.DROP)) == []
    assert switch.stats().dropped_ingress == 1


def test_a_packet_to_a_port_that_is_not_there_is_counted(switch: Switch, pipeline: Pipeline) -> None:
    assert sent(switch, 1, command(Op.FORWARD, 77)) == []
    assert switch.stats().no_port == 1


def test_multicast_beats_egress_spec(switch: Switch, pipeline: Pipeline) -> None:
    group(pipeline, 5, (2, 0), (3, 7))
    frame = command(Op.MULTICAST, 5, 8)
    assert sent(switch, 1, frame) == [(2, frame), (3, frame)]


def test_a_missing_group_drops(switch: Switch, pipeline: Pipeline) -> None:
    assert sent(switch, 1, command(Op.MULTICAST, 6, 8)) == []
    assert switch.stats().no_group == 1


def test_one_port_may_get_several_copies(switch: Switch, pipeline: Pipeline) -> None:
    group(pipeline, 5, (2, 1), (2, 2), (2, 3))
    assert [port for port, _ in sent(switch, 1, command(Op.MULTICAST, 5))] == [2, 2, 2]


def test_egress_prunes_copies_by_rid(switch: Switch, pipeline: Pipeline) -> None:
    group(pipeline, 5, (2, 1), (3, 2), (4, 3))
    frame = command(Op.EGRESS_DROP, 5, 2)
    assert sent(switch, 1, frame) == [(2, frame), (4, frame)]
    assert switch.stats().dropped_egress == 1


def test_a_copy_that_egress_changes_leaves_the_others_alone(switch: Switch, pipeline: Pipeline) -> None:
    group(pipeline, 5, (2, 1), (3, 2), (4, 3), (5, 4))
    copies = sent(switch, 1, command(Op.EGRESS_WRITE, 5))
    assert [(port, reply(frame).c) for port, frame in copies] == [(2, 2), (3, 0), (4, 4), (5, 0)]


def test_an_ingress_clone_is_the_packet_as_it_arrived(switch: Switch, pipeline: Pipeline) -> None:
    session(pipeline, 9, (4, 1))
    frames = dict(sent(switch, 1, command(Op.CLONE_I2E, 9, 3, value=0x1234)))
    assert reply(frames[3]).value == 0xFFFF_FFFF_FFFF_EDCB  # ingress wrote ~value
    clone = reply(frames[4])
    assert (clone.c, clone.value, clone.payload) == (1, 0x1234, b"payload")


def test_a_clone_keeps_only_the_metadata_of_its_field_list(switch: Switch, pipeline: Pipeline) -> None:
    session(pipeline, 9, (4, 1))
    kept = dict(sent(switch, 1, command(Op.CLONE_I2E, 9, 3, value=0x55, keep=1)))[4]
    lost = dict(sent(switch, 1, command(Op.CLONE_I2E, 9, 3, value=0x55, keep=2)))[4]
    assert reply(kept).value == 0x55
    assert reply(lost).value == 0


def test_a_clone_of_a_dropped_or_missing_session_leaves_the_packet(switch: Switch, pipeline: Pipeline) -> None:
    assert [port for port, _ in sent(switch, 1, command(Op.CLONE_I2E, 9, 3))] == [3]
    assert switch.stats().no_session == 1


def test_a_clone_session_truncates_and_replicates(switch: Switch, pipeline: Pipeline) -> None:
    session(pipeline, 9, (4, 1), (5, 2), truncate_bytes=32)
    frames = sent(switch, 1, command(Op.CLONE_I2E, 9, 3, payload=b"abcdef"))
    assert sorted((port, len(frame)) for port, frame in frames) == [(3, 36), (4, 32), (5, 32)]


def test_an_egress_clone_sees_what_egress_left(switch: Switch, pipeline: Pipeline) -> None:
    session(pipeline, 9, (4, 1))
    frames = dict(sent(switch, 1, command(Op.CLONE_E2E, 9, 3, value=0x77, keep=1)))
    assert reply(frames[3]).value == 0x77
    assert (reply(frames[4]).c, reply(frames[4]).value) == (2, 0x77)


def test_an_egress_clone_of_every_copy(switch: Switch, pipeline: Pipeline) -> None:
    session(pipeline, 9, (8, 1))
    frames = sent(switch, 1, command(Op.CLONE_E2E, 9, 3, payload=b"z" * 2000))
    assert sorted(port for port, _ in frames) == [3, 8]
    assert all(reply(frame).payload == b"z" * 2000 for _, frame in frames)


def test_endless_cloning_ends(switch: Switch, pipeline: Pipeline) -> None:
    session(pipeline, 9, (4, 1))
    frames = sent(switch, 1, command(Op.CLONE_LOOP, 9, 3))
    assert len(frames) == 9
    assert switch.stats().clone_too_deep == 1


def test_resubmit_starts_over_with_the_original(switch: Switch, pipeline: Pipeline) -> None:
    [(port, frame)] = sent(switch, 6, command(Op.RESUBMIT, 3, value=0x99, keep=1))
    assert (port, reply(frame).value, reply(frame).c) == (3, 0x99, 6)
    [(_, forgot)] = sent(switch, 6, command(Op.RESUBMIT, 3, value=0x99))
    assert reply(forgot).value == 0
    assert switch.stats().resubmitted == 2


def test_recirculation_goes_round_as_often_as_asked(switch: Switch, pipeline: Pipeline) -> None:
    [(port, frame)] = sent(switch, 1, command(Op.RECIRCULATE, 5, 3, value=7, keep=1, payload=b"q" * 4096))
    assert (port, reply(frame).a, reply(frame).value) == (3, 0, 7)
    assert reply(frame).payload == b"q" * 4096
    assert switch.stats().recirculated == 5


def test_endless_recirculation_does_not_stop_others(switch: Switch, pipeline: Pipeline) -> None:
    switch.inject(1, command(Op.RECIRCULATE, 65535, 3))
    switch.inject(1, command(Op.FORWARD, 4))
    assert [port for port, _ in switch.collect()] == [4]


def test_the_recirculation_queue_is_bounded(switch: Switch, pipeline: Pipeline) -> None:
    group(pipeline, 5, *((2, rid) for rid in range(1, 3001)))
    batch = pipeline.batch()
    batch.set_clone_session(9, [Replica(2, 1)])
    batch.commit()
    for _ in range(1500):
        switch.inject(1, command(Op.RECIRCULATE, 65535, 3))
    assert switch.stats().queue_full > 0


def test_truncate_cuts_headers_and_payload(switch: Switch, pipeline: Pipeline) -> None:
    [(_, frame)] = sent(switch, 1, command(Op.TRUNCATE, 33, 2, payload=b"abcdef"))
    assert frame[30:] == b"abc"
    [(_, short)] = sent(switch, 1, command(Op.TRUNCATE, 10, 2))
    assert len(short) == 10
    [(_, whole)] = sent(switch, 1, command(Op.TRUNCATE, 1000, 2))
    assert len(whole) == 37


def test_a_removed_header_is_gone(switch: Switch, pipeline: Pipeline) -> None:
    [(_, frame)] = sent(switch, 1, command(Op.REMOVE, 2, payload=b"rest"))
    assert frame[14:] == b"rest"


def test_a_parser_error_lets_the_packet_go_on(switch: Switch, pipeline: Pipeline) -> None:
    assert sent(switch, 1, b"short") == []  # the table of MACs drops what it does not know
    assert switch.stats().parser_errors == 1


def test_digests_arrive_with_their_values(switch: Switch, pipeline: Pipeline) -> None:
    sent(switch, 1, command(Op.DIGEST, 0xABCD, 2, value=1 << 63))
    [event] = switch.events(0)
    assert isinstance(event, DigestEvent)
    assert event.pipeline is pipeline
    assert (event.digest, event.values) == (0, (1 << 63, 0xABCD))


def test_a_flood_of_digests_is_bounded_and_counted(switch: Switch, pipeline: Pipeline) -> None:
    for number in range(40000):
        switch.inject(1, command(Op.DIGEST, 1, 2, value=number))
    stats = switch.stats()
    assert stats.digests + stats.digests_dropped == 40000
    assert stats.digests_dropped > 0
    seen: list[int] = []
    while events := switch.events(0):
        seen += [event.values[0] for event in events if isinstance(event, DigestEvent)]
    assert seen == list(range(stats.digests))


def test_packet_in_and_packet_out(switch: Switch, pipeline: Pipeline) -> None:
    frame = command(Op.FORWARD, 255, payload=b"to the controller")
    assert sent(switch, 1, frame) == []
    assert switch.events(0) == [PacketInEvent(frame)]
    switch.packet_out(command(Op.FORWARD, 2))
    assert [port for port, _ in switch.collect()] == [2]


def test_log_messages_reach_the_log(switch: Switch, pipeline: Pipeline) -> None:
    sent(switch, 1, command(Op.LOG, 2))
    assert switch.events(0) == [LogEvent("hello", False)]


def test_trace_tells_a_packets_way(switch: Switch, pipeline: Pipeline) -> None:
    switch.set_trace(True)
    sent(switch, 1, command(Op.FORWARD, 2))
    lines = [event.text for event in switch.events(0) if isinstance(event, LogEvent) and event.trace]
    assert lines == ["port 1: received, 37 bytes", "port 2: sent, 37 bytes"]


def test_random_numbers_repeat_with_the_seed(exerciser: Program) -> None:
    def draw(seed: int) -> list[int]:
        with Switch(SwitchConfig(virtual_clock=True, seed=seed)) as made:
            made.add_memory(1)
            made.commit(made.prepare(exerciser))
            for _ in range(100):
                made.inject(1, command(Op.RANDOM, 1, value=5))
            return [reply(frame).value for _, frame in made.collect()]

    assert draw(3) == draw(3)
    assert draw(3) != draw(4)
    assert set(draw(3)) == set(range(6))


def test_without_a_pipeline_packets_are_dropped(switch: Switch) -> None:
    assert sent(switch, 1, command(Op.FORWARD, 2)) == []
    assert switch.stats().no_pipeline == 1


def test_a_committed_pipeline_replaces_the_other(switch: Switch, pipeline: Pipeline, l2_program: Program) -> None:
    other = switch.prepare(l2_program)
    batch = other.batch()
    batch.insert(0, [(int.from_bytes(mac(1), "big"), 0)], ActionCall(0, (6,)))
    batch.commit()
    assert [port for port, _ in sent(switch, 1, command(Op.FORWARD, 3))] == [3]
    switch.inject(1, command(Op.RECIRCULATE, 65535, 3))
    switch.commit(other)
    assert [port for port, _ in sent(switch, 1, command(Op.FORWARD, 3))] == [6]
    assert switch.pipeline is other


def test_l2_floods_what_it_does_not_know(switch: Switch, l2_program: Program) -> None:
    pipeline = switch.prepare(l2_program)
    batch = pipeline.batch()
    batch.set_multicast_group(1, [Replica(port, 1) for port in range(1, 9)])
    batch.insert(0, [(int.from_bytes(mac(7), "big"), 0)], ActionCall(0, (7,)))
    batch.commit()
    switch.commit(pipeline)
    assert [port for port, _ in sent(switch, 1, ethernet(7))] == [7]
    assert [port for port, _ in sent(switch, 1, ethernet(8))] == [2, 3, 4, 5, 6, 7, 8]
