# ruff: noqa: E501, ISC004 - tables of cases read better on one line each
"""Updates and queries, each with the code that the specification gives it."""

from __future__ import annotations

import copy

import pytest
from google.protobuf import text_format

from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.status import Code, StatusError
from p4switch.values import WeightedMember

OK, INVALID, NOT_FOUND, EXISTS = Code.OK, Code.INVALID_ARGUMENT, Code.NOT_FOUND, Code.ALREADY_EXISTS
DENIED, FULL, RANGE, UNIMPLEMENTED = (
    Code.PERMISSION_DENIED,
    Code.RESOURCE_EXHAUSTED,
    Code.OUT_OF_RANGE,
    Code.UNIMPLEMENTED,
)

IPV4, ACL, ECMP, FIXED, SETTINGS = 0x02000001, 0x02000002, 0x02000003, 0x02000004, 0x02000005
FORWARD = 'action { action_id: 0x01000001 params { param_id: 1 value: "\\001" } params { param_id: 2 value: "\\252" } }'
DROP = "action { action_id: 0x01000002 }"
PREFIX = 'match { field_id: 1 lpm { value: "\\012\\000\\000\\000" prefix_len: 8 } }'
ACL_KEY = 'match { field_id: 1 exact { value: "\\006" } } match { field_id: 3 range { low: "\\001" high: "\\005" } }'


def entry(text: str) -> str:
    return f"table_entry {{ {text} }}"


def ipv4(more: str = f"action {{ {FORWARD} }}", match: str = PREFIX) -> str:
    return entry(f"table_id: {IPV4} {match} {more}")


def acl(more: str = f"priority: 3 action {{ {DROP} }}", key: str = ACL_KEY) -> str:
    return entry(f"table_id: {ACL} {key} {more}")


def update(step: str) -> p4r.Update:
    kind, _, text = step.partition(" ")
    return text_format.Parse(f"type: {kind} entity {{ {text} }}", p4r.Update())


def write(state, *steps: str, atomicity: int = p4r.WriteRequest.CONTINUE_ON_ERROR) -> list[Code]:
    outcomes = state.write([update(s) for s in steps], atomicity)
    return [Code.OK if o is None else o.code for o in outcomes]


def read(state, text: str) -> list[p4r.Entity]:
    return list(state.read(text_format.Parse(text, p4r.Entity())))


