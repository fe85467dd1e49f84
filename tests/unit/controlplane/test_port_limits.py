"""Limits of ports: how they follow from a rate, and that honest readers stay within them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from controlplane.core.ids import Member, SwitchPort
from controlplane.core.options import PortLimits
from controlplane.core.switch.entries import Request, RequestLimitEntry, SegmentLimitEntry
from kvproto.limits import JOINED_MAX
from kvproto.session.timing import BATCH_MAX, RENEWALS_PER_TTL
from kvproto.wire.control import Op

STATES = Path(__file__).resolve().parents[3] / "p4" / "include" / "states.p4"
TTL_S = 2


@pytest.mark.parametrize("rate_bit_s", [25_000_000, 1_000_000_000, 100_000_000_000, 800_000_000_000])
def test_an_honest_host_at_line_rate_stays_within_the_limits(rate_bit_s: int) -> None:
    limits = PortLimits.of_rate(rate_bit_s, 4096)
    segments = rate_bit_s / 8 / (4096 + 122)
    assert limits.segments_per_s >= 2 * segments - 2
    assert limits.gets_per_s >= segments / 16 + segments / 10
    assert limits.joins_per_s >= 2 * segments / 64 - 1
    assert limits.joins_per_s >= JOINED_MAX * (1 + RENEWALS_PER_TTL / TTL_S)


def test_each_member_has_its_limits() -> None:
    limits = PortLimits(joins_per_s=5000, gets_per_s=50_000, segments_per_s=7000)
    entries = list(limits.entries({Member(3): SwitchPort(9)}))
    assert entries == [
        RequestLimitEntry(SwitchPort(9), Request.JOIN, 5000, 1024),
        RequestLimitEntry(SwitchPort(9), Request.GET, 50_000, 5000),
        SegmentLimitEntry(Member(3), 7000, 1024),
    ]


def test_the_numbers_of_requests_are_those_of_the_wire() -> None:
    assert {request.name: request.value for request in Request} == {"JOIN": Op.JOIN, "GET": Op.GET}


def test_readers_ask_for_no_more_segments_at_once_than_the_switch_lets_pass() -> None:
    found = re.search(r"GET_COUNT_MOST = (\d+);", STATES.read_text())
    assert found is not None
    assert int(found[1]) >= BATCH_MAX
