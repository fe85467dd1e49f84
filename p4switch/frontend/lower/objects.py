"""Actions, tables, value sets and digests: objects the control plane names, made once for each elaborated instance."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from p4switch.frontend import ast
from p4switch.frontend.check_call import Callee
from p4switch.frontend.lower.base import Instance, declared_name, find_annotation, qualified_name
from p4switch.frontend.lower.expressions import ExpressionLowering
from p4switch.frontend.types import EnumValue, TBlock, TStruct, TTuple, Type
from p4switch.ir import types as irt
from p4switch.ir.program import (
    Action,
    ActionParameter,
    ActionProfile,
    ConstEntry,
    Counter,
    Digest,
    DigestField,
    FieldList,
    KeyMatch,
    MatchKind,
    Meter,
    Register,
    Table,
    TableAction,
    TableKey,
    ValueSet,
)
from p4switch.values import ActionCall

PRIORITY_MAX = (1 << 31) - 1
"""P4Runtime's priorities are int32."""
_KINDS = {k.value: k for k in MatchKind}

if TYPE_CHECKING:
    from p4switch.arch.base import Architecture


class ObjectLowering(ExpressionLowering):
    """Creates actions, tables, value sets and digests, and keeps what the architecture's externs create."""

    def __init__(self, checker: Any, reporter: Any) -> None:
        super().__init__(checker, reporter)
        self._names: set[tuple[str, str]] = set()
        self.architecture: Architecture  # chosen by the package of `main` before anything is made
        self.field_lists: list[FieldList] = []
        self.registers: list[Register] = []
        self.counters: list[Counter] = []
        self.meters: list[Meter] = []
        self.profiles: list[ActionProfile] = []
        self.actions: list[Action] = []
        self.tables: list[Table] = []
        self.value_sets: list[ValueSet] = []
        self.digests: list[Digest] = []
        self.table_decls: list[ast.TableDecl] = []

    def claim(self, kind: str, name: str, at: int) -> None:
        """Objects of one kind have different control-plane names; @name can make two alike."""
        if (kind, name) in self._names:
            raise self.reporter.fail(at, f"another {kind} has the control-plane name '{name}' already")
        self._names.add((kind, name))

    # ---------------------------------------------------------------- externs

    def make_extern(self, decl: ast.Declaration, callee: Callee, name: str) -> Instance:
        """An instance of one of the architecture's externs."""
        assert callee.block is not None
        kind = callee.block.decl.name
        rule = self.architecture.instances.get(kind)
        if rule is None:
            raise self.unsupported(decl.at, f"extern {kind}, which {self.architecture.name} does not have")
        self.claim(f"extern {kind}", name, decl.at)
        return rule(decl, callee, name)

    # ---------------------------------------------------------------- value sets and digests

    def make_value_set(self, decl: ast.ValueSetDecl, name: str) -> Instance:
        """A parser value set; its element is a scalar, a tuple or a struct of scalars."""
        t = self.concrete(decl.type)
        parts: list[tuple[str, Type, list[ast.Annotation]]]
        if isinstance(t, TStruct):
            parts = [
                (f.name, self.concrete(ft), f.annotations) for f, (_, ft) in zip(t.decl.fields, t.fields(), strict=True)
            ]
        elif isinstance(t, TTuple):
            parts = [(f"f{i}", e, []) for i, e in enumerate(t.elements)]
        else:
            parts = [("", t, [])]
        keys: list[TableKey] = []
        for field_name, field_type, attached in parts:
            scalar = self.type(field_type, decl.at)
            if not isinstance(scalar, irt.Bits | irt.Bool | irt.EnumType):
                raise self.unsupported(decl.at, f"a value set of {decl.type}")
            match = find_annotation(attached, "match")
            kind = MatchKind.EXACT
            if match is not None:
                word = match.text.strip()
                if word not in _KINDS:
                    raise self.reporter.fail(match.at, f"match kind '{word}' is not known")
                kind = _KINDS[word]
            keys.append(TableKey(field_name, scalar, kind, self.annotations(attached), declared_name(field_type)))
        index = len(self.value_sets)
        size = self.known_int(decl.size, "the size of a value set")
        self.value_sets.append(ValueSet(index, name, tuple(keys), size, self.annotations(decl.annotations)))
        return Instance("value_set", name, index)

    def digest_index(self, t: irt.StructType | irt.HeaderType) -> int:
        """The digest of a type, made on first use."""
        for d in self.digests:
            if d.struct == t:
                return d.index
        name = t.name if not getattr(t, "is_tuple", False) else f"digest_{len(self.digests)}"
        return self.new_digest(name, t, t.annotations)

    def new_digest(self, name: str, t: irt.StructType | irt.HeaderType, annotations: tuple[irt.Annotation, ...]) -> int:
        """A digest under a name of its own."""
        fields: list[DigestField] = []
        self._digest_fields("", t, fields)
        self.digests.append(Digest(len(self.digests), name, tuple(fields), t, annotations))
        return len(self.digests) - 1

    def _digest_fields(self, prefix: str, t: irt.StructType | irt.HeaderType, out: list[DigestField]) -> None:
        for f in t.fields:
            if isinstance(f.type, irt.StructType | irt.HeaderType):
                self._digest_fields(f"{prefix}{f.name}.", f.type, out)
            elif isinstance(f.type, irt.Bits | irt.Bool | irt.EnumType):
                out.append(DigestField(prefix + f.name, f.type))

    # ---------------------------------------------------------------- actions

    def action_instance(self, decl: ast.ActionDecl) -> Instance:
        """The action as this environment knows it; declared globally on first use."""
        found = self.env.find(decl)
        if isinstance(found, Instance):
            return found
        instance = Instance("action", qualified_name("", decl), decl=decl)
        self.globals.bind(decl, instance)
        return instance

    def action_index(self, decl: ast.ActionDecl) -> int:
        """Index of the control-plane action, made on first use by a table."""
        instance = self.action_instance(decl)
        if instance.index >= 0:
            return instance.index
        parameters: list[ActionParameter] = []
        for p in decl.parameters:
            if p.direction:
                continue
            t = self.concrete(p.type)
            scalar = self.type(t, p.at)
            if not isinstance(scalar, irt.Bits | irt.Bool | irt.EnumType):
                raise self.unsupported(p.at, f"an action parameter of type {t}")
            parameters.append(
                ActionParameter(parameter_name(p), scalar, self.annotations(p.annotations), declared_name(t))
            )
        self.claim("action", instance.name, decl.at)
        instance.index = len(self.actions)
        self.actions.append(
            Action(
                instance.index,
                instance.name,
                tuple(parameters),
                self.annotations(decl.annotations),
                self.location(decl.at),
            )
        )
        return instance.index

    # ---------------------------------------------------------------- tables

    def make_table(self, decl: ast.TableDecl, name: str) -> Instance:
        """A table with its actions, default, entries and attached objects."""
        properties = {p.name: p for p in decl.properties}
        keys: list[TableKey] = []
        selectors: list[irt.Scalar] = []
        for key in decl.keys:
            self._table_key(key, keys, selectors)
        actions = [
            TableAction(
                self.action_index(ref.decl),
                self.annotations(ref.annotations),
                find_annotation(ref.annotations, "tableonly") is not None,
                find_annotation(ref.annotations, "defaultonly") is not None,
            )
            for ref in decl.actions
            if ref.decl is not None
        ]
        default, const_default = self._default_action(decl, properties.get("default_action"), actions)
        if "default_action" in properties and any(a.table_only and a.action == default.action for a in actions):
            raise self.reporter.fail(properties["default_action"].at, "the default action is @tableonly")
        index = len(self.tables)
        self.claim("table", name, decl.at)
        instance = Instance("table", name, index, decl)
        size = properties.get("size")
        timeout = (
            properties.get("support_timeout") or properties.get("supportTimeout") or properties.get("idle_timeout")
        )
        entries = self._entries(decl, keys, actions, properties)
        implementation = self._attached(properties.get("implementation"), name, ("action_profile", "action_selector"))
        counter = self._attached(properties.get("counters"), name, ("direct_counter",))
        meter = self._attached(properties.get("meters"), name, ("direct_meter",))
        self.tables.append(
            Table(
                index,
                name,
                tuple(keys),
                tuple(actions),
                default,
                const_default,
                entries,
                decl.entries_const,
                0 if size is None else self.known_int(size.value, "the size of a table"),
                implementation,
                counter,
                meter,
                timeout is not None and self.known(timeout.value) is True,
                self.annotations(decl.annotations),
                self.location(decl.at),
                tuple(selectors),
            )
        )
        self.table_decls.append(decl)
        if implementation is not None:
            profile = self.profiles[implementation]
            self.profiles[implementation] = replace(profile, tables=(*profile.tables, index))
        if counter is not None:
            if self.counters[counter].table is not None:
                raise self.reporter.fail(properties["counters"].at, "a direct counter belongs to one table only")
            self.counters[counter] = replace(self.counters[counter], table=index)
        if meter is not None:
            self.meters[meter] = replace(self.meters[meter], table=index)
        return instance

    def _table_key(self, key: ast.KeyElement, keys: list[TableKey], selectors: list[irt.Scalar]) -> None:
        t = self.concrete(key.expr.type)
        scalar = self.type(t, key.at)
        if not isinstance(scalar, irt.Bits | irt.Bool | irt.EnumType):
            raise self.unsupported(key.at, f"a key of type {t}")
        if key.match_kind == "selector":
            selectors.append(scalar)
            return
        if key.match_kind not in _KINDS:
            raise self.unsupported(key.match_at, f"match kind {key.match_kind}")
        annotation = find_annotation(key.annotations, "name")
        name = ""
        if annotation is not None:
            body = self.annotations([annotation])[0].body
            name = str(body[0]) if body else ""
        if not name:
            name = key_name(key.expr) or ""
        if not name:
            raise self.reporter.fail(key.at, "a key that is more than a field needs a @name")
        keys.append(TableKey(name, scalar, _KINDS[key.match_kind], self.annotations(key.annotations), declared_name(t)))

    def _default_action(
        self, decl: ast.TableDecl, prop: ast.Property | None, actions: list[TableAction]
    ) -> tuple[ActionCall, bool]:
        if prop is None:
            no_action = self.checker.scopes[0].get("NoAction")
            if not isinstance(no_action, ast.ActionDecl):
                raise self.unsupported(decl.at, "a table without default_action where NoAction is not declared")
            index = self.action_index(no_action)
            if all(a.action != index for a in actions):
                actions.append(TableAction(index, (irt.Annotation("defaultonly"),), default_only=True))
            return ActionCall(index, ()), False
        return self._action_call(prop.value), prop.is_const

    def _action_call(self, e: ast.Expr) -> ActionCall:
        if isinstance(e, ast.Call):
            action, arguments = e.target
            return ActionCall(self.action_index(action), self._data(arguments))
        assert isinstance(e, ast.Name)
        return ActionCall(self.action_index(e.decl), ())

    def _data(self, arguments: list[tuple[ast.Parameter, ast.Expr | None]]) -> tuple[int, ...]:
        out: list[int] = []
        for p, e in arguments:
            if p.direction or e is None:
                continue
            value = self.known(e)
            if value is None:
                raise self.reporter.fail(e.at, "this must be known at compile time")
            out.append(self.constant(value, self.concrete(p.type), e.at).value)
        return tuple(out)

    def _attached(self, prop: ast.Property | None, table_name: str, kinds: tuple[str, ...]) -> int | None:
        """Index of the extern that a property names or constructs."""
        if prop is None:
            return None
        e = prop.value
        if isinstance(e, ast.Call) and isinstance(e.type, TBlock):
            annotation = find_annotation(prop.annotations, "name")
            body = self.annotations([annotation])[0].body if annotation is not None else ()
            name = str(body[0]).removeprefix(".") if body else table_name
            holder = ast.Instantiation(
                at=prop.at, name=prop.name, annotations=prop.annotations, ref=ast.BaseType(prop.at, "_"), arguments=[]
            )
            instance = self.make_extern(holder, e.target, name)
        else:
            found = self.env.find(e.decl) if isinstance(e, ast.Name) else None
            if not isinstance(found, Instance):
                raise self.reporter.fail(e.at, f"property {prop.name} needs an instance of {' or '.join(kinds)}")
            instance = found
        if instance.kind not in kinds:
            raise self.reporter.fail(
                e.at, f"property {prop.name} needs an instance of {' or '.join(kinds)}, not {instance.kind}"
            )
        return instance.index

    # ---------------------------------------------------------------- entries

    def _entries(
        self,
        decl: ast.TableDecl,
        keys: list[TableKey],
        actions: list[TableAction],
        properties: dict[str, ast.Property],
    ) -> tuple[ConstEntry, ...]:
        default_only = {a.action for a in actions if a.default_only}
        needs_priority = any(k.match not in (MatchKind.EXACT, MatchKind.LPM) for k in keys)
        explicit = [e for e in decl.entries if e.priority is not None]
        if explicit and not needs_priority:
            raise self.reporter.fail(explicit[0].at, f"entries of table {decl.name} cannot overlap; drop the priority")
        if explicit and decl.entries[0].priority is None:
            raise self.reporter.fail(decl.entries[0].at, "the first entry needs a priority when others have one")
        priorities = self._priorities(decl, properties) if needs_priority else [0] * len(decl.entries)
        out: list[ConstEntry] = []
        for entry, priority in zip(decl.entries, priorities, strict=True):
            matches = tuple(
                self._key_match(e, k, key.expr.type) for e, k, key in zip(entry.keys, keys, decl.keys, strict=False)
            )
            assert entry.action.decl is not None
            if self.action_index(entry.action.decl) in default_only:
                raise self.reporter.fail(entry.at, f"action {entry.action.name} is @defaultonly")
            arguments = [
                (p, a.expr)
                for p, a in zip(
                    [p for p in entry.action.decl.parameters if not p.direction],
                    entry.action.arguments or [],
                    strict=False,
                )
            ]
            call = ActionCall(self.action_index(entry.action.decl), self._data(arguments))
            out.append(
                ConstEntry(
                    matches,
                    call,
                    priority,
                    entry.is_const or decl.entries_const,
                    self.annotations(entry.annotations),
                    self.location(entry.at),
                )
            )
        return tuple(out)

    def _priorities(self, decl: ast.TableDecl, properties: dict[str, ast.Property]) -> list[int]:
        """Priorities in P4Runtime's sense (larger wins)."""
        count = len(decl.entries)
        if all(e.priority is None for e in decl.entries) and "largest_priority_wins" not in properties:
            ranks = [self._annotated_rank(e, i + 1) for i, e in enumerate(decl.entries)]
            return [max(ranks) - rank + 1 for rank in ranks]
        wins = properties.get("largest_priority_wins")
        largest_wins = wins is None or self.known(wins.value) is not False
        delta_property = properties.get("priority_delta")
        delta = 1 if delta_property is None else self.known_int(delta_property.value, "priority_delta")
        given: list[int] = []
        previous = 0
        for i, e in enumerate(decl.entries):
            if e.priority is not None:
                previous = self.known_int(e.priority, "a priority")
            elif i == 0:
                previous = 1 + (count - 1) * delta if largest_wins else 1
            else:
                previous = previous - delta if largest_wins else previous + delta
            if previous < 0 or previous > PRIORITY_MAX:
                raise self.reporter.fail(e.at, f"the priority of this entry comes to {previous}")
            given.append(previous)
        if largest_wins:
            return given
        highest = max(given)
        return [highest - p + 1 for p in given]

    def _annotated_rank(self, entry: ast.Entry, position: int) -> int:
        """Rank of an entry, the smallest first: its position, or bmv2's @priority."""
        annotation = find_annotation(entry.annotations, "priority")
        body = self.annotations([annotation])[0].body if annotation is not None else ()
        return body[0] if body and isinstance(body[0], int) else position

    def _key_match(self, e: ast.Expr, key: TableKey, t: Type) -> KeyMatch:
        width = irt.width_of(key.type)
        ones = (1 << width) - 1
        if isinstance(e, ast.DefaultExpr):
            return KeyMatch(0, ones if key.match is MatchKind.RANGE else 0, 0)
        if isinstance(e, ast.Mask):
            value, mask = self._number(e.left, key, t), self._number(e.right, key, t)
            prefix = bin(mask).count("1")
            if key.match is MatchKind.LPM and mask != (ones >> (width - prefix)) << (width - prefix):
                raise self.reporter.fail(e.at, "the mask of an lpm key must be a prefix")
            return KeyMatch(value & mask, mask, prefix)
        if isinstance(e, ast.Range):
            return KeyMatch(self._number(e.left, key, t), self._number(e.right, key, t), width)
        value = self._number(e, key, t)
        return KeyMatch(value, value if key.match is MatchKind.RANGE else ones, width)

    def _number(self, e: ast.Expr, key: TableKey, t: Type) -> int:
        value = self.known(e)
        if value is None:
            raise self.reporter.fail(e.at, "this must be known at compile time")
        if isinstance(value, EnumValue):
            return self.constant(value, self.concrete(t), e.at).value
        return int(value) & ((1 << irt.width_of(key.type)) - 1)


