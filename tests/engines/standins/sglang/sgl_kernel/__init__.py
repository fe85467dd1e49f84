"""Stands in for sgl-kernel, whose wheels are for CUDA: enough for SGLang's own CPU platform to import. Test use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

__version__ = "0.0.0+standin"


def __getattr__(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def missing(*_args: Any, **_more: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in")

    return missing
