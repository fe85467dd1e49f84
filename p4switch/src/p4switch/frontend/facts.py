"""What the checker finds out about a syntax tree, kept apart from the tree: nodes stay as the parser made them.

Nodes are equal only to themselves, so that they are keys. Where the language converts a value implicitly, the checker
makes a new expression with the conversion in it; `checked` leads from the written expression to the one it means.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from p4switch.frontend import ast
from p4switch.frontend.callee import BoundArguments, Callee
from p4switch.frontend.p4_types import UNKNOWN, TStruct, Type

Typed: TypeAlias = ast.Expr | ast.Declaration | ast.Parameter


@dataclass(frozen=True, slots=True)
class Facts:
    """Tables by node; frozen as a whole, filled by the checker."""

    types: dict[Typed, Type] = field(default_factory=dict)
    """Of checked expressions and of everything declared with a type."""
    values: dict[ast.Expr | ast.Constant, Any] = field(default_factory=dict)
    """Of everything known at compile time: int, bool, str, EnumValue, or a tuple of them."""
    checked: dict[ast.Expr, ast.Expr] = field(default_factory=dict)
    """What an expression that stands in a statement or declaration means; every expression inside is checked."""
    decls: dict[ast.Name | ast.ActionRef, Any] = field(default_factory=dict)
    """What a name stands for; a list of overloads for a function."""
    callees: dict[ast.Call | ast.Instantiation, Callee] = field(default_factory=dict)
    action_calls: dict[ast.Expr | ast.ActionRef, tuple[ast.ActionDecl, BoundArguments]] = field(default_factory=dict)
    """Default actions and actions of entries, with their data."""
    entry_keys: dict[ast.Entry, tuple[ast.Expr, ...]] = field(default_factory=dict)
    """One checked keyset for each key of the table."""
    selects: dict[ast.StateDecl, tuple[ast.Expr, ...]] = field(default_factory=dict)
    """What a state selects on, a single list spread out."""
    bounds: dict[ast.Slice, tuple[int, int]] = field(default_factory=dict)
    """Highest and lowest bit of slices that are known at compile time."""
    members: dict[ast.EnumDecl, dict[str, int]] = field(default_factory=dict)
    """Values of the members of an enumeration, in order; their positions where it has no underlying type."""
    returns: dict[ast.FunctionDecl, Type] = field(default_factory=dict)

    def struct(self, decl: ast.StructDecl, arguments: tuple[Type, ...] = ()) -> TStruct:
        """The type that a struct, header or union declares."""
        return TStruct(decl, arguments, tuple(self.types.get(f, UNKNOWN) for f in decl.fields))
