"""What a person types for a match field or a parameter, and what P4Runtime has for it. Pure."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence

from p4switch.bmv2.client import RefusedError
from p4switch.proto import p4info_pb2 as p4i
from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.bytestring import encode_unsigned

PRIORITY_MAX = (1 << 24) - 1
"""bmv2's highest priority is 0, and P4Runtime's the highest number: each is this minus the other."""

Kind = p4i.MatchField.MatchType
_MAC = re.compile(r"[0-9a-fA-F]{1,2}(:[0-9a-fA-F]{1,2}){5}")


def number(text: str) -> int:
    """A number (10, 0x0a, 0b1010), an IPv4, IPv6 or MAC address. Raises RefusedError."""
    try:
        if _MAC.fullmatch(text):
            return int("".join(one.zfill(2) for one in text.split(":")), 16)
        if ":" in text or text.count(".") == 3:
            return int(ipaddress.ip_address(text))
        value = int(text, 0) if text[:1] != "0" or text[:2].lower() in ("0x", "0b", "0o") else int(text)
    except ValueError:
        raise RefusedError(f"{text!r} is no number and no address") from None
    if value < 0:
        raise RefusedError(f"{text}: write negative numbers as bit patterns")
    return value


def value_bytes(text: str, field: p4i.MatchField | p4i.Action.Param) -> bytes:
    """What P4Runtime has for a value of a field or parameter. Raises RefusedError."""
    if field.HasField("type_name") and not field.bitwidth:
        return text.encode()
    return encode_unsigned(number(text))


def match(text: str, field: p4i.MatchField) -> p4r.FieldMatch | None:
    """A match as bmv2 has it: `V`, `V/LENGTH`, `V&&&MASK`, `LOW->HIGH`; None: it matches all. Raises RefusedError."""
    found = p4r.FieldMatch(field_id=field.id)
    everything = (1 << field.bitwidth) - 1
    match field.match_type:
        case Kind.LPM:
            value, slash, length = text.partition("/")
            if not slash or not length.isdecimal():
                raise RefusedError(f"{field.name}: write VALUE/LENGTH, not {text}")
            if int(length) == 0:
                return None
            bits = everything & ~(everything >> int(length)) if int(length) <= field.bitwidth else 0
            found.lpm.value, found.lpm.prefix_len = encode_unsigned(number(value) & bits), int(length)
        case Kind.TERNARY | Kind.OPTIONAL:
            value, masked, mask = text.partition("&&&")
            bits = number(mask) if masked else everything
            if bits == 0:
                return None
            if field.match_type == Kind.OPTIONAL:
                found.optional.value = encode_unsigned(number(value))
            else:
                found.ternary.value, found.ternary.mask = encode_unsigned(number(value) & bits), encode_unsigned(bits)
        case Kind.RANGE:
            low, arrow, high = text.partition("->")
            if not arrow:
                raise RefusedError(f"{field.name}: write LOW->HIGH, not {text}")
            if number(low) == 0 and number(high) == everything:
                return None
            found.range.low, found.range.high = encode_unsigned(number(low)), encode_unsigned(number(high))
        case _:
            found.exact.value = value_bytes(text, field)
    return found


def _hexadecimal(value: bytes, bits: int) -> str:
    return f"{int.from_bytes(value, 'big'):0{(bits + 7) // 8 * 2}x}"


def shown_match(entry: p4r.TableEntry, field: p4i.MatchField) -> str:
    """A field of an entry's key, as `table_dump` prints it."""
    bits = field.bitwidth
    for one in entry.match:
        if one.field_id == field.id:
            match one.WhichOneof("field_match_type"):
                case "exact":
                    return f"EXACT     {_hexadecimal(one.exact.value, bits) if bits else one.exact.value.decode()}"
                case "lpm":
                    return f"LPM       {_hexadecimal(one.lpm.value, bits)}/{one.lpm.prefix_len}"
                case "ternary":
                    return (
                        f"TERNARY   {_hexadecimal(one.ternary.value, bits)} &&& {_hexadecimal(one.ternary.mask, bits)}"
                    )
                case "range":
                    return f"RANGE     {_hexadecimal(one.range.low, bits)} -> {_hexadecimal(one.range.high, bits)}"
                case "optional":
                    return f"TERNARY   {_hexadecimal(one.optional.value, bits)}"
    return f"{Kind.Name(field.match_type):<9} any"


def action(info: p4i.Action, texts: Sequence[str]) -> p4r.Action:
    """A call of an action with what a person typed as its parameters. Raises RefusedError."""
    if len(texts) != len(info.params):
        raise RefusedError(f"action {info.preamble.name} needs {len(info.params)} parameters, not {len(texts)}")
    params = [
        p4r.Action.Param(param_id=param.id, value=value_bytes(text, param))
        for param, text in zip(info.params, texts, strict=True)
    ]
    return p4r.Action(action_id=info.preamble.id, params=params)


def shown_action(call: p4r.Action, info: p4i.Action) -> str:
    """An action and its parameters, as `table_dump` prints them."""
    widths = {param.id: param.bitwidth for param in info.params}
    values = [
        _hexadecimal(p.value, widths[p.param_id]) if widths[p.param_id] else p.value.decode() for p in call.params
    ]
    return f"{info.preamble.name} - {', '.join(values)}"
