"""The architectures that programs may be written for, by the package that their `main` instantiates."""

from __future__ import annotations

from p4switch.arch.base import Architecture
from p4switch.arch.tna.architecture import Tna
from p4switch.arch.v1model.architecture import V1Model

ARCHITECTURES: dict[str, type[Architecture]] = {a.package: a for a in (V1Model, Tna)}

__all__ = ["ARCHITECTURES", "Architecture"]