# name -> steps with the code of each
CASES = {
    "insert, duplicate, modify, delete, delete again": [
        ("INSERT " + ipv4(), OK),
        ("INSERT " + ipv4(), EXISTS),
        ("MODIFY " + ipv4(), OK),
        ("DELETE " + ipv4(""), OK),
        ("DELETE " + ipv4(""), NOT_FOUND),
        ("MODIFY " + ipv4(), NOT_FOUND),
    ],
    "an unspecified type": [("UNSPECIFIED " + ipv4(), INVALID)],
    "no entity": [("INSERT ", INVALID)],
    "an unknown table": [("INSERT " + entry(f"table_id: 0x02ffffff {PREFIX}"), INVALID)],
    "no action": [("INSERT " + ipv4(""), INVALID)],
    "an empty action": [("INSERT " + ipv4("action { }"), INVALID)],
    "an action of no table": [("INSERT " + ipv4("action { action { action_id: 0x01ffffff } }"), INVALID)],
    "an action for default entries": [("INSERT " + ipv4(f"action {{ {DROP} }}"), DENIED)],
    "an action for table entries as default": [
        ("MODIFY " + ipv4("is_default_action: true action { action { action_id: 0x01000003 } }", match=""), DENIED)
    ],
    "a parameter missing": [
        ("INSERT " + ipv4('action { action { action_id: 0x01000001 params { param_id: 1 value: "\\001" } } }'), INVALID)
    ],
    "a parameter too many": [
        ("INSERT " + ipv4('action { action { action_id: 0x01000002 params { param_id: 1 value: "\\001" } } }'), DENIED),
        (
            "INSERT "
            + acl('priority: 1 action { action { action_id: 0x01000002 params { param_id: 1 value: "a" } } }'),
            INVALID,
        ),
    ],
    "a parameter that does not fit": [
        (
            "INSERT "
            + ipv4(
                'action { action { action_id: 0x01000001 params { param_id: 1 value: "\\002\\000" } '
                'params { param_id: 2 value: "\\001" } } }'
            ),
            RANGE,
        )
    ],
    "a member for a direct table": [("INSERT " + ipv4("action { action_profile_member_id: 1 }"), INVALID)],
    "prefix length 0": [("INSERT " + ipv4(match='match { field_id: 1 lpm { value: "\\000" } }'), INVALID)],
    "prefix length beyond the field": [
        ("INSERT " + ipv4(match='match { field_id: 1 lpm { value: "\\001" prefix_len: 33 } }'), INVALID)
    ],
    "bits beyond the prefix": [
        ("INSERT " + ipv4(match='match { field_id: 1 lpm { value: "\\012\\000\\000\\001" prefix_len: 8 } }'), INVALID)
    ],
    "a value wider than the field": [
        (
            "INSERT " + ipv4(match='match { field_id: 1 lpm { value: "\\001\\000\\000\\000\\000" prefix_len: 8 } }'),
            RANGE,
        )
    ],
    "an empty value": [("INSERT " + ipv4(match='match { field_id: 1 lpm { value: "" prefix_len: 8 } }'), RANGE)],
    "a field twice": [("INSERT " + ipv4(match=PREFIX + PREFIX), INVALID)],
    "an unknown field": [("INSERT " + ipv4(match='match { field_id: 9 exact { value: "\\001" } }'), INVALID)],
    "the wrong match kind": [("INSERT " + ipv4(match='match { field_id: 1 exact { value: "\\001" } }'), INVALID)],
    "no match matches anything": [("INSERT " + ipv4(match=""), OK), ("INSERT " + ipv4(match=""), EXISTS)],
    "a priority where there is none": [("INSERT " + ipv4(f"priority: 1 action {{ {FORWARD} }}"), INVALID)],
    "no priority where there must be one": [("INSERT " + acl(f"action {{ {DROP} }}"), INVALID)],
    "entries that differ in priority only": [
        ("INSERT " + acl(), OK),
        ("INSERT " + acl(f"priority: 4 action {{ {DROP} }}"), OK),
        ("DELETE " + acl("priority: 5"), NOT_FOUND),
        ("DELETE " + acl("priority: 4"), OK),
    ],
    "an exact field left out": [
        ("INSERT " + acl(key='match { field_id: 2 ternary { value: "a" mask: "a" } }'), INVALID)
    ],
    "a mask of zero": [
        ("INSERT " + acl(key=ACL_KEY + 'match { field_id: 2 ternary { value: "\\000" mask: "\\000" } }'), INVALID)
    ],
    "bits outside the mask": [
        ("INSERT " + acl(key=ACL_KEY + 'match { field_id: 2 ternary { value: "\\003" mask: "\\001" } }'), INVALID)
    ],
    "a range upside down": [
        (
            "INSERT "
            + acl(
                key='match { field_id: 1 exact { value: "a" } } match { field_id: 3 range { low: "\\005" high: "\\001" } }'
            ),
            INVALID,
        )
    ],
    "a range over everything": [
        (
            "INSERT "
            + acl(
                key='match { field_id: 1 exact { value: "a" } } '
                'match { field_id: 3 range { low: "\\000" high: "\\377\\377" } }'
            ),
            INVALID,
        )
    ],
    "a table that is full": [
        *[
            (
                "INSERT "
                + ipv4(match=f'match {{ field_id: 1 lpm {{ value: "\\00{i}\\000\\000\\000" prefix_len: 8 }} }}'),
                OK,
            )
            for i in range(8)
        ],
        ("INSERT " + ipv4(), FULL),
    ],
    "a constant table": [
        (
            f'INSERT table_entry {{ table_id: {FIXED} match {{ field_id: 1 exact {{ value: "a" }} }} action {{ {DROP} }} }}',
            DENIED,
        ),
        (f'DELETE table_entry {{ table_id: {FIXED} match {{ field_id: 1 exact {{ value: "\\006" }} }} }}', DENIED),
        (
            f'MODIFY table_entry {{ table_id: {FIXED} match {{ field_id: 1 exact {{ value: "\\006" }} }} action {{ {DROP} }} }}',
            DENIED,
        ),
        (f'MODIFY table_entry {{ table_id: {FIXED} match {{ field_id: 1 exact {{ value: "\\006" }} }} }}', OK),
        (f"MODIFY table_entry {{ table_id: {FIXED} is_default_action: true action {{ {DROP} }} }}", DENIED),
    ],
    "is_const is not for writing": [
        ("INSERT " + ipv4(f"is_const: true action {{ {FORWARD} }}"), INVALID),
        ("INSERT " + ipv4(), OK),
        ("DELETE " + ipv4("is_const: true"), INVALID),
    ],
    "a table without a key": [
        (f"INSERT table_entry {{ table_id: {SETTINGS} action {{ {DROP} }} }}", INVALID),
        (f"MODIFY table_entry {{ table_id: {SETTINGS} is_default_action: true action {{ {FORWARD} }} }}", OK),
    ],
    "the default entry": [
        ("INSERT " + ipv4(f"is_default_action: true action {{ {DROP} }}", match=""), INVALID),
        ("DELETE " + ipv4("is_default_action: true", match=""), INVALID),
        ("MODIFY " + ipv4(f"is_default_action: true action {{ {DROP} }}"), INVALID),
        ("MODIFY " + ipv4(f"is_default_action: true priority: 1 action {{ {DROP} }}", match=""), INVALID),
        ("MODIFY " + ipv4(f"is_default_action: true idle_timeout_ns: 1 action {{ {DROP} }}", match=""), INVALID),
        ("MODIFY " + ipv4(f"is_default_action: true action {{ {FORWARD} }}", match=""), OK),
        ("MODIFY " + ipv4("is_default_action: true", match=""), OK),
        (f"MODIFY table_entry {{ table_id: {ECMP} is_default_action: true action {{ {DROP} }} }}", DENIED),
    ],
    "idle timeouts where there are none": [
        ("INSERT " + ipv4(f"idle_timeout_ns: 5 action {{ {FORWARD} }}"), INVALID),
        ("INSERT " + ipv4(f"time_since_last_hit {{ }} action {{ {FORWARD} }}"), INVALID),
        ("INSERT " + acl(f"priority: 1 idle_timeout_ns: 5 action {{ {DROP} }}"), OK),
    ],
    "direct resources where there are none": [
        ("INSERT " + acl(f"priority: 1 counter_data {{ }} action {{ {DROP} }}"), INVALID),
        ("INSERT " + acl(f"priority: 1 meter_config {{ }} action {{ {DROP} }}"), INVALID),
        ("INSERT " + acl(f"priority: 1 meter_counter_data {{ }} action {{ {DROP} }}"), INVALID),
        ("INSERT " + ipv4(f"meter_counter_data {{ red {{ byte_count: 1 }} }} action {{ {FORWARD} }}"), INVALID),
        ("INSERT " + ipv4(f"meter_counter_data {{ }} action {{ {FORWARD} }}"), OK),
    ],
    "a meter whose peak is below its committed rate": [
        ("INSERT " + ipv4(f"meter_config {{ cir: 2 pir: 1 }} action {{ {FORWARD} }}"), INVALID)
    ],
    "direct counters": [
        (
            f"MODIFY direct_counter_entry {{ table_entry {{ table_id: {IPV4} {PREFIX} }} data {{ packet_count: 1 }} }}",
            NOT_FOUND,
        ),
        ("INSERT " + ipv4(), OK),
        (
            f"MODIFY direct_counter_entry {{ table_entry {{ table_id: {IPV4} {PREFIX} }} data {{ packet_count: 1 }} }}",
            OK,
        ),
        (f"INSERT direct_counter_entry {{ table_entry {{ table_id: {IPV4} {PREFIX} }} }}", INVALID),
        (f"MODIFY direct_counter_entry {{ table_entry {{ table_id: {ACL} {ACL_KEY} priority: 1 }} }}", INVALID),
        (
            f"MODIFY direct_counter_entry {{ table_entry {{ table_id: {IPV4} {PREFIX} }} data {{ packet_count: -1 }} }}",
            INVALID,
        ),
    ],
    "direct meters": [
        ("INSERT " + ipv4(), OK),
        (f"MODIFY direct_meter_entry {{ table_entry {{ table_id: {IPV4} {PREFIX} }} config {{ cir: 1 pir: 2 }} }}", OK),
        (f"MODIFY direct_meter_entry {{ table_entry {{ table_id: {IPV4} {PREFIX} }} counter_data {{ }} }}", OK),
        (f"DELETE direct_meter_entry {{ table_entry {{ table_id: {IPV4} {PREFIX} }} }}", INVALID),
    ],
    "counters": [
        ("MODIFY counter_entry { counter_id: 0x12000001 index { index: 15 } data { packet_count: 3 } }", OK),
        ("MODIFY counter_entry { counter_id: 0x12000001 index { index: 16 } data { packet_count: 3 } }", RANGE),
        ("MODIFY counter_entry { counter_id: 0x12000001 index { index: -1 } data { packet_count: 3 } }", INVALID),
        ("MODIFY counter_entry { counter_id: 0x12000001 data { packet_count: 3 } }", OK),
        ("INSERT counter_entry { counter_id: 0x12000001 index { index: 1 } }", INVALID),
        ("MODIFY counter_entry { counter_id: 0x12ffffff index { index: 1 } }", INVALID),
    ],
    "meters": [
        (
            "MODIFY meter_entry { meter_id: 0x14000001 index { index: 3 } config { cir: 1 cburst: 2 pir: 3 pburst: 4 } }",
            OK,
        ),
        ("MODIFY meter_entry { meter_id: 0x14000001 index { index: 4 } }", RANGE),
        ("MODIFY meter_entry { meter_id: 0x14000001 config { cir: 1 pir: 1 eburst: 1 } }", INVALID),
        ("MODIFY meter_entry { meter_id: 0x14000001 config { cir: -1 } }", INVALID),
        ("MODIFY meter_entry { meter_id: 0x14000001 counter_data { } }", OK),
        ("MODIFY meter_entry { meter_id: 0x14000001 counter_data { green { packet_count: 1 } } }", INVALID),
    ],
    "registers": [
        ('MODIFY register_entry { register_id: 0x16000001 index { index: 1 } data { bitstring: "\\001\\002" } }', OK),
        ('MODIFY register_entry { register_id: 0x16000001 index { index: 32 } data { bitstring: "\\001" } }', RANGE),
        ('MODIFY register_entry { register_id: 0x16000001 index { index: 1 } data { bitstring: "1234567" } }', RANGE),
        ("MODIFY register_entry { register_id: 0x16000001 index { index: 1 } data { bool: true } }", INVALID),
        ("MODIFY register_entry { register_id: 0x16000001 index { index: 1 } }", INVALID),
    ],
    "value sets": [
        (
            'MODIFY value_set_entry { value_set_id: 0x03000001 members { match { field_id: 1 exact { value: "a" } } } }',
            OK,
        ),
        (
            'MODIFY value_set_entry { value_set_id: 0x03000001 members { match { field_id: 1 exact { value: "a" } } } '
            'members { match { field_id: 1 exact { value: "a" } } } }',
            EXISTS,
        ),
        (
            "MODIFY value_set_entry { value_set_id: 0x03000001 "
            + " ".join(f'members {{ match {{ field_id: 1 exact {{ value: "{c}" }} }} }}' for c in "abc")
            + " }",
            FULL,
        ),
        ("INSERT value_set_entry { value_set_id: 0x03000001 }", INVALID),
        ("MODIFY value_set_entry { value_set_id: 0x03000001 }", OK),
    ],
    "multicast groups": [
        ("MODIFY packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 } }", NOT_FOUND),
        (
            "INSERT packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 "
            'replicas { egress_port: 1 instance: 1 } replicas { port: "\\002" instance: 1 } } }',
            OK,
        ),
        ("INSERT packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 } }", EXISTS),
        ("INSERT packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 0 } }", INVALID),
        (
            "MODIFY packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 "
            'replicas { egress_port: 1 instance: 1 } replicas { port: "\\001" instance: 1 } } }',
            INVALID,
        ),
        (
            "MODIFY packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 "
            "replicas { egress_port: 511 } } }",
            INVALID,
        ),
        (
            "MODIFY packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 "
            'replicas { egress_port: 1 backup_replicas { port: "\\002" } } } }',
            UNIMPLEMENTED,
        ),
        (
            "MODIFY packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 "
            "replicas { egress_port: 1 instance: 65536 } } }",
            INVALID,
        ),
        ("DELETE packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 } }", OK),
        ("INSERT packet_replication_engine_entry { }", INVALID),
    ],
    "clone sessions": [
        (
            "INSERT packet_replication_engine_entry { clone_session_entry { session_id: 5 class_of_service: 7 "
            "packet_length_bytes: 64 replicas { egress_port: 1 } } }",
            OK,
        ),
        ("INSERT packet_replication_engine_entry { clone_session_entry { session_id: 5 } }", EXISTS),
        ("INSERT packet_replication_engine_entry { clone_session_entry { session_id: 0 } }", INVALID),
        (
            "MODIFY packet_replication_engine_entry { clone_session_entry { session_id: 5 class_of_service: 8 } }",
            INVALID,
        ),
        (
            "MODIFY packet_replication_engine_entry { clone_session_entry { session_id: 5 packet_length_bytes: -1 } }",
            INVALID,
        ),
        ("DELETE packet_replication_engine_entry { clone_session_entry { session_id: 5 } }", OK),
        ("DELETE packet_replication_engine_entry { clone_session_entry { session_id: 5 } }", NOT_FOUND),
    ],
    "digest entries": [
        ("MODIFY digest_entry { digest_id: 0x17000001 }", NOT_FOUND),
        ("INSERT digest_entry { digest_id: 0x17000001 config { max_list_size: 4 } }", OK),
        ("INSERT digest_entry { digest_id: 0x17000001 }", EXISTS),
        ("MODIFY digest_entry { digest_id: 0x17000001 config { ack_timeout_ns: -1 } }", INVALID),
        ("DELETE digest_entry { digest_id: 0x17000001 }", OK),
        ("INSERT digest_entry { digest_id: 0x17ffffff }", INVALID),
    ],
    "externs": [("INSERT extern_entry { extern_type_id: 0x81 extern_id: 1 }", UNIMPLEMENTED)],
}


