"""The checked-in layouts are what the P4 headers say, and pack what they say."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kvproto.wire import layouts
from kvproto.wire.layouts import Bth, Deth, Ipv4, KvControl, KvData
from tools import generate_wire

ROOT = Path(__file__).resolve().parents[3]


def test_layouts_are_generated_from_the_p4_headers() -> None:
    wanted = generate_wire.generate()
    assert wanted == (ROOT / "kvproto" / "src" / "kvproto" / "wire" / "layouts.py").read_text(), "run `make wire`"


@given(
    opcode=st.integers(0, 255),
    solicited=st.integers(0, 1),
    psn=st.integers(0, 2**24 - 1),
    qpn=st.integers(0, 2**24 - 1),
)
def test_fields_that_share_bytes_round_trip(opcode: int, solicited: int, psn: int, qpn: int) -> None:
    bth = Bth(opcode=opcode, solicited_event=solicited, mig_request=1, pad_count=2, qpn=qpn, psn=psn, resv7=0x55)
    assert Bth.unpack(b"x" + bth.pack(), 1) == bth


def test_sizes() -> None:
    sizes = {Ipv4: 20, Bth: 12, Deth: 8, KvControl: 40, KvData: 32}
    for header, size in sizes.items():
        assert len(header().pack()) == size
    for name in ("BTH", "DETH", "KV_CONTROL", "KV_DATA"):
        assert getattr(layouts, f"{name}_DTYPE").itemsize == getattr(layouts, f"{name}_BYTES")
