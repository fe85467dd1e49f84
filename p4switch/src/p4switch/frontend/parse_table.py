"""Grammar of tables."""

from __future__ import annotations

from p4switch.frontend import ast
from p4switch.frontend.parse_expr import parse_annotations, parse_arguments, parse_expression, parse_keyset, parse_unary
from p4switch.frontend.parse_tokens import TokenStream


def parse_table(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.TableDecl:
    """A table; its properties may come in any order."""
    ts.expect("table")
    at = ts.offset
    name = ts.name()
    keys: tuple[ast.KeyElement, ...] | None = None
    actions: tuple[ast.ActionRef, ...] | None = None
    entries: list[ast.Entry] = []
    entries_const = False
    properties: list[ast.Property] = []
    ts.expect("{")
    while not ts.is_symbol("}"):
        own = parse_annotations(ts)
        is_const = ts.accept("const")
        if ts.is_symbol("key") and ts.peek(2) == "{":
            ts.at += 2
            if keys is not None:
                raise ts.fail(f"table {name} has two keys")
            keys = parse_table_key(ts)
        elif ts.is_symbol("actions") and ts.peek(2) == "{":
            ts.at += 2
            if actions is not None:
                raise ts.fail(f"table {name} has two action lists")
            actions = parse_table_actions(ts)
        elif ts.is_symbol("entries") and ts.peek(2) == "{":
            ts.at += 2
            entries_const = is_const
            entries += parse_table_entries(ts)
        else:
            properties.append(parse_property(ts, own, is_const))
    ts.expect("}")
    ts.declare(name)
    return ast.TableDecl(
        at=at,
        name=name,
        annotations=annotations,
        keys=keys or (),
        actions=actions or (),
        entries=tuple(entries),
        entries_const=entries_const,
        properties=tuple(properties),
        has_actions=actions is not None,
    )


def parse_property(ts: TokenStream, annotations: tuple[ast.Annotation, ...], is_const: bool) -> ast.Property:
    """`name = value;`, behind its annotations and `const`."""
    at = ts.offset
    name = ts.name()
    ts.expect("=")
    value = parse_expression(ts)
    ts.expect(";")
    return ast.Property(at=at, name=name, is_const=is_const, value=value, annotations=annotations)


def parse_table_key(ts: TokenStream) -> tuple[ast.KeyElement, ...]:
    """What a packet is matched on."""
    ts.expect("{")
    return ts.repeated("}", _parse_key_element)


def _parse_key_element(ts: TokenStream) -> ast.KeyElement:
    at = ts.offset
    expr = parse_expression(ts)
    ts.expect(":")
    match_at = ts.offset
    match_kind = ts.name()
    annotations = parse_annotations(ts)
    ts.expect(";")
    return ast.KeyElement(at=at, expr=expr, match_kind=match_kind, match_at=match_at, annotations=annotations)


def parse_table_actions(ts: TokenStream) -> tuple[ast.ActionRef, ...]:
    """The list of actions."""
    ts.expect("{")
    return ts.repeated("}", _parse_listed_action)


def _parse_listed_action(ts: TokenStream) -> ast.ActionRef:
    action = parse_action_ref(ts, parse_annotations(ts))
    ts.expect(";")
    return action


def parse_action_ref(ts: TokenStream, annotations: tuple[ast.Annotation, ...]) -> ast.ActionRef:
    at = ts.offset
    absolute = ts.accept(".")
    name = ts.name()
    arguments = parse_arguments(ts) if ts.is_symbol("(") else None
    return ast.ActionRef(at=at, name=name, absolute=absolute, arguments=arguments, annotations=annotations)


def parse_table_entries(ts: TokenStream) -> tuple[ast.Entry, ...]:
    """Entries written in the source."""
    ts.expect("{")
    return ts.repeated("}", _parse_entry)


def _parse_entry(ts: TokenStream) -> ast.Entry:
    at = ts.offset
    is_const = ts.accept("const")
    priority = None
    if ts.is_symbol("priority") and ts.peek() == "=":
        ts.at += 2
        priority = parse_unary(ts)
        ts.expect(":")
    keyset = parse_keyset(ts)
    keys = keyset.items if isinstance(keyset, ast.TupleKeyset) else (keyset,)
    ts.expect(":")
    action = parse_action_ref(ts, ())
    annotations = parse_annotations(ts)
    ts.expect(";")
    return ast.Entry(at=at, is_const=is_const, priority=priority, keys=keys, action=action, annotations=annotations)