@pytest.mark.parametrize("steps", CASES.values(), ids=CASES.keys())
def test_codes(state, pipeline, steps):
    for step, code in steps:
        before = copy.deepcopy(pipeline.snapshot())
        assert write(state, step) == [code], step
        if code is not Code.OK:
            assert pipeline.snapshot() == before, f"refused, and something changed all the same: {step}"


def ecmp(target: str, dst: str = "\\001") -> str:
    return (
        f'table_entry {{ table_id: {ECMP} match {{ field_id: 1 exact {{ value: "{dst}" }} }} action {{ {target} }} }}'
    )


def member(number: int, action: str = DROP) -> str:
    return f"action_profile_member {{ action_profile_id: 0x11000001 member_id: {number} {action} }}"


def group(number: int, *members: tuple[int, int], more: str = "max_size: 4") -> str:
    listed = " ".join(f"members {{ member_id: {m} weight: {w} }}" for m, w in members)
    return f"action_profile_group {{ action_profile_id: 0x11000001 group_id: {number} {more} {listed} }}"


ONE_SHOT = (
    f"action_profile_action_set {{ action_profile_actions {{ {DROP} weight: 2 }} "
    f"action_profile_actions {{ {FORWARD} weight: 1 }} }}"
)

PROFILE_CASES = {
    "members": [
        ("INSERT " + member(1), OK),
        ("INSERT " + member(1), EXISTS),
        ("INSERT " + member(0), INVALID),
        ("INSERT " + member(2, ""), INVALID),
        ("MODIFY " + member(1, FORWARD), OK),
        ("MODIFY " + member(2), NOT_FOUND),
        ("DELETE " + member(2, ""), NOT_FOUND),
        ("DELETE " + member(1, ""), OK),
        ("INSERT action_profile_member { action_profile_id: 0x11ffffff member_id: 1 }", INVALID),
    ],
    "more members than there is room": [
        *[("INSERT " + member(i), OK) for i in range(1, 17)],
        ("INSERT " + member(17), FULL),
    ],
    "groups": [
        ("INSERT " + group(1, (1, 1)), NOT_FOUND),
        ("INSERT " + member(1), OK),
        ("INSERT " + member(2), OK),
        ("INSERT " + group(1, (1, 1), (2, 2)), OK),
        ("INSERT " + group(1, (1, 1)), EXISTS),
        ("INSERT " + group(0, (1, 1)), INVALID),
        ("MODIFY " + group(1, (1, 0)), INVALID),
        ("MODIFY " + group(1, (1, 1), (1, 1)), INVALID),
        ("MODIFY " + group(1, (1, 5)), FULL),
        ("MODIFY " + group(1, (1, 1), more="max_size: 5"), INVALID),
        ("INSERT " + group(2, (1, 1), more="max_size: 9"), INVALID),
        ("INSERT " + group(2, (1, 1), more=""), INVALID),
        ("MODIFY " + group(1, (2, 1)), OK),
        ("MODIFY " + group(3, (2, 1)), NOT_FOUND),
        ("DELETE " + member(2, ""), Code.FAILED_PRECONDITION),
        ("DELETE " + member(1, ""), OK),
        ("DELETE " + group(1), OK),
        ("DELETE " + group(1), NOT_FOUND),
    ],
    "a watch port that does not exist": [
        ("INSERT " + member(1), OK),
        (
            "INSERT action_profile_group { action_profile_id: 0x11000001 group_id: 1 "
            'members { member_id: 1 weight: 1 watch_port: "\\011" } }',
            INVALID,
        ),
    ],
    "entries refer to what exists, and what is referred to stays": [
        ("INSERT " + ecmp("action_profile_member_id: 1"), NOT_FOUND),
        ("INSERT " + ecmp("action_profile_group_id: 1"), NOT_FOUND),
        ("INSERT " + ecmp(DROP), INVALID),
        ("INSERT " + member(1), OK),
        ("INSERT " + group(1, (1, 1)), OK),
        ("INSERT " + ecmp("action_profile_member_id: 1"), OK),
        ("DELETE " + group(1), OK),
        ("DELETE " + member(1), Code.FAILED_PRECONDITION),
        ("INSERT " + group(1, (1, 1)), OK),
        ("MODIFY " + ecmp("action_profile_group_id: 1"), OK),
        ("DELETE " + group(1), Code.FAILED_PRECONDITION),
        ("DELETE " + ecmp(""), OK),
        ("DELETE " + group(1), OK),
        ("DELETE " + member(1), OK),
    ],
    "one-shot sets do not mix with members and groups": [
        ("INSERT " + ecmp(ONE_SHOT), OK),
        ("INSERT " + member(100), INVALID),
        ("INSERT " + group(100), INVALID),
        ("MODIFY " + member(1), NOT_FOUND),
        ("MODIFY " + ecmp(ONE_SHOT), OK),
        ("DELETE " + ecmp(""), OK),
        ("INSERT " + member(1), OK),
        ("INSERT " + ecmp(ONE_SHOT), INVALID),
    ],
    "a one-shot set that is refused leaves nothing": [
        ("INSERT " + ecmp(f"action_profile_action_set {{ action_profile_actions {{ {DROP} weight: 0 }} }}"), INVALID),
        ("INSERT " + ecmp(f"action_profile_action_set {{ action_profile_actions {{ {DROP} weight: 9 }} }}"), INVALID),
        (
            "INSERT " + ecmp(f"action_profile_action_set {{ action_selection_mode: RANDOM {ONE_SHOT.split('{', 1)[1]}"),
            UNIMPLEMENTED,
        ),
        ("INSERT " + ecmp(ONE_SHOT), OK),
        ("INSERT " + ecmp(ONE_SHOT), EXISTS),
    ],
}


