"""Source positions and diagnostics: every message of the compiler names a place in a file the user wrote."""

from __future__ import annotations

import bisect
import enum
import json
import re
from dataclasses import dataclass, field
from pathlib import Path


class Severity(enum.Enum):
    """How bad it is."""

    ERROR = "error"
    UNSUPPORTED = "unsupported"  # legal P4_16 that this compiler does not handle; reported as an error
    WARNING = "warning"


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One message. line and column count from 1; `excerpt` is the source line, tabs as they were."""

    severity: Severity
    message: str
    file: str
    line: int
    column: int
    excerpt: str = ""

    def render(self) -> str:
        """`file:line:col: error: message`, the source line, and a caret under the column."""
        word = "warning" if self.severity is Severity.WARNING else "error"
        text = f"{self.file}:{self.line}:{self.column}: {word}: {self.message}"
        if self.excerpt.strip():
            pad = "".join("\t" if c == "\t" else " " for c in self.excerpt[: self.column - 1])
            text += f"\n{self.excerpt}\n{pad}^"
        return text

    def to_json(self) -> str:
        """One line for editors: severity, message, file, line, column."""
        return json.dumps(
            {
                "severity": self.severity.value,
                "message": self.message,
                "file": self.file,
                "line": self.line,
                "column": self.column,
            }
        )


class CompileError(Exception):
    """The program is wrong or not supported; carries every diagnostic found."""

    def __init__(self, diagnostics: list[Diagnostic]) -> None:
        super().__init__("\n".join(d.render() for d in diagnostics))
        self.diagnostics = diagnostics

    @property
    def unsupported(self) -> bool:
        """True when nothing is wrong with the program, only something is not supported."""
        errors = [d for d in self.diagnostics if d.severity is not Severity.WARNING]
        return bool(errors) and all(d.severity is Severity.UNSUPPORTED for d in errors)


class AbortError(Exception):
    """Unwinds to the pass that asked for the failed piece; its diagnostic is already recorded."""


@dataclass(slots=True)
class SourceText:
    """The preprocessed program: one string, and for each of its lines the file and line it came from."""

    text: str
    origins: list[tuple[str, int]]  # per output line: file, line from 1
    originals: dict[str, list[str]]  # file -> its lines
    paths: dict[str, Path] = field(default_factory=dict)  # file -> where it lies
    line_starts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Index the line starts."""
        starts = [0]
        find = self.text.find
        at = find("\n")
        while at >= 0:
            starts.append(at + 1)
            at = find("\n", at + 1)
        self.line_starts = starts

    def locate(self, offset: int) -> tuple[str, int, int]:
        """File, line and column of a character of the preprocessed text."""
        index = bisect.bisect_right(self.line_starts, offset) - 1
        file, line = self.origins[min(index, len(self.origins) - 1)] if self.origins else ("<empty>", 1)
        column = offset - self.line_starts[index] + 1
        original = self.original_line(file, line)
        start = self.line_starts[index]
        end = self.line_starts[index + 1] - 1 if index + 1 < len(self.line_starts) else len(self.text)
        if self.text[start:end] != original:  # macros were expanded in this line: find the word again
            word_end = offset
            while word_end < end and (self.text[word_end].isalnum() or self.text[word_end] == "_"):
                word_end += 1
            word = self.text[offset:word_end]
            found = original.find(word) if word else -1
            column = found + 1 if found >= 0 else min(column, max(1, len(original)))
        return file, line, column

    def place(self, offset: int) -> str:
        """`file:line:column` and the word there, for messages about the compiler itself."""
        file, line, column = self.locate(offset)
        word = re.match(r"\w*", self.text[offset:])
        return f"{file}:{line}:{column} ('{word.group() if word and word.group() else self.text[offset : offset + 1]}')"

    def original_line(self, file: str, line: int) -> str:
        """The line as the user wrote it."""
        lines = self.originals.get(file, [])
        return lines[line - 1] if 0 < line <= len(lines) else ""


class Reporter:
    """Collects diagnostics of one compilation."""

    MAX_ERRORS = 50

    def __init__(self, source: SourceText) -> None:
        self.source = source
        self.diagnostics: list[Diagnostic] = []
        self._seen: set[tuple[str, int, int, str]] = set()

    def add(self, severity: Severity, offset: int, message: str) -> None:
        """Record a diagnostic at an offset of the preprocessed text, once."""
        file, line, column = self.source.locate(offset)
        key = (file, line, column, message)
        if key in self._seen:
            return
        self._seen.add(key)
        excerpt = self.source.original_line(file, line)
        self.diagnostics.append(Diagnostic(severity, message, file, line, column, excerpt))
        if self.error_count() >= self.MAX_ERRORS:
            raise CompileError(self.diagnostics)

    def error(self, offset: int, message: str) -> None:
        """The program is wrong here."""
        self.add(Severity.ERROR, offset, message)

    def unsupported(self, offset: int, message: str) -> None:
        """The program is legal but this compiler does not handle it."""
        self.add(Severity.UNSUPPORTED, offset, message)

    def warning(self, offset: int, message: str) -> None:
        """Worth saying."""
        self.add(Severity.WARNING, offset, message)

    def fail(self, offset: int, message: str) -> AbortError:
        """Record an error and give the exception to raise."""
        self.error(offset, message)
        return AbortError(message)

    def fail_unsupported(self, offset: int, message: str) -> AbortError:
        """Record an unsupported construct and give the exception to raise."""
        self.unsupported(offset, message)
        return AbortError(message)

    def error_count(self) -> int:
        """Diagnostics that are not warnings."""
        return sum(1 for d in self.diagnostics if d.severity is not Severity.WARNING)

    def raise_if_errors(self) -> None:
        """CompileError when anything but warnings was recorded."""
        if self.error_count():
            raise CompileError(self.diagnostics)
