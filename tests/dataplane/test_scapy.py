"""What scapy builds with kvcast's layers, a switch takes for its own; every NOTICE and every served segment of this
suite is looked at by scapy, too (`notices`, `served`)."""

from __future__ import annotations

import numpy as np
import pytest
from scapy.contrib.roce import BTH
from scapy.layers.l2 import Ether

from kvcast.scapy import DETH, FLAGS, OPERATIONS, KvControl, KvData
from kvproto.wire import layouts
from tests.dataplane.bench import Bench, counts, mask, notices, served
from tests.dataplane.eyes import control_packet, look, segment_packet
from tests.dataplane.frames import Control, Flag, Host, Op, Segment


def test_packets_of_scapys_are_joins_casts_and_gets(bench: Bench) -> None:
    key = bench.key()
    told = notices(bench.exchange((2, control_packet(Host(2), Control(Op.JOIN, key, tag=7), Host(1)))))
    assert told == {2: Control(Op.NOTICE, key, tag=7, flags=Flag.JOINED, member=1, members=mask(2))}
    segments = bench.segments(key)
    frame = segment_packet(segments[5])
    assert frame == segments[5].frame()
    received = bench.exchange((1, frame))
    assert counts(received) == {2: 1}
    seen = look(received[2][0])
    assert (seen[KvData].key, seen[KvData].segment, seen[KvData].op) == (key, 5, layouts.OP_DATA)
    assert bytes(seen[KvData].payload) == segments[5].payload
    cached = bench.key()
    stored = bench.segments(cached)
    bench.cache(stored, base_slot=16)
    bench.join(3, cached)
    got = bench.exchange((3, control_packet(Host(3), bench.get(cached, 6), Host(1))))
    served(got[3][0], stored[6])


def test_a_fill_is_seen_whole() -> None:
    segment = Segment(Host(4), bytes(range(16)), 3, 8, bytes(256))
    seen = Ether(segment.fill_frame())
    assert [layer in seen for layer in (KvControl, BTH, DETH, KvData)] == [True] * 4
    assert (seen[KvControl].op, seen[KvData].segment) == (Op.FILL, 3)
    assert seen[BTH].icrc.to_bytes(4, "big") == segment.with_icrc()[-4:]


def test_a_damaged_frame_is_seen_to_be_damaged() -> None:
    frame = bytearray(Segment(Host(4), bytes(range(16)), 3, 8, bytes(256)).frame())
    frame[-20] ^= 1
    with pytest.raises(AssertionError):
        look(bytes(frame))


@pytest.mark.parametrize(("layer", "dtype"), [(KvControl, layouts.KV_CONTROL_DTYPE), (KvData, layouts.KV_DATA_DTYPE)])
def test_fields_are_those_of_the_p4_headers(layer: type, dtype: np.dtype) -> None:  # type: ignore[type-arg]
    packet = layer()
    assert [field.name for field in packet.fields_desc] == list(dtype.names or ())
    assert len(bytes(packet)) == dtype.itemsize
    at = np.frombuffer(bytes(range(dtype.itemsize)), dtype)[0]
    seen = layer(bytes(range(dtype.itemsize)))
    for name in dtype.names or ():
        value = getattr(seen, name)
        assert value == at[name].tobytes() if name == "key" else int(value) == int(at[name]), name


def test_names_are_those_of_the_p4_headers() -> None:
    assert {value: op.name for value, op in ((int(op), op) for op in Op)}.items() <= OPERATIONS.items()
    assert {int(flag): flag.name for flag in Flag}.items() <= {1 << bit: name for bit, name in enumerate(FLAGS)}.items()