@pytest.mark.parametrize("steps", PROFILE_CASES.values(), ids=PROFILE_CASES.keys())
def test_profile_codes(state, pipeline, steps):
    test_codes(state, pipeline, steps)


def test_deleting_one_shot_entries_frees_what_they_used(state, pipeline):
    assert write(state, "INSERT " + ecmp(ONE_SHOT), "INSERT " + ecmp(ONE_SHOT, "\\002")) == [OK, OK]
    assert len(pipeline.members) == 4
    assert write(state, "MODIFY " + ecmp(ONE_SHOT), "DELETE " + ecmp(""), "DELETE " + ecmp("", "\\002")) == [OK] * 3
    assert (pipeline.members, pipeline.groups) == ({}, {})


READ_BACK = [
    ipv4(f'metadata: "m" controller_metadata: 7 action {{ {FORWARD} }}'),
    acl(
        f"priority: 9 idle_timeout_ns: 100 action {{ {DROP} }}",
        ACL_KEY + 'match { field_id: 4 optional { value: "a" } }',
    ),
    ecmp(ONE_SHOT),
    "packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 3 replicas { egress_port: 1 instance: 2 } } }",
    'packet_replication_engine_entry { clone_session_entry { session_id: 3 replicas { port: "\\001" } packet_length_bytes: 9 } }',
    "digest_entry { digest_id: 0x17000001 config { max_timeout_ns: 1 max_list_size: 2 ack_timeout_ns: 3 } }",
]


