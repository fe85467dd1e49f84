# ruff: noqa: E501 - messages in text form
"""The server over gRPC: pipeline configuration, error details, arbitration on real streams, packets, digests."""

from __future__ import annotations

import queue
import threading

import grpc
import pytest
from google.protobuf import text_format

from p4switch.proto import p4info_pb2 as p4i
from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.proto import status_pb2
from p4switch.server.limits import STREAMS_MAX
from p4switch.server.service import API_VERSION, P4RuntimeServer
from p4switch.server.target import DigestEvent, IdleEvent, PacketInEvent
from p4switch.server.target_pipeline import EntryHandle

OK, NOT_FOUND, EXISTS = 0, 5, 6


def insert(text: str, kind: str = "INSERT") -> p4r.Update:
    return text_format.Parse(f"type: {kind} entity {{ {text} }}", p4r.Update())


GROUP = insert(
    "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 replicas { egress_port: 1 } } }"
)
ACL = insert(
    'table_entry { table_id: 0x02000002 match { field_id: 1 exact { value: "\\006" } } priority: 2 '
    'idle_timeout_ns: 1000 metadata: "mine" action { action { action_id: 0x01000002 } } }'
)


def refused(call, *args, **kwargs) -> grpc.StatusCode:
    with pytest.raises(grpc.RpcError) as caught:
        call(*args, **kwargs)
    return caught.value.code()


def test_capabilities(client):
    assert client.capabilities(p4r.CapabilitiesRequest(), timeout=10).p4runtime_api_version == API_VERSION


def test_nothing_works_before_a_pipeline_is_set(client):
    client.stream(1)
    assert refused(client.write_as, 1, GROUP) is grpc.StatusCode.FAILED_PRECONDITION
    assert refused(client.read_all, p4r.Entity(table_entry=p4r.TableEntry())) is grpc.StatusCode.FAILED_PRECONDITION
    assert not client.get_pipeline(p4r.GetForwardingPipelineConfigRequest(device_id=1), timeout=10).HasField("config")


def test_pipeline_configuration_is_read_as_it_was_set(configured, config):
    query = p4r.GetForwardingPipelineConfigRequest
    get = lambda kind: configured.get_pipeline(query(device_id=1, response_type=kind), timeout=10).config  # noqa: E731
    assert get(query.ALL) == config
    assert get(query.COOKIE_ONLY) == p4r.ForwardingPipelineConfig(cookie=config.cookie)
    assert get(query.P4INFO_AND_COOKIE) == p4r.ForwardingPipelineConfig(cookie=config.cookie, p4info=config.p4info)
    assert get(query.DEVICE_CONFIG_AND_COOKIE).p4_device_config == config.p4_device_config
    assert refused(configured.get_pipeline, query(device_id=7), timeout=10) is grpc.StatusCode.NOT_FOUND


@pytest.mark.parametrize(
    ("action", "with_config", "code"),
    [
        ("UNSPECIFIED", True, grpc.StatusCode.INVALID_ARGUMENT),
        ("VERIFY", False, grpc.StatusCode.INVALID_ARGUMENT),
        ("VERIFY_AND_COMMIT", False, grpc.StatusCode.INVALID_ARGUMENT),
        ("COMMIT", False, grpc.StatusCode.NOT_FOUND),
        ("COMMIT", True, grpc.StatusCode.INVALID_ARGUMENT),
        ("RECONCILE_AND_COMMIT", False, grpc.StatusCode.INVALID_ARGUMENT),
    ],
)
def test_pipeline_actions_that_are_refused(client, config, action, with_config, code):
    client.stream(1)
    assert refused(client.configure, config if with_config else None, action=action) is code


def test_a_program_that_does_not_compile_is_refused_with_its_diagnostics(client):
    client.stream(1)
    with pytest.raises(grpc.RpcError) as caught:
        client.configure(p4r.ForwardingPipelineConfig(p4_device_config=b"nonsense {"))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "model.p4:1:1: error" in caught.value.details()


