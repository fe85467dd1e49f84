"""What is probably meant, where a program cannot be read for a reason that its first error does not name. Pure."""

from __future__ import annotations

import re
from dataclasses import replace

from p4switch.frontend.source import CompileError, Diagnostic, SourceText

_P4_14 = re.compile(r"\s*(header_type|field_list|metadata|calculated_field)\s+\w+")
_TOFINO_2 = re.compile(r"t(2|3|5)na\.p4 not found|(tofino2|tofino2_specs)\S* not found")
_DECLARED_IN = {
    "core.p4": {"packet_in", "packet_out", "NoAction", "verify", "match_kind"},
    "v1model.p4": {"standard_metadata_t", "V1Switch", "mark_to_drop", "HashAlgorithm", "CounterType", "MeterType"},
    "tna.p4": {"ingress_intrinsic_metadata_t", "egress_intrinsic_metadata_t"},
}
"""Names by which an include is missed."""

CONVERT = "p4c converts it: p4test --std p4-14 --pp NEW.p4 OLD.p4"


def hinted(error: CompileError, source: SourceText) -> CompileError:
    """The error with a hint at its first message, where there is one."""
    hint = _hint(error.diagnostics[0], source)
    if hint is None:
        return error
    first, *rest = error.diagnostics
    return CompileError([replace(first, message=f"{first.message} ({hint})"), *rest])


def _hint(first: Diagnostic, source: SourceText) -> str | None:
    if any(_P4_14.match(line) for line in source.originals.get(first.file, ())):
        return f"this looks like P4_14; {CONVERT}"
    if _TOFINO_2.search(first.message):
        return "programs for Tofino 2 and later are not supported; <tna.p4> is the first generation"
    words = set(re.findall(r"\w+", first.excerpt))
    for include, names in _DECLARED_IN.items():
        missed = sorted(words & names)
        if missed and f"<{include}>" not in source.originals:
            return f"{missed[0]} comes with #include <{include}>"
    return None
