"""Small TNA programs for tests, and a switch with memory ports and a clock that the test moves."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from p4switch.compiler import CompiledProgram, compile_program
from p4switch.runtime import DigestEvent, LogEvent, Pipeline, Program, Switch, SwitchConfig
from p4switch.values import Replica

ROUND = 68
FCS_BYTES = 4

PROGRAM = """#include <core.p4>
#include <tna.p4>
{top}
header data_t {{ bit<8> a; bit<8> b; bit<16> c; bit<32> d; }}
header extra_t {{ bit<128> bits; }}
struct headers_t {{ extra_t x; data_t d; extra_t y; }}
struct metadata_t {{ {metadata} }}
parser IP(packet_in pkt, out headers_t h, out metadata_t m, out ingress_intrinsic_metadata_t ig) {{
    state start {{
        pkt.extract(ig); pkt.advance(PORT_METADATA_SIZE); {ingress_parser} pkt.extract(h.d); transition accept;
    }}
}}
control I(inout headers_t h, inout metadata_t m, in ingress_intrinsic_metadata_t ig,
          in ingress_intrinsic_metadata_from_parser_t prsr, inout ingress_intrinsic_metadata_for_deparser_t dprsr,
          inout ingress_intrinsic_metadata_for_tm_t tm) {{
    {locals}
    apply {{ {body} }}
}}
control ID(packet_out pkt, inout headers_t h, in metadata_t m, in ingress_intrinsic_metadata_for_deparser_t dprsr) {{
    {deparser_locals}
    apply {{ {deparser} pkt.emit(h); }}
}}
parser EP(packet_in pkt, out headers_t h, out metadata_t m, out egress_intrinsic_metadata_t eg) {{
    state start {{ pkt.extract(eg); {egress_parser} transition accept; }}
}}
control E(inout headers_t h, inout metadata_t m, in egress_intrinsic_metadata_t eg,
          in egress_intrinsic_metadata_from_parser_t prsr, inout egress_intrinsic_metadata_for_deparser_t dprsr,
          inout egress_intrinsic_metadata_for_output_port_t oport) {{
    {egress_locals}
    apply {{ {egress} }}
}}
control ED(packet_out pkt, inout headers_t h, in metadata_t m, in egress_intrinsic_metadata_for_deparser_t dprsr) {{
    apply {{ pkt.emit(h); }}
}}
Pipeline(IP(), I(), ID(), EP(), E(), ED()) pipe;
Switch(pipe) main;
"""
TO_PORT_1 = "tm.ucast_egress_port = 1;"


def program(
    body: str = TO_PORT_1,
    *,
    locals: str = "",
    top: str = "",
    metadata: str = "",
    ingress_parser: str = "",
    deparser: str = "",
    deparser_locals: str = "",
    egress_parser: str = "",
    egress: str = "",
    egress_locals: str = "",
) -> str:
    """The text of a program; its frames begin with data_t."""
    return PROGRAM.format(
        body=body,
        locals=locals,
        top=top,
        metadata=metadata,
        ingress_parser=ingress_parser,
        deparser=deparser,
        deparser_locals=deparser_locals,
        egress_parser=egress_parser,
        egress=egress,
        egress_locals=egress_locals,
    )


def frame(a: int = 0, b: int = 0, c: int = 0, d: int = 0, payload: bytes = b"payload") -> bytes:
    """A frame that such programs parse."""
    return bytes([a, b]) + c.to_bytes(2, "big") + d.to_bytes(4, "big") + payload


class TnaBench:
    """A program on a switch with memory ports 0 to 9; time stands still but for `advance`."""

    def __init__(self, compiled: CompiledProgram, config: SwitchConfig) -> None:
        self.compiled = compiled
        self.switch = Switch(config)
        self.pipeline: Pipeline = self.switch.prepare(Program.load(compiled.shared_object_path))
        self.switch.commit(self.pipeline)
        for port in range(10):
            self.switch.add_memory(port)

    def send(self, octets: bytes, port: int = 0) -> list[tuple[int, bytes]]:
        """What comes out when a frame comes in, as far as time allows."""
        self.switch.inject(port, octets)
        while self.switch.step():
            pass
        return self.switch.collect()

    def one(self, octets: bytes, port: int = 0) -> bytes:
        """The one frame that comes out, of port 1."""
        ((egress, sent),) = self.send(octets, port)
        assert egress == 1
        return sent

    def group(self, number: int, ports: Iterable[tuple[int, int]]) -> None:
        """A multicast group of (port, rid)."""
        batch = self.pipeline.batch()
        batch.set_multicast_group(number, [Replica(port, rid) for port, rid in ports])
        batch.commit()

    def session(self, number: int, port: int, length: int = 0) -> None:
        """A mirror session."""
        batch = self.pipeline.batch()
        batch.set_clone_session(number, [Replica(port)], length)
        batch.commit()

    def register(self, name: str) -> list[int]:
        """All cells of a register; the last part of its name is enough."""
        return self.pipeline.registers(self._register(name))

    def set_register(self, name: str, first: int, values: list[int]) -> None:
        batch = self.pipeline.batch()
        batch.set_registers(self._register(name), first, values)
        batch.commit()

    def _register(self, name: str) -> int:
        (found,) = (r.index for r in self.pipeline.program.registers if r.name.rsplit(".", 1)[-1] == name)
        return found

    def digests(self) -> list[tuple[str, tuple[int, ...]]]:
        """Digests so far, by the last part of their name."""
        names = [d.name.rsplit(".", 1)[-1] for d in self.pipeline.program.digests]
        return [(names[e.digest], e.values) for e in self.switch.events(0.0) if isinstance(e, DigestEvent)]

    def traces(self) -> list[str]:
        return [e.text for e in self.switch.events(0.0) if isinstance(e, LogEvent)]


def compiled(folder: Path, text: str) -> CompiledProgram:
    """A program from its text."""
    path = folder / "program.p4"
    path.write_text(text)
    return compile_program(path)