def parameter_name(p: ast.Parameter) -> str:
    """Control-plane name of an action parameter."""
    annotation = find_annotation(p.annotations, "name")
    if annotation is not None and annotation.tokens and annotation.tokens[0][0] == "string":
        return annotation.tokens[0][1][1:-1]
    return p.name


def key_name(e: ast.Expr) -> str | None:
    """p4c's name of a key field, None where it asks for @name."""
    if isinstance(e, ast.Name):
        return e.name
    if isinstance(e, ast.Member):
        base, field = key_name(e.base), _field_name(e)
        if field.startswith("."):
            return field[1:]
        return None if base is None else f"{base}.{field}"
    if isinstance(e, ast.Index):
        base, index = key_name(e.base), e.index.value if isinstance(e.index.value, int) else key_name(e.index)
        return None if base is None or index is None else f"{base}[{index}]"
    if isinstance(e, ast.Slice) and e.bounds is not None:
        base = key_name(e.base)
        return None if base is None else f"{base}[{e.bounds[0]}:{e.bounds[1]}]"
    if isinstance(e, ast.Call) and isinstance(e.function, ast.Member) and e.function.name == "isValid":
        base = key_name(e.function.base)
        return None if base is None else f"{base}.$valid$"
    if isinstance(e, ast.Binary) and e.op == "&":
        left, right = _operand_name(e.left), _operand_name(e.right)
        return None if left is None or right is None else f"{left} & {right}"
    return None


def _operand_name(e: ast.Expr) -> str | None:
    return f"0x{e.value:x}" if isinstance(e.value, int) else key_name(e)


def _field_name(e: ast.Member) -> str:
    """Name of a field, from @name where its declaration has one."""
    if isinstance(e.base.type, TStruct):
        for f in e.base.type.decl.fields:
            annotation = find_annotation(f.annotations, "name") if f.name == e.name else None
            if annotation is not None and annotation.tokens and annotation.tokens[0][0] == "string":
                return annotation.tokens[0][1][1:-1]
    return e.name
