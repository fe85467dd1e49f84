"""Tables, made once for each elaborated instance of their control."""

from __future__ import annotations

from dataclasses import replace

from p4switch.frontend import ast
from p4switch.frontend.facts import Facts
from p4switch.frontend.lower.annotations import find_annotation, ir_annotations
from p4switch.frontend.lower.bindings import Instance
from p4switch.frontend.lower.entries import lower_action_call, lower_entries
from p4switch.frontend.lower.known_values import known_int, known_value
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.lower.named_objects import KINDS, action_index, make_extern
from p4switch.frontend.lower.types_to_ir import declared_name, ir_type
from p4switch.frontend.p4_types import TBlock, TStruct
from p4switch.ir import types as irt
from p4switch.ir.program import Table, TableAction, TableKey
from p4switch.values import ActionCall


def make_table(low: Lowering, decl: ast.TableDecl, name: str) -> Instance:
    """A table with its actions, default, entries and attached objects."""
    properties = {p.name: p for p in decl.properties}
    keys: list[TableKey] = []
    selectors: list[irt.Scalar] = []
    for key in decl.keys:
        _table_key(low, key, keys, selectors)
    actions = [
        TableAction(
            action_index(low, low.facts.decls[ref]),
            ir_annotations(ref.annotations),
            find_annotation(ref.annotations, "tableonly") is not None,
            find_annotation(ref.annotations, "defaultonly") is not None,
        )
        for ref in decl.actions
    ]
    default, const_default = _default_action(low, decl, properties.get("default_action"), actions)
    if "default_action" in properties and any(a.table_only and a.action == default.action for a in actions):
        raise low.reporter.fail(properties["default_action"].at, "the default action is @tableonly")
    index = len(low.tables)
    low.claim("table", name, decl.at)
    instance = Instance("table", name, index, decl)
    size = properties.get("size")
    timeout = properties.get("support_timeout") or properties.get("supportTimeout") or properties.get("idle_timeout")
    entries = lower_entries(low, decl, keys, actions, properties)
    implementation = _attached(low, properties.get("implementation"), name, ("action_profile", "action_selector"))
    counter = _attached(low, properties.get("counters"), name, ("direct_counter", "DirectCounter"))
    meter = _attached(low, properties.get("meters"), name, ("direct_meter", "DirectMeter"))
    low.tables.append(
        Table(
            index,
            name,
            tuple(keys),
            tuple(actions),
            default,
            const_default,
            entries,
            decl.entries_const,
            0 if size is None else known_int(low, low.checked_form(size.value), "the size of a table"),
            implementation,
            counter,
            meter,
            timeout is not None and known_value(low, low.checked_form(timeout.value)) is True,
            ir_annotations(decl.annotations),
            low.location(decl.at),
            tuple(selectors),
        )
    )
    if implementation is not None:
        profile = low.profiles[implementation]
        low.profiles[implementation] = replace(profile, tables=(*profile.tables, index))
    if counter is not None:
        if low.counters[counter].table is not None:
            raise low.reporter.fail(properties["counters"].at, "a direct counter belongs to one table only")
        low.counters[counter] = replace(low.counters[counter], table=index)
    if meter is not None:
        low.meters[meter] = replace(low.meters[meter], table=index)
    return instance


def _table_key(low: Lowering, key: ast.KeyElement, keys: list[TableKey], selectors: list[irt.Scalar]) -> None:
    expr = low.checked_form(key.expr)
    t = low.concrete(low.types[expr])
    scalar = ir_type(low, t, key.at)
    if not isinstance(scalar, irt.Bits | irt.Bool | irt.EnumType):
        raise low.unsupported(key.at, f"a key of type {t}")
    if key.match_kind == "selector":
        selectors.append(scalar)
        return
    if key.match_kind not in KINDS:
        raise low.unsupported(key.match_at, f"match kind {key.match_kind}")
    annotation = find_annotation(key.annotations, "name")
    name = ""
    if annotation is not None:
        body = ir_annotations([annotation])[0].body
        name = str(body[0]) if body else ""
    if not name:
        name = key_name(low.facts, expr) or ""
    if not name:
        raise low.reporter.fail(key.at, "a key that is more than a field needs a @name")
    keys.append(TableKey(name, scalar, KINDS[key.match_kind], ir_annotations(key.annotations), declared_name(t)))


