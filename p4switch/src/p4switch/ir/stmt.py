"""Statements of the lowered IR.

Control flow is structured: `Labelled`/`Leave` carry return, exit and break; `Loop` repeats until left.
Only `Extract`, `Advance`, `Lookahead` and `ParserCheck` may raise a parser error, and only in a parser.
Aggregates (structs, headers, stacks) are copied whole by `Assign` between lvalues of one type.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TypeAlias

from p4switch.ir.expr import Expr, LValue


@dataclass(frozen=True, slots=True)
class Location:
    """Where in the source a statement comes from (1-based line and column)."""

    file: str
    line: int
    column: int


class HashAlgorithm(enum.Enum):
    """v1model's algorithms."""

    CRC32 = "crc32"
    CRC32_CUSTOM = "crc32_custom"
    CRC16 = "crc16"
    CRC16_CUSTOM = "crc16_custom"
    RANDOM = "random"
    IDENTITY = "identity"
    CSUM16 = "csum16"
    XOR16 = "xor16"


@dataclass(frozen=True, slots=True)
class Assign:
    """target = value; the types are equal."""

    target: LValue
    value: Expr


@dataclass(frozen=True, slots=True)
class AssignSlice:
    """target[high:low] = value."""

    target: LValue
    high: int
    low: int
    value: Expr


@dataclass(frozen=True, slots=True)
class SetValidity:
    """header.setValid() or header.setInvalid(); a header that becomes valid has zero fields."""

    header: LValue
    valid: bool


@dataclass(frozen=True, slots=True)
class SetNextIndex:
    """stack.nextIndex = value (bit<32>), done by the lowering of push, pop and assignments to stacks."""

    stack: LValue
    value: Expr


@dataclass(frozen=True, slots=True)
class ShiftStack:
    """stack.push_front(count) or, with a negative count, stack.pop_front(-count)."""

    stack: LValue
    count: int


@dataclass(frozen=True, slots=True)
class If:
    """Two-way branch."""

    condition: Expr
    then: Body
    otherwise: Body


@dataclass(frozen=True, slots=True)
class SwitchCase:
    """Values (never empty) that lead to one body; no fall-through."""

    values: tuple[int, ...]
    body: Body


@dataclass(frozen=True, slots=True)
class Switch:
    """Many-way branch on a scalar of at most 64 bits."""

    selector: Expr
    cases: tuple[SwitchCase, ...]
    default: Body


@dataclass(frozen=True, slots=True)
class Labelled:
    """A block that `Leave(label)` inside of it ends."""

    label: str
    body: Body


@dataclass(frozen=True, slots=True)
class Leave:
    """Jump behind the enclosing `Labelled` or `Loop` of that label."""

    label: str


@dataclass(frozen=True, slots=True)
class Loop:
    """Repeat the body until `Leave(label)`."""

    label: str
    body: Body


@dataclass(frozen=True, slots=True)
class ActionArm:
    """What a table runs for one of its actions: parameters arrive in block variables, the body is inlined."""

    action: int  # index into Program.actions
    parameters: tuple[str, ...]  # block variables, in the order of the action's control-plane parameters
    body: Body


@dataclass(frozen=True, slots=True)
class ApplyTable:
    """Look up `table` with `keys` (in the table's order) and run the chosen action.

    `hit` (Bool) and `action_run` (bit<32>, index into Table.actions) name block variables that receive
    the outcome, or None where nobody asks.
    """

    table: int
    keys: tuple[Expr, ...]
    arms: tuple[ActionArm, ...]  # one for each of Table.actions, in that order
    hit: str | None
    action_run: str | None


@dataclass(frozen=True, slots=True)
class RegisterRead:
    """target = register[index], zero out of range."""

    target: LValue
    register: int
    index: Expr


@dataclass(frozen=True, slots=True)
class RegisterWrite:
    """register[index] = value, nothing out of range."""

    register: int
    index: Expr
    value: Expr


@dataclass(frozen=True, slots=True)
class RegisterAccess:
    """What a stateful ALU does with one cell in one go: the body reads it, computes and writes it."""

    register: int
    action: str
    body: Body
    location: Location


@dataclass(frozen=True, slots=True)
class CounterCount:
    """counter.count(index)."""

    counter: int
    index: Expr


@dataclass(frozen=True, slots=True)
class DirectCounterCount:
    """Counts at the matched entry, in an action of the counter's table. Of v1model's counters, which count at every
    match anyway, it is a note only."""

    counter: int


@dataclass(frozen=True, slots=True)
class MeterExecute:
    """target = colour of meter[index]: 0 green, 1 yellow, 2 red.

    `pre_color`: the colour that the packet has already (color-aware); None: green.
    """

    target: LValue
    meter: int
    index: Expr
    pre_color: Expr | None = None