@pytest.mark.parametrize("text", READ_BACK)
def test_what_is_written_is_read(state, text):
    written = update("INSERT " + text).entity
    assert write(state, "INSERT " + text) == [OK]
    query = p4r.Entity()
    query.CopyFrom(written)
    if query.HasField("table_entry"):
        query.table_entry.ClearField("action")
    assert list(state.read(query)) == [written]


def test_values_are_read_in_their_shortest_form(state):
    long = 'match { field_id: 1 lpm { value: "\\000\\000\\012\\000\\000\\000" prefix_len: 8 } }'
    assert write(state, "INSERT " + ipv4(match=long)) == [OK]
    (entity,) = read(state, entry(f"table_id: {IPV4}"))
    assert entity.table_entry.match[0].lpm.value == b"\x0a\0\0\0"


def test_one_shot_sets_are_read_in_their_shortest_form(state):
    long = 'action { action_id: 0x01000001 params { param_id: 2 value: "\\000\\252" } params { param_id: 1 value: "\\000\\001" } }'
    shot = "action_profile_action_set {{ action_profile_actions {{ {} weight: 1 }} }}"
    assert write(state, "INSERT " + ecmp(shot.format(long))) == [OK]
    (entity,) = read(state, entry(f"table_id: {ECMP}"))
    assert entity == update("INSERT " + ecmp(shot.format(FORWARD))).entity