def test_long_diagnostics_are_cut_to_what_a_client_can_receive(client):
    client.stream(1)
    with pytest.raises(grpc.RpcError) as caught:
        client.configure(p4r.ForwardingPipelineConfig(p4_device_config=("é\n" * 10000 + "{").encode()))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "error" in caught.value.details()


def test_p4info_of_another_program_is_refused(client, config):
    client.stream(1)
    config.p4info.tables[0].preamble.name = "Ingress.other"
    with pytest.raises(grpc.RpcError, match=r"no table Ingress\.other"):
        client.configure(config)


def test_verify_changes_nothing_and_save_takes_effect_at_commit(configured, config, model_switch):
    configured.write_as(1, GROUP)
    before = model_switch.pipeline
    configured.configure(config, action="VERIFY")
    assert model_switch.pipeline is before
    assert len(configured.read_all(p4r.Entity(packet_replication_engine_entry={}))) == 1
    configured.configure(config, action="VERIFY_AND_SAVE")
    assert model_switch.pipeline is before, "packets still meet the old program"
    assert configured.read_all(p4r.Entity(packet_replication_engine_entry={})) == [], "clients see the new one"
    configured.write_as(1, ACL)
    configured.configure(None, action="COMMIT")
    assert model_switch.pipeline is not before
    assert len(model_switch.pipeline.tables[1]) == 1, "what was written to the saved program is there"
    assert refused(configured.configure, None, action="COMMIT") is grpc.StatusCode.NOT_FOUND


def test_commit_clears_and_reconcile_keeps_the_forwarding_state(configured, config, model_switch):
    updates = [
        GROUP,
        ACL,
        insert('table_entry { table_id: 0x02000001 match { field_id: 1 lpm { value: "\\012\\000\\000\\000" prefix_len: 8 } } '
               'action { action { action_id: 0x01000003 } } counter_data { packet_count: 5 } meter_config { cir: 1 pir: 2 } }'),
        insert('register_entry { register_id: 0x16000001 index { index: 2 } data { bitstring: "a" } }', "MODIFY"),
        insert("counter_entry { counter_id: 0x12000001 index { index: 2 } data { packet_count: 9 } }", "MODIFY"),
        insert("meter_entry { meter_id: 0x14000001 index { index: 2 } config { cir: 9 pir: 9 } }", "MODIFY"),
        insert('value_set_entry { value_set_id: 0x03000001 members { match { field_id: 1 exact { value: "a" } } } }', "MODIFY"),
        insert("digest_entry { digest_id: 0x17000001 config { max_list_size: 3 } }"),
        insert("table_entry { table_id: 0x02000005 is_default_action: true action { action { action_id: 0x01000002 } } }", "MODIFY"),
        insert("table_entry { table_id: 0x02000003 match { field_id: 1 exact { value: \"a\" } } action { action_profile_action_set { "
               "action_profile_actions { action { action_id: 0x01000002 } weight: 2 } } } }"),
    ]  # fmt: skip
    configured.write_as(1, *updates)
    before = model_switch.pipeline.snapshot()
    configured.configure(config, action="RECONCILE_AND_COMMIT")
    after = model_switch.pipeline
    assert after.snapshot() == before
    assert len(configured.read_all(p4r.Entity(digest_entry=p4r.DigestEntry()))) == 1
    configured.configure(config)
    assert configured.read_all(p4r.Entity(packet_replication_engine_entry={})) == []


def test_reconcile_that_cannot_keep_a_table_is_refused_and_changes_nothing(configured, config, model_switch, p4info):
    configured.write_as(1, ACL)
    smaller = p4i.P4Info()
    smaller.CopyFrom(p4info)
    del smaller.tables[1]
    config.p4info.CopyFrom(smaller)
    config.p4_device_config = text_format.MessageToString(smaller).encode()
    before = model_switch.pipeline
    assert refused(configured.configure, config, action="RECONCILE_AND_COMMIT") is grpc.StatusCode.INVALID_ARGUMENT
    assert model_switch.pipeline is before


