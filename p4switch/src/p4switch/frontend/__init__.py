"""The P4_16 front end: source text to a checked syntax tree."""

from p4switch.frontend.layouts import EnumLayout, FieldLayout, Layouts, layouts
from p4switch.frontend.source import CompileError, Diagnostic, Severity

__all__ = ["CompileError", "Diagnostic", "EnumLayout", "FieldLayout", "Layouts", "Severity", "layouts"]
