"""What names are bound to while a program is lowered, and the calls that are being inlined."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeAlias

from p4switch.frontend.p4_types import TVar, Type
from p4switch.ir import expr as ir


@dataclass(slots=True)
class Instance:
    """An elaborated instance.

    kind: 'packet', 'control', 'parser', or the extern's name. `index` counts within the program's list for that kind.
    """

    kind: str
    name: str
    index: int = -1
    decl: Any = None
    env: Env | None = None
    types: dict[TVar, Type] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Known:
    """A value known at elaboration: of a constructor parameter."""

    value: Any
    type: Type


Binding: TypeAlias = ir.VarRef | ir.Member | ir.Element | Instance | Known


class Env:
    """What declarations are bound to here; inner environments shadow outer ones."""

    __slots__ = ("bindings", "parent", "prefix", "types")

    def __init__(self, parent: Env | None, types: dict[TVar, Type] | None = None, prefix: str | None = None) -> None:
        self.parent = parent
        self.bindings: dict[int, Binding] = {}
        inherited = parent.types if parent is not None else {}
        self.types: dict[TVar, Type] = {**inherited, **types} if types else inherited
        self.prefix: str = prefix if prefix is not None else (parent.prefix if parent is not None else "")

    def bind(self, decl: object, binding: Binding) -> None:
        """Bind a declaration."""
        self.bindings[id(decl)] = binding

    def find(self, decl: object) -> Binding | None:
        """The binding of a declaration, or None."""
        env: Env | None = self
        key = id(decl)
        while env is not None:
            found = env.bindings.get(key)
            if found is not None:
                return found
            env = env.parent
        return None


@dataclass(slots=True)
class CopyOut:
    """After the call: target (a slice of it) = source."""

    target: ir.LValue
    source: ir.VarRef
    bounds: tuple[int, int] | None = None


@dataclass(slots=True)
class Frame:
    """One inlined call: where return goes, and which values are copied out afterwards."""

    label: str
    result: ir.VarRef | None = None
    copy_outs: list[CopyOut] = field(default_factory=list)
    exited: bool = False
    is_action: bool = False


@dataclass(slots=True)
class LoopFrame:
    """Labels of the innermost loop."""

    leave: str
    following: str
