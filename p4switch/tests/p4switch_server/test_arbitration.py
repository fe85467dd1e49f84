"""Client arbitration, case by case as the specification lists them."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from p4switch.server.arbitration import Arbiter, AwaitWrites, Notify, Request, StreamId, Terminate
from p4switch.server.status import Code, StatusError

A, B, C = StreamId(1), StreamId(2), StreamId(3)
OK, BACKUP, NONE = Code.OK, Code.ALREADY_EXISTS, Code.NOT_FOUND
WAIT = AwaitWrites()


def arbiter() -> Arbiter:
    return Arbiter(1, streams_max=4, roles_max=3)


def request(election_id: int | None, role: str = "", device_id: int = 1) -> Request:
    return Request(device_id, role, election_id)


def note(stream: StreamId, election_id: int | None, code: Code, role: str = "") -> Notify:
    return Notify(stream, role, election_id, code)


# Each step: who sends which election id ("gone": disconnects), and everything that follows from it.
SCRIPTS = {
    "the first client becomes primary": [(A, 10, [WAIT, note(A, 10, OK)])],
    "a lower id becomes backup and only it is told": [
        (A, 10, [WAIT, note(A, 10, OK)]),
        (B, 9, [note(B, 10, BACKUP)]),
    ],
    "a higher id takes over: others first, then writes end, then the new primary": [
        (A, 10, [WAIT, note(A, 10, OK)]),
        (B, 11, [note(A, 11, BACKUP), WAIT, note(B, 11, OK)]),
    ],
    "an unset id never becomes primary": [(A, None, [note(A, None, NONE)])],
    "an unset id beside a primary is backup": [
        (A, 0, [WAIT, note(A, 0, OK)]),
        (B, None, [note(B, 0, BACKUP)]),
    ],
    "a primary that leaves is not replaced by a lower id": [
        (A, 10, [WAIT, note(A, 10, OK)]),
        (B, 9, [note(B, 10, BACKUP)]),
        (A, "gone", [note(B, 10, NONE)]),
        (B, 9, [note(B, 10, NONE)]),
        (B, 10, [WAIT, note(B, 10, OK)]),
    ],
    "a primary may step down": [
        (A, 10, [WAIT, note(A, 10, OK)]),
        (B, 5, [note(B, 10, BACKUP)]),
        (A, 3, [note(A, 10, NONE), note(B, 10, NONE)]),
    ],
    "a primary may raise its id": [
        (A, 10, [WAIT, note(A, 10, OK)]),
        (B, 5, [note(B, 10, BACKUP)]),
        (A, 20, [note(B, 20, BACKUP), WAIT, note(A, 20, OK)]),
    ],
    "an id in use ends the newcomer": [
        (A, 10, [WAIT, note(A, 10, OK)]),
        (B, 10, [Terminate(B, Code.INVALID_ARGUMENT, "")]),
    ],
    "an id in use ends a primary that asks for it, and the others hear of it": [
        (A, 10, [WAIT, note(A, 10, OK)]),
        (B, 5, [note(B, 10, BACKUP)]),
        (A, 5, [note(B, 10, NONE), Terminate(A, Code.INVALID_ARGUMENT, "")]),
    ],
    "a backup that leaves is not mentioned": [
        (A, 10, [WAIT, note(A, 10, OK)]),
        (B, 5, [note(B, 10, BACKUP)]),
        (B, "gone", []),
    ],
    "ids are 128 bits wide": [
        (A, (1 << 64) - 1, [WAIT, note(A, (1 << 64) - 1, OK)]),
        (B, 1 << 127, [note(A, 1 << 127, BACKUP), WAIT, note(B, 1 << 127, OK)]),
    ],
}


def _without_text(orders: list[object]) -> list[object]:
    return [Terminate(o.stream, o.code, "") if isinstance(o, Terminate) else o for o in orders]


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS.keys())
def test_script(script):
    under_test = arbiter()
    for stream, event, expected in script:
        orders = under_test.disconnect(stream) if event == "gone" else under_test.update(stream, request(event))
        assert _without_text(orders) == expected


def test_roles_are_independent():
    under_test = arbiter()
    under_test.update(A, request(10))
    assert under_test.update(B, request(10, "r")) == [WAIT, note(B, 10, OK, "r")]
    assert set(under_test.primaries()) == {A, B}
    under_test.check_write("r", 10)
    with pytest.raises(StatusError, match="NOT_FOUND"):
        under_test.check_write("other", 10)


def test_a_stream_cannot_change_role_or_device():
    for second in (request(11, "other"), request(11, device_id=2)):
        under_test = arbiter()
        under_test.update(A, request(10))
        (order,) = under_test.update(A, second)
        assert isinstance(order, Terminate)
        assert order.code is Code.FAILED_PRECONDITION


def test_unknown_device_and_role_config_and_too_many_streams_end_the_stream():
    under_test = arbiter()
    assert under_test.update(A, request(1, device_id=7))[0].code is Code.NOT_FOUND
    assert under_test.update(A, Request(1, "", 1, has_config=True))[0].code is Code.INVALID_ARGUMENT
    for i in range(4):
        under_test.update(StreamId(10 + i), request(i))
    assert under_test.update(A, request(99))[0].code is Code.RESOURCE_EXHAUSTED


def test_roles_are_limited_for_they_are_remembered():
    under_test = arbiter()
    for number in range(3):
        under_test.update(A, request(1, f"role {number}"))
        under_test.disconnect(A)
    assert under_test.update(A, request(1, "one more"))[0].code is Code.RESOURCE_EXHAUSTED
    assert under_test.update(B, request(1, "role 2")) == [WAIT, note(B, 1, OK, "role 2")]


def test_only_the_primary_may_write():
    under_test = arbiter()
    for election_id in (None, 0, 10):
        with pytest.raises(StatusError, match="PERMISSION_DENIED"):
            under_test.check_write("", election_id)
    under_test.update(A, request(10))
    under_test.update(B, request(9))
    under_test.check_write("", 10)
    for election_id in (None, 9, 11):
        with pytest.raises(StatusError, match="PERMISSION_DENIED"):
            under_test.check_write("", election_id)


EVENTS = st.lists(
    st.tuples(
        st.integers(1, 4),
        st.one_of(st.just("gone"), st.none(), st.integers(0, 5)),
        st.sampled_from(["", "r"]),
    ),
    max_size=40,
)


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])  # a busy machine is no fault of the code
@given(EVENTS)
def test_at_most_one_primary_a_role_and_its_id_is_the_highest_ever(events):
    under_test = arbiter()
    told: dict[StreamId, Notify] = {}
    alive: set[StreamId] = set()
    highest: dict[str, int] = {}
    for number, event, role in events:
        stream = StreamId(number)
        if event == "gone":
            alive.discard(stream)
            told.pop(stream, None)
            orders = under_test.disconnect(stream)
        else:
            orders = under_test.update(stream, request(event, role))
            if any(isinstance(o, Terminate) for o in orders):
                alive.discard(stream)
                told.pop(stream, None)
            else:
                alive.add(stream)
        for order in orders:
            if isinstance(order, Notify):
                assert order.stream in alive, "a notification to a stream that is gone"
                told[order.stream] = order
                if order.election_id is not None:
                    assert order.election_id >= highest.get(order.role, 0), "election ids went back"
                    highest[order.role] = order.election_id
        primaries = under_test.primaries()
        assert len({told[p].role for p in primaries}) == len(primaries)
        for stream, last in told.items():
            assert (last.code is OK) == (stream in primaries), "a client believes the wrong thing"
