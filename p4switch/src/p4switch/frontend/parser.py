"""Recursive-descent parser of the whole P4_16 grammar.

The grammar needs to know which names are types; the parser keeps its own scopes of names for that alone.
Syntax errors stop at the first one: after it, nothing read is trustworthy.
"""

from __future__ import annotations

from p4switch.errors import InternalError
from p4switch.frontend import ast
from p4switch.frontend.lexer import tokenize
from p4switch.frontend.parse_decl import parse_program
from p4switch.frontend.parse_tokens import BacktrackError, TokenStream
from p4switch.frontend.source import AbortError, CompileError, Reporter
from p4switch.recursion import deep_recursion


@deep_recursion()
def parse(reporter: Reporter) -> ast.Program:
    """Parse the reporter's source; CompileError after a syntax error."""
    try:
        return parse_program(TokenStream(reporter, tokenize(reporter)))
    except AbortError as problem:
        raise CompileError(reporter.diagnostics) from problem
    except BacktrackError as problem:  # pragma: no cover - a speculation that escaped is a bug of the parser
        raise InternalError("a speculative parse escaped") from problem