@dataclass(frozen=True, slots=True)
class DirectMeterRead:
    """target = colour that the table's direct meter gave this packet."""

    target: LValue
    meter: int


@dataclass(frozen=True, slots=True)
class DirectMeterExecute:
    """target = colour that the matched entry's meter gives this packet now.

    Stands in an action of the meter's table. `pre_color`: as for MeterExecute.
    """

    target: LValue
    meter: int
    pre_color: Expr | None = None


@dataclass(frozen=True, slots=True)
class Hash:
    """target = base + algorithm(fields as one bit string) mod max (max 0: base alone).

    `fields` are scalars or varbits (as lvalues), concatenated in order, padded on the right to whole bytes.
    """

    target: LValue
    algorithm: HashAlgorithm
    base: Expr
    fields: tuple[Expr, ...]
    max: Expr


@dataclass(frozen=True, slots=True)
class VerifyChecksum:
    """If condition and algorithm(fields [payload]) != expected: set standard_metadata.checksum_error."""

    condition: Expr
    fields: tuple[Expr, ...]
    expected: Expr
    algorithm: HashAlgorithm
    with_payload: bool


@dataclass(frozen=True, slots=True)
class UpdateChecksum:
    """If condition: target = algorithm(fields [payload])."""

    condition: Expr
    fields: tuple[Expr, ...]
    target: LValue
    algorithm: HashAlgorithm
    with_payload: bool


@dataclass(frozen=True, slots=True)
class ChecksumGet:
    """target = Checksum16.get(fields), the extern of the first v1model."""

    target: LValue
    fields: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Random:
    """target = a random number in low..high, both inclusive."""

    target: LValue
    low: Expr
    high: Expr


@dataclass(frozen=True, slots=True)
class SendDigest:
    """Send the values (in the digest's field order) to the control plane."""

    digest: int
    values: tuple[Expr, ...]


class CloneType(enum.Enum):
    """Where the copy is made."""

    INGRESS_TO_EGRESS = "I2E"
    EGRESS_TO_EGRESS = "E2E"


@dataclass(frozen=True, slots=True)
class Clone:
    """Copy the packet into a session at the end of the block. field_list: the preserved metadata, None for none."""

    kind: CloneType
    session: Expr
    field_list: int | None


@dataclass(frozen=True, slots=True)
class Resubmit:
    """Parse the packet again as it arrived, at the end of ingress."""

    field_list: int | None


@dataclass(frozen=True, slots=True)
class Recirculate:
    """Parse the deparsed packet again, at the end of egress."""

    field_list: int | None


@dataclass(frozen=True, slots=True)
class MirrorPacket:
    """Copy the packet as it arrived to a session, with `fields` as one bit string in front of it."""

    session: Expr
    fields: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Truncate:
    """Cut the packet to `length` bytes when it leaves."""

    length: Expr


@dataclass(frozen=True, slots=True)
class MarkToDrop:
    """egress_spec = 511, mcast_grp = 0 in the given standard metadata."""

    metadata: LValue


@dataclass(frozen=True, slots=True)
class LogMessage:
    """Log `text`, with each {} replaced by the next value."""

    text: str
    values: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class Assertion:
    """assert or assume: where the condition is false the packet is dropped and the failure logged and counted."""

    condition: Expr
    text: str
    location: Location


@dataclass(frozen=True, slots=True)
class Extract:
    """Read a header from the packet and make it valid. `varbit_bits` is the length of its varbit field."""

    header: LValue
    varbit_bits: Expr | None


@dataclass(frozen=True, slots=True)
class Lookahead:
    """target = the next bits of the packet, without moving."""

    target: LValue


@dataclass(frozen=True, slots=True)
class Advance:
    """Move the cursor by this many bits."""

    bits: Expr


@dataclass(frozen=True, slots=True)
class ParserCheck:
    """Unless the condition holds, stop the parser with the error (an index into Program.errors)."""

    condition: Expr
    error: Expr


@dataclass(frozen=True, slots=True)
class Emit:
    """Append the header to the packet if it is valid."""

    header: LValue


Stmt: TypeAlias = (
    Assign
    | AssignSlice
    | SetValidity
    | SetNextIndex
    | ShiftStack
    | If
    | Switch
    | Labelled
    | Leave
    | Loop
    | ApplyTable
    | RegisterRead
    | RegisterWrite
    | RegisterAccess
    | CounterCount
    | DirectCounterCount
    | MeterExecute
    | DirectMeterRead
    | DirectMeterExecute
    | Hash
    | VerifyChecksum
    | UpdateChecksum
    | ChecksumGet
    | Random
    | SendDigest
    | Clone
    | Resubmit
    | Recirculate
    | MirrorPacket
    | Truncate
    | MarkToDrop
    | LogMessage
    | Assertion
    | Extract
    | Lookahead
    | Advance
    | ParserCheck
    | Emit
)
Body: TypeAlias = tuple[Stmt, ...]
