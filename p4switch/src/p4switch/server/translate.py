"""Match keys, actions, meters, ports: P4Runtime messages to and from the pipeline's values. Pure.

Everything that comes in is checked against the Schema; what goes out is canonical, so that a client reads what it
wrote. Refusals are StatusError with the code that the specification names.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.server.bytestring import decode_unsigned, encode_unsigned
from p4switch.server.limits import PORT_MAX
from p4switch.server.schema import ActionSpec, FieldSpec, Match, MeterSpec, ParamSpec
from p4switch.server.status import invalid, out_of_range
from p4switch.server.target_pipeline import KeyField, MatchKey
from p4switch.values import ActionCall, ColorCounts, CounterValue, MeterConfig

INT64_MAX = (1 << 63) - 1


def decode_key(fields: Sequence[FieldSpec], matches: Iterable[p4r.FieldMatch], owner: str) -> MatchKey:
    """The key that `matches` describe; fields left out match anything."""
    given: dict[int, p4r.FieldMatch] = {}
    for match in matches:
        if match.field_id in given:
            raise invalid(f"{owner}: field {match.field_id} is given twice")
        given[match.field_id] = match
    key = tuple(_decode_field(f, given.pop(f.id, None), owner) for f in fields)
    if given:
        raise invalid(f"{owner} has no match field {min(given)}")
    return key


def encode_key(fields: Sequence[FieldSpec], key: MatchKey) -> list[p4r.FieldMatch]:
    """The canonical FieldMatch messages of a key: nothing for fields that match anything."""
    encoded = (_encode_field(f, part) for f, part in zip(fields, key, strict=True))
    return [m for m in encoded if m is not None]


def decode_action(actions: Mapping[int, ActionSpec], message: p4r.Action, owner: str) -> tuple[ActionSpec, ActionCall]:
    """The action that a message names, with its arguments in parameter order."""
    spec = actions.get(message.action_id)
    if spec is None:
        raise invalid(f"{owner}: no action {message.action_id:#010x}")
    given: dict[int, bytes] = {}
    for param in message.params:
        if param.param_id in given:
            raise invalid(f"{owner}: parameter {param.param_id} of {spec.name} is given twice")
        given[param.param_id] = param.value
    arguments = tuple(_decode_param(spec, p, given.pop(p.id, None)) for p in spec.params)
    if given:
        raise invalid(f"{owner}: action {spec.name} has no parameter {min(given)}")
    return spec, ActionCall(spec.index, arguments)


def encode_action(spec: ActionSpec, call: ActionCall) -> p4r.Action:
    """The message of a call."""
    message = p4r.Action(action_id=spec.id)
    for param, argument in zip(spec.params, call.arguments, strict=True):
        message.params.add(param_id=param.id, value=encode_value(param, argument))
    return message


def decode_port(value: bytes, what: str) -> int:
    """A port number from its byte string; any value but the drop port."""
    port = decode_unsigned(value, 32, what)
    return check_port(port, what)


def check_port(port: int, what: str) -> int:
    """The port, if it is one that a packet can leave through."""
    if port >= PORT_MAX:
        raise invalid(f"{what}: {port} is no port (0 to {PORT_MAX - 1})")
    return port


def decode_counter(message: p4r.CounterData, what: str) -> CounterValue:
    """A counter's value; negative numbers are refused."""
    if message.packet_count < 0 or message.byte_count < 0:
        raise invalid(f"{what}: a counter cannot be negative")
    return CounterValue(message.packet_count, message.byte_count)


def encode_counter(value: CounterValue) -> p4r.CounterData:
    """A counter's message; int64 bounds what it can show."""
    return p4r.CounterData(packet_count=min(value.packets, INT64_MAX), byte_count=min(value.bytes, INT64_MAX))


def check_colors(message: p4r.MeterCounterData, what: str) -> None:
    """Clients may only set a meter's counters to zero."""
    for counter in (message.green, message.yellow, message.red):
        if counter.packet_count or counter.byte_count:
            raise invalid(f"{what}: a meter's counters can only be set to zero")


def encode_colors(counts: ColorCounts) -> p4r.MeterCounterData:
    """What a meter has marked."""
    return p4r.MeterCounterData(
        green=encode_counter(counts.green), yellow=encode_counter(counts.yellow), red=encode_counter(counts.red)
    )


def decode_meter(spec: MeterSpec, config: p4r.MeterConfig) -> MeterConfig:
    """The rates of a meter configuration, checked against the meter's type."""
    rates = (config.cir, config.cburst, config.pir, config.pburst, config.eburst)
    if min(rates) < 0:
        raise invalid(f"meter {spec.name}: rates and bursts cannot be negative")
    if spec.single_rate and (config.pir, config.pburst) != (config.cir, config.cburst):
        raise invalid(f"meter {spec.name} has a single rate: pir and pburst must equal cir and cburst")
    if (not spec.single_rate or spec.two_colors) and config.eburst:
        raise invalid(f"meter {spec.name} has no excess burst: eburst must not be set")
    if spec.single_rate and not spec.two_colors:
        return MeterConfig(config.cir, config.cburst, config.cir, config.cburst + config.eburst)
    if config.pir < config.cir:
        raise invalid(f"meter {spec.name}: pir {config.pir} is below cir {config.cir}")
    return MeterConfig(config.cir, config.cburst, config.pir, config.pburst)


def decode_index(index: p4r.Index, size: int, what: str) -> int:
    """An array index within `size`: negative is INVALID_ARGUMENT, too large OUT_OF_RANGE."""
    if index.index < 0:
        raise invalid(f"{what}: negative index {index.index}")
    if index.index >= size:
        raise out_of_range(f"{what}: index {index.index} beyond its size {size}")
    return index.index


