"""What a chunk is worth. Pure; the only place that says so."""

from controlplane.value.function import ValueFunction, ValueParameters

__all__ = ["ValueFunction", "ValueParameters"]