def test_wildcard_reads_and_filters(state):
    assert (
        write(
            state,
            "INSERT " + ipv4(),
            "INSERT " + ipv4(f'metadata: "x" controller_metadata: 5 action {{ {FORWARD} }}', match=""),
            "INSERT " + acl(),
            "INSERT " + acl(f"priority: 8 action {{ {FORWARD} }}"),
        )
        == [OK] * 4
    )
    count = lambda text: len(read(state, entry(text)))  # noqa: E731
    assert count("") == 5, "all tables, constant ones too, no default entries"
    assert count(f"table_id: {IPV4}") == 2
    assert count(f"table_id: {IPV4} {PREFIX}") == 1
    assert count(f'table_id: {IPV4} metadata: "x"') == 1
    assert count(f"table_id: {IPV4} controller_metadata: 5") == 1
    assert count(f"table_id: {ACL} priority: 8") == 1
    assert count(f"table_id: {ACL} {ACL_KEY}") == 2
    assert count(f"table_id: {ACL} {ACL_KEY} priority: 9") == 0
    assert count(f"table_id: {ACL} action {{ action {{ action_id: 0x01000001 }} }}") == 1
    assert count(f"table_id: {IPV4} is_default_action: true") == 1
    assert count("is_default_action: true") == 5
    for text in (f"table_id: {ACL} action {{ action {{ action_id: 1 }} }}", "table_id: 1"):
        with pytest.raises(StatusError, match="INVALID_ARGUMENT"):
            count(text)


