"""Actions, value sets and digests: objects that the control plane names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

from p4switch.frontend import ast
from p4switch.frontend.callee import Callee
from p4switch.frontend.lower.annotations import find_annotation, ir_annotations, parameter_name, qualified_name
from p4switch.frontend.lower.bindings import Instance
from p4switch.frontend.lower.known_values import known_int
from p4switch.frontend.lower.lowering import Lowering
from p4switch.frontend.lower.types_to_ir import declared_name, ir_type
from p4switch.frontend.p4_types import TStruct, TTuple, Type
from p4switch.ir import types as irt
from p4switch.ir.program import Action, ActionParameter, Digest, DigestField, MatchKind, TableKey, ValueSet

KINDS = {k.value: k for k in MatchKind}


def make_extern(low: Lowering, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
    """An instance of one of the architecture's externs."""
    assert callee.block is not None
    kind = callee.block.decl.name
    rule = low.architecture.instances.get(kind)
    if rule is None:
        raise low.unsupported(decl.at, f"extern {kind}, which {low.architecture.name} does not have")
    low.claim(f"extern {kind}", name, decl.at)
    return rule(decl, callee, name)


# ---------------------------------------------------------------- value sets and digests


def make_value_set(low: Lowering, decl: ast.ValueSetDecl, name: str) -> Instance:
    """A parser value set; its element is a scalar, a tuple or a struct of scalars."""
    t = low.concrete(low.types[decl])
    parts: list[tuple[str, Type, Sequence[ast.Annotation]]]
    if isinstance(t, TStruct):
        parts = [
            (f.name, low.concrete(ft), f.annotations) for f, (_, ft) in zip(t.decl.fields, t.fields(), strict=True)
        ]
    elif isinstance(t, TTuple):
        parts = [(f"f{i}", e, []) for i, e in enumerate(t.elements)]
    else:
        parts = [("", t, [])]
    keys: list[TableKey] = []
    for field_name, field_type, attached in parts:
        scalar = ir_type(low, field_type, decl.at)
        if not isinstance(scalar, irt.Bits | irt.Bool | irt.EnumType):
            raise low.unsupported(decl.at, f"a value set of {low.types[decl]}")
        match = find_annotation(attached, "match")
        kind = MatchKind.EXACT
        if match is not None:
            word = match.text.strip()
            if word not in KINDS:
                raise low.reporter.fail(match.at, f"match kind '{word}' is not known")
            kind = KINDS[word]
        keys.append(TableKey(field_name, scalar, kind, ir_annotations(attached), declared_name(field_type)))
    index = len(low.value_sets)
    size = known_int(low, low.checked_form(decl.size), "the size of a value set")
    low.value_sets.append(ValueSet(index, name, tuple(keys), size, ir_annotations(decl.annotations)))
    return Instance("value_set", name, index)


def digest_index(low: Lowering, t: irt.StructType | irt.HeaderType | irt.Scalar) -> int:
    """The digest of a type, made on first use. What has no name of its own is numbered, as by p4c."""
    for d in low.digests:
        if d.struct == t:
            return d.index
    if _has_name(t):
        return new_digest(low, t.name, t, t.annotations)
    return new_digest(low, f"digest_{sum(not _has_name(d.struct) for d in low.digests)}", t, ())


def _has_name(t: irt.StructType | irt.HeaderType | irt.Scalar) -> TypeGuard[irt.StructType | irt.HeaderType]:
    return isinstance(t, irt.StructType | irt.HeaderType) and not getattr(t, "is_tuple", False)


def new_digest(
    low: Lowering,
    name: str,
    t: irt.StructType | irt.HeaderType | irt.Scalar,
    annotations: tuple[irt.Annotation, ...],
) -> int:
    """A digest under a name of its own."""
    fields: list[DigestField] = []
    if isinstance(t, irt.StructType | irt.HeaderType):
        _digest_fields(low, "", t, fields)
    else:
        fields.append(DigestField("value", t))
    low.digests.append(Digest(len(low.digests), name, tuple(fields), t, annotations))
    return len(low.digests) - 1


def _digest_fields(low: Lowering, prefix: str, t: irt.StructType | irt.HeaderType, out: list[DigestField]) -> None:
    for f in t.fields:
        if isinstance(f.type, irt.StructType | irt.HeaderType):
            _digest_fields(low, f"{prefix}{f.name}.", f.type, out)
        elif isinstance(f.type, irt.Bits | irt.Bool | irt.EnumType):
            out.append(DigestField(prefix + f.name, f.type))


# ---------------------------------------------------------------- actions


def action_instance(low: Lowering, decl: ast.ActionDecl) -> Instance:
    """The action as this environment knows it; declared globally on first use."""
    found = low.env.find(decl)
    if isinstance(found, Instance):
        return found
    instance = Instance("action", qualified_name("", decl), decl=decl)
    low.globals.bind(decl, instance)
    return instance


def action_index(low: Lowering, decl: ast.ActionDecl) -> int:
    """Index of the control-plane action, made on first use by a table."""
    instance = action_instance(low, decl)
    if instance.index >= 0:
        return instance.index
    parameters: list[ActionParameter] = []
    for p in decl.parameters:
        if p.direction:
            continue
        t = low.concrete(low.types[p])
        scalar = ir_type(low, t, p.at)
        if not isinstance(scalar, irt.Bits | irt.Bool | irt.EnumType):
            raise low.unsupported(p.at, f"an action parameter of type {t}")
        parameters.append(ActionParameter(parameter_name(p), scalar, ir_annotations(p.annotations), declared_name(t)))
    low.claim("action", instance.name, decl.at)
    instance.index = len(low.actions)
    low.actions.append(
        Action(
            instance.index,
            instance.name,
            tuple(parameters),
            ir_annotations(decl.annotations),
            low.location(decl.at),
            low.env.prefix,
            low.globals.find(decl) is not None,
        )
    )
    return instance.index
