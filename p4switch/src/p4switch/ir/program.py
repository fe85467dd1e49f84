"""The lowered program: its blocks of statements, and every object that the control plane can name.

Objects refer to each other by index into the program's tuples (`Program.tables[3]`); these indices are also what
the generated C and the runtime use. `name` is the fully qualified control-plane name (`KvIngress.kv_cache`), with
@name and @hidden already applied; P4Info ids are computed from names and @id annotations by p4info.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from p4switch.ir.expr import Expr
from p4switch.ir.stmt import Body, CloneType, HashAlgorithm, Location
from p4switch.ir.types import Annotation, Bits, EnumType, HeaderType, Scalar, StructType, Type
from p4switch.values import ActionCall


class MatchKind(enum.Enum):
    """How a key field is compared."""

    EXACT = "exact"
    LPM = "lpm"
    TERNARY = "ternary"
    RANGE = "range"
    OPTIONAL = "optional"


class CounterKind(enum.Enum):
    """What a counter or meter measures."""

    PACKETS = "packets"
    BYTES = "bytes"
    BOTH = "packets_and_bytes"


@dataclass(frozen=True, slots=True)
class Variable:
    """Storage with a unique name. All variables start zero, headers invalid."""

    name: str
    type: Type


@dataclass(frozen=True, slots=True)
class ActionParameter:
    """A parameter that the control plane supplies. `declared`: see types.Field."""

    name: str
    type: Scalar
    annotations: tuple[Annotation, ...] = ()
    declared: str | None = None


@dataclass(frozen=True, slots=True)
class Action:
    """An action of at least one table. `hidden`: @hidden. `control`: which control first uses it in a table;
    `shared`: it is declared outside of controls."""

    index: int
    name: str
    parameters: tuple[ActionParameter, ...]
    annotations: tuple[Annotation, ...]
    location: Location
    control: str
    shared: bool


@dataclass(frozen=True, slots=True)
class TableKey:
    """One field of a table's key; `name` from @name or the expression's source text."""

    name: str
    type: Scalar
    match: MatchKind
    annotations: tuple[Annotation, ...] = ()
    declared: str | None = None


@dataclass(frozen=True, slots=True)
class TableAction:
    """An action as a table lists it."""

    action: int
    annotations: tuple[Annotation, ...] = ()
    table_only: bool = False
    default_only: bool = False


@dataclass(frozen=True, slots=True)
class KeyMatch:
    """One key field of an entry in the source.

    exact: value; lpm: value and prefix_bits; ternary: value and mask; range: low in value, high in mask;
    optional: value and mask (all ones or zero). A wildcard has mask 0 (range: 0..max).
    """

    value: int
    mask: int
    prefix_bits: int


@dataclass(frozen=True, slots=True)
class ConstEntry:
    """An entry written in the source, in source order; higher `priority` (P4Runtime's sense) wins."""

    keys: tuple[KeyMatch, ...]
    call: ActionCall
    priority: int
    is_const: bool
    annotations: tuple[Annotation, ...] = ()
    location: Location | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """A match-action table. `size` 0: none given in the source."""

    index: int
    name: str
    keys: tuple[TableKey, ...]
    actions: tuple[TableAction, ...]
    default_action: ActionCall
    const_default: bool
    entries: tuple[ConstEntry, ...]
    const_entries: bool
    size: int
    implementation: int | None  # index into Program.action_profiles
    direct_counter: int | None  # index into Program.counters
    direct_meter: int | None  # index into Program.meters
    support_timeout: bool
    annotations: tuple[Annotation, ...]
    location: Location
    selector_inputs: tuple[Scalar, ...] = ()
    """Types of the `selector` keys; their expressions follow the ordinary keys' in ApplyTable.keys."""


@dataclass(frozen=True, slots=True)
class ActionProfile:
    """action_profile or, with `selector_algorithm`, action_selector."""

    index: int
    name: str
    size: int
    selector_algorithm: HashAlgorithm | None
    annotations: tuple[Annotation, ...]
    tables: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Register:
    """An array of `size` values, each `initial` at the start.

    A cell that is a struct (`struct`) is kept as one number, the first field in its highest bits.
    """

    index: int
    name: str
    element: Scalar
    size: int
    annotations: tuple[Annotation, ...]
    declared: str | None = None
    index_declared: str | None = None
    initial: int = 0
    struct: StructType | None = None


@dataclass(frozen=True, slots=True)
class Counter:
    """An array of counters, or (table not None) a direct one.

    `called`: a direct one counts where an action calls it (DirectCounterCount), not at each match.
    """

    index: int
    name: str
    kind: CounterKind
    size: int
    annotations: tuple[Annotation, ...]
    table: int | None = None
    direct: bool = False
    index_declared: str | None = None
    called: bool = False


@dataclass(frozen=True, slots=True)
class Meter:
    """An array of two-rate three-colour meters, or (direct) one for each entry of a table.

    `called`: a direct one marks packets where an action calls it (DirectMeterExecute), not at each match.
    """

    index: int
    name: str
    kind: CounterKind
    size: int
    annotations: tuple[Annotation, ...]
    table: int | None = None
    direct: bool = False
    index_declared: str | None = None
    called: bool = False


@dataclass(frozen=True, slots=True)
class Digest:
    """A kind of message to the control plane: name of the type, and what it carries (nested structs kept)."""

    index: int
    name: str
    fields: tuple[DigestField, ...]
    struct: StructType | HeaderType | Scalar
    annotations: tuple[Annotation, ...] = ()


@dataclass(frozen=True, slots=True)
class DigestField:
    """One scalar of a digest, flattened in order; `name` with dots where structs nest."""

    name: str
    type: Scalar


@dataclass(frozen=True, slots=True)
class ValueSet:
    """A parser value set that the control plane fills."""

    index: int
    name: str
    keys: tuple[TableKey, ...]
    size: int
    annotations: tuple[Annotation, ...]


@dataclass(frozen=True, slots=True)
class ControllerHeader:
    """@controller_header("packet_in" | "packet_out") and its fields."""

    name: str
    header: HeaderType
    annotations: tuple[Annotation, ...]


@dataclass(frozen=True, slots=True)
class FieldList:
    """Lvalues that clone, resubmit and recirculate preserve. `number`: @field_list's; None: given in the call."""

    index: int
    number: int | None
    fields: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class SerializableEnum:
    """`enum bit<W> name {...}`: for P4Info's type info and for readers of constants."""

    name: str
    underlying: Bits
    members: tuple[tuple[str, int], ...]
    annotations: tuple[Annotation, ...] = ()


@dataclass(frozen=True, slots=True)
class NewType:
    """`type T name`: for P4Info's type info (translation annotations)."""

    name: str
    underlying: str  # name of another new type or serializable enum, or "" when `representation` is it
    representation: Scalar
    annotations: tuple[Annotation, ...] = ()


class MatchOp(enum.Enum):
    """How a select case compares one key."""

    ANY = "any"
    VALUE = "value"
    MASK = "mask"
    RANGE = "range"
    VALUE_SET = "value_set"


@dataclass(frozen=True, slots=True)
class SelectMatch:
    """value; value and mask; low and high; or the index of a value set (which takes all keys)."""

    op: MatchOp
    first: int = 0
    second: int = 0


@dataclass(frozen=True, slots=True)
class SelectCase:
    """All matches hold: go to `state`."""

    matches: tuple[SelectMatch, ...]
    state: str


@dataclass(frozen=True, slots=True)
class Transition:
    """First case that matches, in order; none: error NoMatch. No keys: one case, without condition."""

    keys: tuple[Expr, ...]
    cases: tuple[SelectCase, ...]


ACCEPT = "accept"
REJECT = "reject"


@dataclass(frozen=True, slots=True)
class ParserState:
    """A state: statements, then a transition."""

    name: str
    body: Body
    transition: Transition
    location: Location


@dataclass(frozen=True, slots=True)
class Parser:
    """The parser; states[0] is where it starts."""

    name: str
    variables: tuple[Variable, ...]
    states: tuple[ParserState, ...]


@dataclass(frozen=True, slots=True)
class Block:
    """A control: variables of its own (zero at the start) and one body."""

    name: str
    variables: tuple[Variable, ...]
    body: Body


@dataclass(frozen=True, slots=True)
class Thread:
    """Blocks that share one packet state: a parser, controls in the order in which a packet meets them, a deparser.

    The packet's variables are visible in every block. A variable of `intrinsic` is a struct that the runtime declares:
    `x` is `struct ps_x` there, and they begin the state in this order. `extracted` are headers of the runtime's own
    that the parser extracts. `name` is empty when the architecture has one thread. Controls have the names of the
    functions that the runtime calls.
    """

    name: str
    headers: Variable
    metadata: Variable
    intrinsic: tuple[Variable, ...]
    parser: Parser
    controls: tuple[tuple[str, Block], ...]
    deparser: Block
    extracted: tuple[Variable, ...] = ()

    def control(self, name: str) -> Block:
        """The control that is the runtime's function `name`."""
        return dict(self.controls)[name]

    def variables(self) -> tuple[Variable, ...]:
        """The packet's variables."""
        return (self.headers, self.metadata, *self.intrinsic, *self.extracted)

    def blocks(self) -> tuple[Block, ...]:
        """The controls in the order in which a packet meets them."""
        return (*(block for _, block in self.controls), self.deparser)


@dataclass(frozen=True, slots=True)
class Program:
    """Everything that the back end and the control plane need."""

    source: str
    architecture: str
    threads: tuple[Thread, ...]
    tables: tuple[Table, ...] = ()
    actions: tuple[Action, ...] = ()
    action_profiles: tuple[ActionProfile, ...] = ()
    registers: tuple[Register, ...] = ()
    counters: tuple[Counter, ...] = ()
    meters: tuple[Meter, ...] = ()
    digests: tuple[Digest, ...] = ()
    value_sets: tuple[ValueSet, ...] = ()
    controller_headers: tuple[ControllerHeader, ...] = ()
    field_lists: tuple[FieldList, ...] = ()
    errors: EnumType = field(default_factory=lambda: EnumType("error", ("NoError",)))
    serializable_enums: tuple[SerializableEnum, ...] = ()
    new_types: tuple[NewType, ...] = ()
    package_annotations: tuple[Annotation, ...] = ()

    def blocks(self) -> tuple[Block, ...]:
        """The controls in the order in which a packet meets them."""
        return tuple(block for thread in self.threads for block in thread.blocks())


__all__ = [
    "ACCEPT",
    "REJECT",
    "Action",
    "ActionParameter",
    "ActionProfile",
    "Block",
    "CloneType",
    "ConstEntry",
    "ControllerHeader",
    "Counter",
    "CounterKind",
    "Digest",
    "DigestField",
    "FieldList",
    "KeyMatch",
    "MatchKind",
    "MatchOp",
    "Meter",
    "NewType",
    "Parser",
    "ParserState",
    "Program",
    "Register",
    "SelectCase",
    "SelectMatch",
    "SerializableEnum",
    "Table",
    "TableAction",
    "TableKey",
    "Thread",
    "Transition",
    "ValueSet",
    "Variable",
]
