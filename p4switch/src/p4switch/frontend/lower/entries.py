"""Entries and default actions written in the source."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.callee import BoundArguments
from p4switch.frontend.lower.annotations import find_annotation, ir_annotations
from p4switch.frontend.lower.known_values import known_int, known_value
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.lower.named_objects import action_index
from p4switch.frontend.lower.types_to_ir import ir_constant
from p4switch.frontend.p4_types import EnumValue, Type
from p4switch.ir import types as irt
from p4switch.ir.program import ConstEntry, KeyMatch, MatchKind, TableAction, TableKey
from p4switch.values import ActionCall

PRIORITY_MAX = (1 << 31) - 1
"""P4Runtime's priorities are int32."""


def lower_action_call(low: Lowering, written: ast.Expr | ast.ActionRef) -> ActionCall:
    """A default action, or the action of an entry, with its data."""
    action, arguments = low.facts.action_calls[written]
    return ActionCall(action_index(low, action), action_data(low, arguments))


def action_data(low: Lowering, arguments: BoundArguments) -> tuple[int, ...]:
    out: list[int] = []
    for p, e in arguments:
        if p.direction or e is None:
            continue
        value = known_value(low, e)
        if value is None:
            raise low.reporter.fail(e.at, "this must be known at compile time")
        out.append(ir_constant(low, value, low.concrete(low.types[p]), e.at).value)
    return tuple(out)


def lower_entries(
    low: Lowering,
    decl: ast.TableDecl,
    keys: list[TableKey],
    actions: list[TableAction],
    properties: dict[str, ast.Property],
) -> tuple[ConstEntry, ...]:
    default_only = {a.action for a in actions if a.default_only}
    needs_priority = any(k.match not in (MatchKind.EXACT, MatchKind.LPM) for k in keys)
    explicit = [e for e in decl.entries if e.priority is not None]
    if explicit and not needs_priority:
        raise low.reporter.fail(explicit[0].at, f"entries of table {decl.name} cannot overlap; drop the priority")
    if explicit and decl.entries[0].priority is None:
        raise low.reporter.fail(decl.entries[0].at, "the first entry needs a priority when others have one")
    priorities = _priorities(low, decl, properties) if needs_priority else [0] * len(decl.entries)
    out: list[ConstEntry] = []
    for entry, priority in zip(decl.entries, priorities, strict=True):
        matches = tuple(
            _key_match(low, e, k, low.types[low.checked_form(key.expr)])
            for e, k, key in zip(low.facts.entry_keys[entry], keys, decl.keys, strict=False)
        )
        call = lower_action_call(low, entry.action)
        if call.action in default_only:
            raise low.reporter.fail(entry.at, f"action {entry.action.name} is @defaultonly")
        out.append(
            ConstEntry(
                matches,
                call,
                priority,
                entry.is_const or decl.entries_const,
                ir_annotations(entry.annotations),
                low.location(entry.at),
            )
        )
    return tuple(out)


def _priorities(low: Lowering, decl: ast.TableDecl, properties: dict[str, ast.Property]) -> list[int]:
    """Priorities in P4Runtime's sense (larger wins)."""
    count = len(decl.entries)
    if all(e.priority is None for e in decl.entries) and "largest_priority_wins" not in properties:
        ranks = [_annotated_rank(e, i + 1) for i, e in enumerate(decl.entries)]
        return [max(ranks) - rank + 1 for rank in ranks]
    wins = properties.get("largest_priority_wins")
    largest_wins = wins is None or known_value(low, low.checked_form(wins.value)) is not False
    delta_property = properties.get("priority_delta")
    delta = 1 if delta_property is None else known_int(low, low.checked_form(delta_property.value), "priority_delta")
    given: list[int] = []
    previous = 0
    for i, e in enumerate(decl.entries):
        if e.priority is not None:
            previous = known_int(low, low.checked_form(e.priority), "a priority")
        elif i == 0:
            previous = 1 + (count - 1) * delta if largest_wins else 1
        else:
            previous = previous - delta if largest_wins else previous + delta
        if previous < 0 or previous > PRIORITY_MAX:
            raise low.reporter.fail(e.at, f"the priority of this entry comes to {previous}")
        given.append(previous)
    if largest_wins:
        return given
    highest = max(given)
    return [highest - p + 1 for p in given]


def _annotated_rank(entry: ast.Entry, position: int) -> int:
    """Rank of an entry, the smallest first: its position, or bmv2's @priority."""
    annotation = find_annotation(entry.annotations, "priority")
    body = ir_annotations([annotation])[0].body if annotation is not None else ()
    return body[0] if body and isinstance(body[0], int) else position


def _key_match(low: Lowering, e: ast.Expr, key: TableKey, t: Type) -> KeyMatch:
    width = irt.width_of(key.type)
    ones = (1 << width) - 1
    if isinstance(e, ast.DefaultExpr):
        return KeyMatch(0, ones if key.match is MatchKind.RANGE else 0, 0)
    if isinstance(e, ast.Mask):
        value, mask = key_number(low, e.left, key, t), key_number(low, e.right, key, t)
        prefix = bin(mask).count("1")
        if key.match is MatchKind.LPM and mask != (ones >> (width - prefix)) << (width - prefix):
            raise low.reporter.fail(e.at, "the mask of an lpm key must be a prefix")
        return KeyMatch(value & mask, mask, prefix)
    if isinstance(e, ast.Range):
        return KeyMatch(key_number(low, e.left, key, t), key_number(low, e.right, key, t), width)
    value = key_number(low, e, key, t)
    return KeyMatch(value, value if key.match is MatchKind.RANGE else ones, width)


def key_number(low: Lowering, e: ast.Expr, key: TableKey, t: Type) -> int:
    value = known_value(low, e)
    if value is None:
        raise low.reporter.fail(e.at, "this must be known at compile time")
    if isinstance(value, EnumValue):
        return ir_constant(low, value, low.concrete(t), e.at).value
    return int(value) & ((1 << irt.width_of(key.type)) - 1)