def test_each_update_has_its_error_in_order(configured):
    with pytest.raises(grpc.RpcError) as caught:
        configured.write_as(1, GROUP, GROUP, insert("table_entry { table_id: 0x02000099 }"))
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    details = dict(caught.value.trailing_metadata())["grpc-status-details-bin"]
    status = status_pb2.Status.FromString(details)
    assert status.code == grpc.StatusCode.UNKNOWN.value[0]
    assert status.message == caught.value.details()
    errors = []
    for detail in status.details:
        error = p4r.Error()
        assert detail.Unpack(error)
        errors.append((error.canonical_code, bool(error.message)))
    assert errors == [(OK, False), (EXISTS, True), (3, True)]
    assert len(configured.read_all(p4r.Entity(packet_replication_engine_entry={}))) == 1


def test_a_read_returns_what_it_can_and_says_what_it_cannot(configured):
    configured.write_as(1, GROUP)
    good = p4r.Entity(packet_replication_engine_entry={})
    request = p4r.ReadRequest(device_id=1, entities=[good, p4r.Entity(), good])
    responses = configured.read(request, timeout=10)
    assert len(next(responses).entities) == 2
    with pytest.raises(grpc.RpcError) as caught:
        next(responses)
    assert caught.value.code() is grpc.StatusCode.UNKNOWN
    status = status_pb2.Status.FromString(dict(caught.value.trailing_metadata())["grpc-status-details-bin"])
    assert len(status.details) == 3


def test_large_reads_come_in_many_messages(configured):
    configured.write_as(1, insert('register_entry { register_id: 0x16000001 data { bitstring: "a" } }', "MODIFY"))
    queries = [p4r.Entity(register_entry=p4r.RegisterEntry(register_id=0x16000001))] * 100
    responses = list(configured.read(p4r.ReadRequest(device_id=1, entities=queries), timeout=10))
    assert sum(len(r.entities) for r in responses) == 3200
    assert len(responses) > 1


def test_only_the_primary_writes(configured):
    backup = configured.stream()
    assert backup.arbitrate(0).status.code == EXISTS
    assert refused(configured.write_as, 0, GROUP) is grpc.StatusCode.PERMISSION_DENIED
    assert refused(configured.write_as, 1, GROUP, role="unknown") is grpc.StatusCode.NOT_FOUND
    assert refused(configured.write, p4r.WriteRequest(device_id=9), timeout=10) is grpc.StatusCode.NOT_FOUND
    assert refused(configured.configure, None, election_id=0) is grpc.StatusCode.PERMISSION_DENIED


def test_a_new_primary_takes_over_and_the_old_one_hears_of_it(configured):
    other = configured.stream()
    answer = other.arbitrate(1 << 70)
    assert (answer.status.code, answer.election_id.high) == (OK, 1 << 6)
    assert configured.primary.receive().arbitration.status.code == EXISTS
    assert refused(configured.write_as, 1, GROUP) is grpc.StatusCode.PERMISSION_DENIED
    configured.write_as(1 << 70, GROUP)
    other.close()
    assert configured.primary.receive().arbitration.status.code == NOT_FOUND
    assert configured.primary.arbitrate(1 << 70).status.code == OK


def test_streams_that_break_the_rules_end_with_a_status(client):
    client.stream(5)
    for args, code in (
        ((5,), grpc.StatusCode.INVALID_ARGUMENT),
        ((6, "", 9), grpc.StatusCode.NOT_FOUND),
    ):
        with pytest.raises(grpc.RpcError) as caught:
            client.stream().arbitrate(*args)
        assert caught.value.code() is code
    moved = client.stream(7, "role")
    with pytest.raises(grpc.RpcError) as caught:
        moved.arbitrate(8, "other")
    assert caught.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def packet_out(*metadata: tuple[int, bytes]) -> p4r.PacketOut:
    items = [p4r.PacketMetadata(metadata_id=i, value=v) for i, v in metadata]
    return p4r.PacketOut(payload=b"frame", metadata=items)


