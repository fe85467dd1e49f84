"""Small v1model programs for tests: a frame around the piece of interest."""

from __future__ import annotations

PROGRAM = """#include <core.p4>
#include <v1model.p4>
{top}
header data_t {{ {fields} }}
struct headers_t {{ data_t d; {headers} }}
struct metadata_t {{ {metadata} }}
parser P(packet_in pkt, out headers_t h, inout metadata_t m, inout standard_metadata_t s) {{
    {parser}
}}
control V(inout headers_t h, inout metadata_t m) {{ apply {{ }} }}
control I(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {{
    {locals}
    apply {{
        s.egress_spec = 1;
        {body}
    }}
}}
control E(inout headers_t h, inout metadata_t m, inout standard_metadata_t s) {{ apply {{ {egress} }} }}
control C(inout headers_t h, inout metadata_t m) {{ apply {{ }} }}
control D(packet_out pkt, in headers_t h) {{ apply {{ pkt.emit(h); }} }}
V1Switch(P(), V(), I(), E(), C(), D()) main;
"""
START = "state start { pkt.extract(h.d); transition accept; }"


def program(
    body: str = "",
    *,
    fields: str = "bit<8> a; bit<8> b; bit<16> c;",
    headers: str = "",
    metadata: str = "",
    parser: str = START,
    locals: str = "",
    egress: str = "",
    top: str = "",
) -> str:
    """The text of a program."""
    return PROGRAM.format(
        body=body,
        fields=fields,
        headers=headers,
        metadata=metadata,
        parser=parser,
        locals=locals,
        egress=egress,
        top=top,
    )