def test_constant_entries_are_read_as_constant(state):
    (entity,) = read(state, entry(f"table_id: {FIXED}"))
    assert entity.table_entry.is_const
    assert entity.table_entry.match[0].exact.value == b"\x06"


def test_counters_come_with_entries_when_asked(state, pipeline):
    assert write(
        state, "INSERT " + ipv4(f"counter_data {{ packet_count: 4 byte_count: 5 }} action {{ {FORWARD} }}")
    ) == [OK]
    (plain,) = read(state, entry(f"table_id: {IPV4}"))
    assert not plain.table_entry.HasField("counter_data")
    (counted,) = read(state, entry(f"table_id: {IPV4} counter_data {{ }}"))
    assert (counted.table_entry.counter_data.packet_count, counted.table_entry.counter_data.byte_count) == (4, 5)
    (direct,) = read(state, f"direct_counter_entry {{ table_entry {{ table_id: {IPV4} }} }}")
    assert direct.direct_counter_entry.data.packet_count == 4
    assert write(state, "MODIFY " + ipv4()) == [OK]
    (counted,) = read(state, entry(f"table_id: {IPV4} counter_data {{ }}"))
    assert counted.table_entry.counter_data.packet_count == 4, "MODIFY without counter_data leaves the counter"


def test_default_entry_goes_back_to_the_program_s(state, pipeline):
    change = f'is_default_action: true metadata: "m" action {{ {DROP} }}'
    assert write(state, "MODIFY " + ipv4(change, match="")) == [OK]
    assert write(state, "MODIFY " + ipv4("is_default_action: true", match="")) == [OK]
    (entity,) = read(state, entry(f"table_id: {IPV4} is_default_action: true"))
    assert entity.table_entry.metadata == b""
    assert entity.table_entry.action.action.action_id == 0x01000002