def test_packet_out_carries_its_header(configured, model_switch):
    configured.primary.send(packet=packet_out((1, b"\x05"), (2, b"\0")))
    assert model_switch.target.sent.get(timeout=10) == bytes([0x02, 0x80]) + b"frame"


@pytest.mark.parametrize(
    "metadata",
    [
        [(1, b"\x05")],
        [(1, b"\x05"), (2, b"\0"), (3, b"\0")],
        [(1, b"\xff\xff"), (2, b"\0")],
        [(1, b"\x05"), (1, b"\x05")],
    ],
)
def test_packet_out_that_does_not_fit_p4info_is_answered_with_an_error(configured, model_switch, metadata):
    message = packet_out(*metadata)
    configured.primary.send(packet=message)
    error = configured.primary.receive().error
    assert error.canonical_code in (3, 11)
    assert error.packet_out.packet_out == message
    assert model_switch.target.sent.empty()


def test_only_the_primary_sends_packets(configured):
    backup = configured.stream(0)
    backup.send(packet=packet_out((1, b"\x05"), (2, b"\0")))
    assert backup.receive().error.canonical_code == grpc.StatusCode.PERMISSION_DENIED.value[0]


def test_packet_in_reaches_the_primary_with_its_metadata(configured, model_switch):
    model_switch.target.pending.put(PacketInEvent(bytes([0x81, 0x00]) + b"frame"))
    packet = configured.primary.receive().packet
    assert packet.payload == b"frame"
    assert [(m.metadata_id, m.value) for m in packet.metadata] == [(1, b"\x01\x02"), (2, b"\x00")]


def test_digests_come_in_lists_and_are_acknowledged(configured, model_switch):
    configured.write_as(
        1, insert("digest_entry { digest_id: 0x17000001 config { max_timeout_ns: 60000000000 max_list_size: 2 ack_timeout_ns: 60000000000 } }")
    )  # fmt: skip
    event = lambda mac: DigestEvent(model_switch.pipeline, 0, (mac, 3))  # noqa: E731
    for mac in (1, 1, 2):
        model_switch.target.pending.put(event(mac))
    first = configured.primary.receive().digest
    assert [[m.bitstring for m in d.struct.members] for d in first.data] == [[b"\x01", b"\x03"], [b"\x02", b"\x03"]]
    for mac in (1, 2, 3, 4):
        model_switch.target.pending.put(event(mac))
    second = configured.primary.receive().digest
    assert [d.struct.members[0].bitstring for d in second.data] == [b"\x03", b"\x04"]
    configured.primary.send(digest_ack=p4r.DigestListAck(digest_id=first.digest_id, list_id=first.list_id))
    configured.primary.send(digest_ack=p4r.DigestListAck(digest_id=5))
    assert configured.primary.receive().error.digest_list_ack.digest_list_ack.digest_id == 5
    for mac in (1, 2):
        model_switch.target.pending.put(event(mac))
    third = configured.primary.receive().digest
    assert [d.struct.members[0].bitstring for d in third.data] == [b"\x01", b"\x02"]


def test_a_digest_list_is_sent_when_its_time_has_come(configured, model_switch):
    configured.write_as(
        1, insert("digest_entry { digest_id: 0x17000001 config { max_timeout_ns: 1000000 max_list_size: 100 } }")
    )
    model_switch.target.pending.put(DigestEvent(model_switch.pipeline, 0, (1, 3)))
    assert len(configured.primary.receive().digest.data) == 1


def test_idle_entries_are_announced_with_their_key_and_metadata(configured, model_switch):
    configured.write_as(1, ACL)
    (handle,) = model_switch.pipeline.tables[1]
    model_switch.target.pending.put(IdleEvent(model_switch.pipeline, 1, EntryHandle(9999)))
    model_switch.target.pending.put(IdleEvent(model_switch.pipeline, 1, EntryHandle(handle)))
    (entry,) = configured.primary.receive().idle_timeout_notification.table_entry
    assert (entry.table_id, entry.priority, entry.metadata, entry.idle_timeout_ns) == (0x02000002, 2, b"mine", 1000)


