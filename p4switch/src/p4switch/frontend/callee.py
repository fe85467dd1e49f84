"""What a call means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from p4switch.frontend import ast
from p4switch.frontend.p4_types import TBlock, TVar, Type

BoundArguments: TypeAlias = Sequence[tuple[ast.Parameter, ast.Expr | None]]
"""Parameters with the checked expressions given for them; None: not given (optional) or `_`."""


@dataclass(slots=True)
class Callee:
    """What a call means.

    kind: 'function' (decl.body None for an extern), 'action', 'method' of an extern instance, 'apply' of a parser or
    control instance, 'direct' (`Type.apply`), 'table', 'constructor', 'builtin' (a method of headers or stacks).
    """

    kind: str
    name: str
    decl: Any = None
    receiver: ast.Expr | None = None
    arguments: BoundArguments = ()
    bindings: dict[TVar, Type] = field(default_factory=dict)
    block: TBlock | None = None