def test_array_reads(state):
    assert write(state, "MODIFY counter_entry { counter_id: 0x12000001 data { packet_count: 3 } }") == [OK]
    assert [e.counter_entry.data.packet_count for e in read(state, "counter_entry { }")] == [3] * 16
    assert write(
        state, 'MODIFY register_entry { register_id: 0x16000001 index { index: 2 } data { bitstring: "ab" } }'
    ) == [OK]
    (cell,) = read(state, "register_entry { register_id: 0x16000001 index { index: 2 } }")
    assert cell.register_entry.data.bitstring == b"ab"
    assert len(read(state, "register_entry { register_id: 0x16000001 }")) == 32
    assert len(read(state, "meter_entry { meter_id: 0x14000001 }")) == 4
    with pytest.raises(StatusError, match="OUT_OF_RANGE"):
        read(state, "counter_entry { counter_id: 0x12000001 index { index: 99 } }")


def test_a_read_shows_the_state_at_its_call(state):
    """Messages of a large read are made while the client takes them; a Write in between must not show."""
    query = text_format.Parse("register_entry { register_id: 0x16000001 }", p4r.Entity())
    found = state.read(query)
    write(state, 'MODIFY register_entry { register_id: 0x16000001 data { bitstring: "z" } }')
    assert {cell.register_entry.data.bitstring for cell in found} == {b"\0"}
    assert {cell.register_entry.data.bitstring for cell in state.read(query)} == {b"z"}


def test_watch_ports_go_with_the_members_of_a_group(state, pipeline):
    write(state, "INSERT " + member(1), "INSERT " + member(2))
    assert write(
        state,
        "INSERT action_profile_group { action_profile_id: 0x11000001 group_id: 1 max_size: 2 "
        'members { member_id: 1 weight: 1 watch_port: "\\001" } members { member_id: 2 weight: 1 watch_port: "\\003" } }',
    ) == [OK]
    assert pipeline.groups[0, 1] == [WeightedMember(1, 1, watch_port=1), WeightedMember(2, 1, watch_port=3)]
    (entity,) = read(state, "action_profile_group { }")
    assert [m.watch_port for m in entity.action_profile_group.members] == [b"\1", b"\3"]


ATOMIC = [p4r.WriteRequest.ROLLBACK_ON_ERROR, p4r.WriteRequest.DATAPLANE_ATOMIC]


@pytest.mark.parametrize("atomicity", ATOMIC)
def test_a_failed_batch_leaves_nothing(state, pipeline, atomicity):
    assert write(state, "INSERT " + ipv4(f"counter_data {{ packet_count: 4 }} action {{ {FORWARD} }}")) == [OK]
    before = copy.deepcopy(pipeline.snapshot())
    flushes = pipeline.flushes
    outcomes = write(
        state,
        "INSERT " + member(1),
        "INSERT " + group(1, (1, 1)),
        "INSERT " + ecmp("action_profile_group_id: 1"),
        "DELETE " + ipv4(""),
        "INSERT " + acl(),
        "MODIFY counter_entry { counter_id: 0x12000001 data { packet_count: 3 } }",
        'MODIFY register_entry { register_id: 0x16000001 data { bitstring: "a" } }',
        "MODIFY meter_entry { meter_id: 0x14000001 config { cir: 1 pir: 2 } }",
        "INSERT packet_replication_engine_entry { multicast_group_entry { multicast_group_id: 1 } }",
        "INSERT digest_entry { digest_id: 0x17000001 }",
        "MODIFY " + ipv4("is_default_action: true action { " + FORWARD + " }", match=""),
        "INSERT " + acl(),
        "INSERT " + member(2),
        atomicity=atomicity,
    )
    assert outcomes == [Code.ABORTED] * 11 + [EXISTS, Code.ABORTED]
    assert pipeline.snapshot() == before
    assert pipeline.flushes == flushes + 1, "packets must not see the states between"
    assert write(state, "INSERT " + acl(), atomicity=atomicity) == [OK]


@pytest.mark.parametrize("atomicity", [p4r.WriteRequest.CONTINUE_ON_ERROR, *ATOMIC])
def test_when_the_native_side_is_full_the_batch_is_taken_back(state, pipeline, atomicity):
    pipeline.room = 2
    before = copy.deepcopy(pipeline.snapshot())
    outcomes = write(state, "INSERT " + ipv4(), "INSERT " + acl(), "INSERT " + ipv4(match=""), atomicity=atomicity)
    assert outcomes == [Code.RESOURCE_EXHAUSTED] * 3
    assert pipeline.snapshot() == before
    assert len(read(state, "table_entry { }")) == 1
