"""Guests whose network cards hang on taps, in a network namespace of the run's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from bmv2_testbed import client
from bmv2_testbed.client import Testbed
from bmv2_testbed.content import Prefix
from bmv2_testbed.network.namespaces import can_unshare
from bmv2_testbed.spec import TestbedSpec, Wiring, host_name
from kvproto.wire.rdma import rdma_segment_bytes_max
from tests.roce.helpers import Reads, fetch, put

pytestmark = pytest.mark.roce

HOLDER, READER = 0, 1


def why_no_taps() -> str:
    if os.geteuid() != 0 or not can_unshare():
        return "taps need root and namespaces (CAP_SYS_ADMIN)"
    return "" if Path("/dev/net/tun").exists() else "taps need /dev/net/tun (modprobe tun)"


@pytest.fixture
def testbed() -> Iterator[Testbed]:
    reason = why_no_taps()
    if reason:
        pytest.skip(reason)
    spec = TestbedSpec(
        wiring=Wiring.GUESTS,
        taps=True,
        hosts=2,
        segment_bytes=rdma_segment_bytes_max(4096),
        pool_bytes=16 << 20,
        slots=1024,
        rate_bit_s=20_000_000,
    )
    with client.running(spec) as running:
        yield running


def test_reads_go_one_sided_and_hardly_anything_twice(testbed: Testbed) -> None:
    prefix = Prefix(600, 2 << 20, 256 << 10)
    put(testbed, HOLDER, prefix)
    reads, before = Reads(testbed, READER), testbed.counters()
    report = fetch(testbed, {READER: prefix})[READER]
    # A guest that stands still for a while makes reads look silent; what those owe is cast.
    assert report["origins"].keys() <= {"holder", "cast"}
    one_sided, tcp = reads.bytes_by
    assert (one_sided > prefix.size_bytes / 2, tcp) == (True, 0)
    # A window of 4 MiB would have the holder send everything five times over such a link.
    sent_bytes = testbed.counters()[host_name(HOLDER)].since(before[host_name(HOLDER)]).tx_bytes
    assert prefix.size_bytes / 2 < sent_bytes < 3 * prefix.size_bytes
