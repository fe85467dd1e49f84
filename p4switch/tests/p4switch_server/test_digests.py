"""Digest lists over time: `DigestBook` with a clock of the test's own."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.digests import DigestBook

DIGEST = 0x17000001
ACK_TIMEOUT_NS = 1_000


@pytest.fixture
def book(state) -> DigestBook:
    """A digest whose lists hold two members, and are forgotten when they have not been acknowledged in time."""
    config = f"max_timeout_ns: 500 max_list_size: 2 ack_timeout_ns: {ACK_TIMEOUT_NS}"
    entity = text_format.Parse(f"digest_entry {{ digest_id: {DIGEST} config {{ {config} }} }}", p4r.Entity())
    assert state.write([p4r.Update(type=p4r.Update.INSERT, entity=entity)], p4r.WriteRequest.CONTINUE_ON_ERROR) == [
        None
    ]
    return state.digests


def macs(digest_list: p4r.DigestList | None) -> list[int]:
    assert digest_list is not None
    return [int.from_bytes(d.struct.members[0].bitstring, "big") for d in digest_list.data]


def test_a_member_is_told_again_when_its_list_was_not_acknowledged_in_time(book):
    assert book.add(0, (1, 3), now_ns=0) is None
    assert macs(book.add(0, (2, 3), now_ns=10)) == [1, 2]
    assert book.add(0, (1, 3), now_ns=10 + ACK_TIMEOUT_NS - 1) is None
    assert book.next_deadline_ns() is None, "it is among those told, so it waits for nothing"
    assert book.add(0, (1, 3), now_ns=10 + ACK_TIMEOUT_NS) is None
    assert macs(book.add(0, (2, 3), now_ns=10 + ACK_TIMEOUT_NS)) == [1, 2]


def test_a_member_is_told_again_after_the_acknowledgement(book):
    book.add(0, (1, 3), now_ns=0)
    told = book.add(0, (2, 3), now_ns=0)
    assert told is not None
    book.acknowledge(p4r.DigestListAck(digest_id=DIGEST, list_id=told.list_id + 1))
    assert book.add(0, (1, 3), now_ns=1) is None
    assert book.next_deadline_ns() is None
    book.acknowledge(p4r.DigestListAck(digest_id=DIGEST, list_id=told.list_id))
    assert book.add(0, (1, 3), now_ns=2) is None
    assert book.next_deadline_ns() == 502


def test_a_list_is_due_when_its_first_member_has_waited(book):
    book.add(0, (1, 3), now_ns=100)
    assert book.next_deadline_ns() == 600
    assert book.due(now_ns=599) == []
    assert [macs(found) for found in book.due(now_ns=600)] == [[1]]
    assert book.next_deadline_ns() is None