@pytest.mark.parametrize(
    "method", ["Write", "Read", "SetForwardingPipelineConfig", "GetForwardingPipelineConfig", "Capabilities"]
)
def test_what_is_no_message_is_an_invalid_argument(model_switch, method):
    with grpc.insecure_channel(model_switch.address) as channel:
        call = channel.unary_unary(f"/p4.v1.P4Runtime/{method}")
        assert refused(call, b"\xff\xff\xff garbage", timeout=10) is grpc.StatusCode.INVALID_ARGUMENT


def test_garbage_ends_its_stream_and_no_other(model_switch, configured):
    with grpc.insecure_channel(model_switch.address) as channel:
        call = channel.stream_stream("/p4.v1.P4Runtime/StreamChannel")
        with pytest.raises(grpc.RpcError) as caught:
            next(call(iter([b"\xff\xff\xff garbage"]), timeout=10))
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    configured.write_as(1, GROUP)


def test_streams_are_limited_and_unary_calls_still_answered(client):
    streams = [client.stream() for _ in range(STREAMS_MAX)]
    for number, stream in enumerate(streams):
        stream.arbitrate(number)
    with pytest.raises(grpc.RpcError) as caught:
        client.stream().arbitrate(1000)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert client.capabilities(p4r.CapabilitiesRequest(), timeout=10)


def test_many_clients_at_once(configured, model_switch):
    """Writers, readers and newcomers from many threads: every call is answered, and nothing is left half done."""
    errors: list[BaseException] = []

    def hammer(number: int) -> None:
        try:
            for n in range(20):
                group = number * 100 + n + 1
                text = f"packet_replication_engine_entry {{ multicast_group_entry {{ multicast_group_id: {group} }} }}"
                configured.write_as(1, insert(text))
                configured.read_all(p4r.Entity(packet_replication_engine_entry={}))
                configured.write_as(1, insert(text, "DELETE"))
        except (grpc.RpcError, AssertionError) as error:
            errors.append(error)

    threads = [threading.Thread(target=hammer, args=(n,)) for n in range(6)]
    for thread in threads:
        thread.start()
    for number in range(5):
        configured.stream(0 if number else None).close()
    for thread in threads:
        thread.join(timeout=60)
    assert not errors
    assert model_switch.pipeline.multicast == {}


def test_a_server_that_stops_ends_its_streams(device):
    with P4RuntimeServer(device, "127.0.0.1:0") as server, grpc.insecure_channel(server.address) as channel:
        requests: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        update = p4r.StreamMessageRequest()
        update.arbitration.device_id = 1
        requests.put(update.SerializeToString())
        call = channel.stream_stream("/p4.v1.P4Runtime/StreamChannel")(iter(requests.get, None))
        next(call)
        server.stop()
        with pytest.raises(grpc.RpcError):
            next(call)
        requests.put(None)


def test_errors_of_a_large_batch_reach_a_client_with_default_limits(configured):
    """Texts are left out before the whole status is lost; then the summary must do."""

    def errors(size: int) -> tuple[grpc.RpcError, list[p4r.Error]]:
        with pytest.raises(grpc.RpcError) as caught:
            configured.write_as(1, *[insert("table_entry { table_id: 0x02000099 }")] * size)
        status = status_pb2.Status.FromString(
            dict(caught.value.trailing_metadata()).get("grpc-status-details-bin", b"")
        )
        unpacked = []
        for detail in status.details:
            unpacked.append(p4r.Error())
            assert detail.Unpack(unpacked[-1])
        return caught.value, unpacked

    for size, has_text in ((50, True), (150, False)):
        error, details = errors(size)
        assert error.code() is grpc.StatusCode.UNKNOWN
        assert [(e.canonical_code, bool(e.message)) for e in details] == [(3, has_text)] * size
    error, details = errors(3000)
    assert error.code() is grpc.StatusCode.UNKNOWN
    assert details == []
    assert "3000 of 3000" in error.details()
    assert "no table" in error.details()
