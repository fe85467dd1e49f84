"""The parser's state: a position in the token stream, speculation, and which names are types."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from p4switch.frontend import ast
from p4switch.frontend.lexer import SOFT_KEYWORDS, Tokens
from p4switch.frontend.source import Reporter

T = TypeVar("T")

MAX_NESTING = 200
"""Depth of expressions and statements; Python's own stack is the reason."""

BASE_TYPES = frozenset({"bit", "int", "varbit", "bool", "error", "match_kind", "string", "void", "tuple", "list", "_"})


class BacktrackError(Exception):
    """A speculative parse failed; no diagnostic."""


class TokenStream:
    """A position in the token stream."""

    def __init__(self, reporter: Reporter, tokens: Tokens) -> None:
        self.reporter = reporter
        self.kinds = tokens.kinds
        self.texts = tokens.texts
        self.offsets = tokens.offsets
        self.at = 0
        self.scopes: list[dict[str, bool]] = [{}]  # name -> is a type
        self.speculating = 0
        self.depth = 0

    # ---------------------------------------------------------------- tokens

    @property
    def text(self) -> str:
        """The current token."""
        return self.texts[self.at]

    @property
    def offset(self) -> int:
        """Where it stands in the preprocessed text."""
        return self.offsets[self.at]

    def fail(self, message: str, offset: int | None = None) -> Exception:
        """The exception to raise for a syntax error here; recorded unless this is speculation."""
        if self.speculating:
            return BacktrackError()
        return self.reporter.fail(self.offset if offset is None else offset, message)

    def peek(self, ahead: int = 1) -> str:
        """A token ahead, '' behind the end."""
        index = self.at + ahead
        return self.texts[index] if index < len(self.texts) else ""

    def is_symbol(self, text: str) -> bool:
        """Whether the current token is this operator or keyword."""
        return self.texts[self.at] == text and self.kinds[self.at] not in ("string", "end")

    def accept(self, text: str) -> bool:
        """Step over a token if it is the current one."""
        if self.texts[self.at] == text and self.kinds[self.at] != "string":
            self.at += 1
            return True
        return False

    def expect(self, text: str) -> int:
        """Step over a token that must be the current one; gives its offset."""
        offset = self.offset
        if not self.accept(text):
            found = f"'{self.text}'" if self.kinds[self.at] != "end" else "the end of the file"
            if self.kinds[self.at] == "keyword" and text != self.text:
                found = f"the keyword '{self.text}'"
            raise self.fail(f"expected '{text}', found {found}")
        return offset

    def separated(self, end: str, parse: Callable[[TokenStream], T]) -> tuple[T, ...]:
        """What `parse` reads, with commas between and maybe after, up to `end`, which is stepped over."""
        found: list[T] = []
        while not self.is_symbol(end):
            found.append(parse(self))
            if not self.accept(","):
                break
        self.expect(end)
        return tuple(found)

    def repeated(self, end: str, parse: Callable[[TokenStream], T]) -> tuple[T, ...]:
        """What `parse` reads, one after the other, up to `end`, which is stepped over."""
        found: list[T] = []
        while not self.is_symbol(end):
            found.append(parse(self))
        self.expect(end)
        return tuple(found)

    def close_angle(self) -> None:
        """The `>` of type arguments; splits `>=`."""
        if self.is_symbol(">="):
            self.texts[self.at] = "="
            self.offsets[self.at] += 1
            return
        self.expect(">")

    def name(self) -> str:
        """Step over a name."""
        kind = self.kinds[self.at]
        text = self.text
        if kind == "name" or (kind == "keyword" and text in SOFT_KEYWORDS):
            self.at += 1
            return text
        found = "the end of the file" if kind == "end" else f"'{text}'"
        raise self.fail(f"expected a name, found {found}")

    def at_name(self) -> bool:
        """Whether the current token can be a name."""
        kind = self.kinds[self.at]
        return kind == "name" or (kind == "keyword" and self.text in SOFT_KEYWORDS)

    def speculate(self, parse: Callable[[TokenStream], T]) -> T | None:
        """The result of `parse`, or None with the position restored."""
        start = self.at
        saved = (self.texts[start : start + 64], self.offsets[start : start + 64])
        depth = self.depth
        self.speculating += 1
        try:
            return parse(self)
        except BacktrackError:
            self.texts[start : start + 64], self.offsets[start : start + 64] = saved
            self.at = start
            self.depth = depth
            return None
        finally:
            self.speculating -= 1

    def enter(self) -> None:
        """Go one level deeper; the caller counts `depth` down again."""
        self.depth += 1
        if self.depth > MAX_NESTING:
            self.speculating = 0
            raise self.reporter.fail_unsupported(self.offset, f"nesting deeper than {MAX_NESTING} levels")

    # ---------------------------------------------------------------- names of types

    def is_type(self, name: str) -> bool:
        """Whether a name is a type's here."""
        for scope in reversed(self.scopes):
            if name in scope:
                return scope[name]
        return False

    def declare(self, name: str, is_type: bool = False) -> None:
        """Put a name into the innermost scope."""
        self.scopes[-1][name] = is_type

    def declare_types(self, parameters: Iterable[ast.TypeParameter]) -> None:
        """Put type parameters into the innermost scope."""
        for p in parameters:
            self.declare(p.name, True)

    def starts_type(self) -> bool:
        """Whether the current token begins a type."""
        kind = self.kinds[self.at]
        text = self.text
        if kind == "keyword":
            if text == "list":
                return self.peek() == "<"
            return text in BASE_TYPES and not (text == "error" and self.peek() == ".")
        if kind == "name":
            return self.is_type(text)
        if text == "." and kind == "operator":
            return self.at + 1 < len(self.texts) and self.scopes[0].get(self.peek(), False)
        return False
