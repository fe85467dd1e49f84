"""The architectures that programs may be written for, by the package that their `main` instantiates."""

from __future__ import annotations

from collections.abc import Mapping

from p4switch.arch.tna.tna_program import TNA
from p4switch.arch.v1model.v1model_program import V1MODEL
from p4switch.frontend.lower.architecture import Architecture

ARCHITECTURES: Mapping[str, Architecture] = {a.package: a for a in (V1MODEL, TNA)}

__all__ = ["ARCHITECTURES", "Architecture"]