def _default_action(
    low: Lowering, decl: ast.TableDecl, prop: ast.Property | None, actions: list[TableAction]
) -> tuple[ActionCall, bool]:
    if prop is None:
        no_action = low.checked.names.get("NoAction")
        if not isinstance(no_action, ast.ActionDecl):
            raise low.unsupported(decl.at, "a table without default_action where NoAction is not declared")
        index = action_index(low, no_action)
        if all(a.action != index for a in actions):
            actions.append(TableAction(index, (irt.Annotation("defaultonly"),), default_only=True))
        return ActionCall(index, ()), False
    return lower_action_call(low, prop.value), prop.is_const


def _attached(low: Lowering, prop: ast.Property | None, table_name: str, kinds: tuple[str, ...]) -> int | None:
    """Index of the extern that a property names or constructs."""
    if prop is None:
        return None
    e = low.checked_form(prop.value)
    if isinstance(e, ast.Call) and isinstance(low.types[e], TBlock):
        annotation = find_annotation(prop.annotations, "name")
        body = ir_annotations([annotation])[0].body if annotation is not None else ()
        name = str(body[0]).removeprefix(".") if body else table_name
        holder = ast.Instantiation(
            at=prop.at, name=prop.name, annotations=prop.annotations, ref=ast.BaseType(prop.at, "_"), arguments=()
        )
        instance = make_extern(low, holder, low.facts.callees[e], name)
    else:
        found = low.env.find(low.facts.decls.get(e)) if isinstance(e, ast.Name) else None
        if not isinstance(found, Instance):
            raise low.reporter.fail(e.at, f"property {prop.name} needs an instance of {' or '.join(kinds)}")
        instance = found
    if instance.kind not in kinds:
        raise low.reporter.fail(
            e.at, f"property {prop.name} needs an instance of {' or '.join(kinds)}, not {instance.kind}"
        )
    return instance.index


def key_name(facts: Facts, e: ast.Expr) -> str | None:
    """p4c's name of a key field, None where it asks for @name."""
    if isinstance(e, ast.Name):
        return e.name
    if isinstance(e, ast.Member):
        base, field = key_name(facts, e.base), _field_name(facts, e)
        if field.startswith("."):
            return field[1:]
        return None if base is None else f"{base}.{field}"
    if isinstance(e, ast.Index):
        base, known = key_name(facts, e.base), facts.values.get(e.index)
        index = known if isinstance(known, int) else key_name(facts, e.index)
        return None if base is None or index is None else f"{base}[{index}]"
    if isinstance(e, ast.Slice) and e in facts.bounds:
        base = key_name(facts, e.base)
        high, low = facts.bounds[e]
        return None if base is None else f"{base}[{high}:{low}]"
    if isinstance(e, ast.Call) and isinstance(e.function, ast.Member) and e.function.name == "isValid":
        base = key_name(facts, e.function.base)
        return None if base is None else f"{base}.$valid$"
    if isinstance(e, ast.Binary) and e.op == "&":
        left, right = _operand_name(facts, e.left), _operand_name(facts, e.right)
        return None if left is None or right is None else f"{left} & {right}"
    return None


def _operand_name(facts: Facts, e: ast.Expr) -> str | None:
    value = facts.values.get(e)
    return f"0x{value:x}" if isinstance(value, int) else key_name(facts, e)


def _field_name(facts: Facts, e: ast.Member) -> str:
    """Name of a field, from @name where its declaration has one."""
    base = facts.types[e.base]
    if isinstance(base, TStruct):
        for f in base.decl.fields:
            annotation = find_annotation(f.annotations, "name") if f.name == e.name else None
            if annotation is not None and annotation.tokens and annotation.tokens[0][0] == "string":
                return annotation.tokens[0][1][1:-1]
    return e.name