def decode_metadata(params: Sequence[ParamSpec], metadata: Iterable[p4r.PacketMetadata], owner: str) -> tuple[int, ...]:
    """Values of a controller header's fields, in order; each must be given exactly once."""
    given: dict[int, bytes] = {}
    for item in metadata:
        if item.metadata_id in given:
            raise invalid(f"{owner}: metadata {item.metadata_id} is given twice")
        given[item.metadata_id] = item.value
    values = []
    for param in params:
        if param.id not in given:
            raise invalid(f"{owner}: metadata {param.id} ({param.name}) is missing")
        values.append(decode_value(param, given.pop(param.id), f"{owner}.{param.name}"))
    if given:
        raise invalid(f"{owner} has no metadata {min(given)}")
    return tuple(values)


def encode_metadata(params: Sequence[ParamSpec], values: Iterable[int]) -> list[p4r.PacketMetadata]:
    """The messages of a controller header's fields."""
    return [p4r.PacketMetadata(metadata_id=p.id, value=encode_value(p, v)) for p, v in zip(params, values, strict=True)]


def decode_value(spec: FieldSpec | ParamSpec, value: bytes, what: str) -> int:
    """The number that a client's byte string or SDN string stands for."""
    if spec.strings is not None:
        return spec.strings.decode(value, what)
    return decode_unsigned(value, spec.width, what)


def encode_value(spec: FieldSpec | ParamSpec, number: int) -> bytes:
    """What a client sees of a number."""
    return encode_unsigned(number) if spec.strings is None else spec.strings.encode(number)


def is_wildcard(field: FieldSpec, part: KeyField) -> bool:
    """Whether a key field matches anything."""
    if field.match is Match.RANGE:
        return part == (0, _ones(field.width))
    return field.match is not Match.EXACT and part[1] == 0


def _ones(width: int) -> int:
    return (1 << width) - 1


def _decode_field(field: FieldSpec, match: p4r.FieldMatch | None, owner: str) -> KeyField:
    what = f"{owner}.{field.name}"
    if match is None:
        if field.match is Match.EXACT:
            raise invalid(f"{what}: an exact field cannot be left out")
        return (0, _ones(field.width)) if field.match is Match.RANGE else (0, 0)
    kind = match.WhichOneof("field_match_type")
    if kind != field.match.name.lower():
        raise invalid(f"{what} is an {field.match.name.lower()} field, the match is {kind or 'empty'}")
    match field.match:
        case Match.EXACT:
            return decode_value(field, match.exact.value, what), _ones(field.width)
        case Match.OPTIONAL:
            return decode_value(field, match.optional.value, what), _ones(field.width)
        case Match.LPM:
            return _decode_lpm(field, match.lpm, what)
        case Match.TERNARY:
            return _decode_ternary(field, match.ternary, what)
        case Match.RANGE:
            return _decode_range(field, match.range, what)


def _decode_lpm(field: FieldSpec, lpm: p4r.FieldMatch.LPM, what: str) -> KeyField:
    value = decode_unsigned(lpm.value, field.width, what)
    if not 0 < lpm.prefix_len <= field.width:
        reason = "leave the field out to match anything" if lpm.prefix_len == 0 else f"the field has {field.width} bits"
        raise invalid(f"{what}: prefix length {lpm.prefix_len}: {reason}")
    mask = _ones(field.width) ^ _ones(field.width - lpm.prefix_len)
    if value & ~mask:
        raise invalid(f"{what}: bits are set beyond the prefix of {lpm.prefix_len} bits")
    return value, mask


def _decode_ternary(field: FieldSpec, ternary: p4r.FieldMatch.Ternary, what: str) -> KeyField:
    value = decode_unsigned(ternary.value, field.width, what)
    mask = decode_unsigned(ternary.mask, field.width, f"{what} mask")
    if mask == 0:
        raise invalid(f"{what}: mask is zero: leave the field out to match anything")
    if value & ~mask:
        raise invalid(f"{what}: bits are set outside the mask")
    return value, mask


def _decode_range(field: FieldSpec, bounds: p4r.FieldMatch.Range, what: str) -> KeyField:
    low = decode_unsigned(bounds.low, field.width, what)
    high = decode_unsigned(bounds.high, field.width, what)
    if low > high:
        raise invalid(f"{what}: low {low} is above high {high}")
    if low == 0 and high == _ones(field.width):
        raise invalid(f"{what}: the range covers everything: leave the field out to match anything")
    return low, high


def _encode_field(field: FieldSpec, part: KeyField) -> p4r.FieldMatch | None:
    if is_wildcard(field, part):
        return None
    value, mask = part
    message = p4r.FieldMatch(field_id=field.id)
    match field.match:
        case Match.EXACT:
            message.exact.value = encode_value(field, value)
        case Match.OPTIONAL:
            message.optional.value = encode_value(field, value)
        case Match.LPM:
            message.lpm.value = encode_unsigned(value)
            message.lpm.prefix_len = mask.bit_count()
        case Match.TERNARY:
            message.ternary.value = encode_unsigned(value)
            message.ternary.mask = encode_unsigned(mask)
        case Match.RANGE:
            message.range.low = encode_unsigned(value)
            message.range.high = encode_unsigned(mask)
    return message


def _decode_param(spec: ActionSpec, param: ParamSpec, value: bytes | None) -> int:
    if value is None:
        raise invalid(f"action {spec.name}: parameter {param.id} ({param.name}) is missing")
    return decode_value(param, value, f"{spec.name}.{param.name}")
