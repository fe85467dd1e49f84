"""The preprocessor: #include, #define, conditionals and #error as C has them, as far as P4 programs use them.

Works line by line and keeps one output line for each input line (joined lines leave empty ones behind), so that
positions map back. Not provided: __DATE__ and relatives.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from p4switch.frontend.conditions import ConditionError, evaluate
from p4switch.frontend.source import CompileError, Diagnostic, Severity, SourceText

INCLUDE_DIRECTORY = Path(__file__).resolve().parent.parent / "include"
MAX_INCLUDE_DEPTH = 64
MAX_INCLUDES = 4096
MAX_EXPANSIONS_PER_LINE = 10_000
MAX_EXPANDED_CHARS_PER_LINE = 1 << 20

_IDENTIFIER = re.compile(r"[A-Za-z_]\w*")
_PIECES = re.compile(r'"(?:\\.|[^"\\\n])*"|[A-Za-z_]\w*|\d\w*|\s+|.', re.S)
_DIRECTIVE = re.compile(r"\s*#\s*([A-Za-z_]*)\s*(.*)", re.S)
_DEFINE = re.compile(r"([A-Za-z_]\w*)(\()?(.*)", re.S)


@dataclass(frozen=True, slots=True)
class Macro:
    """A #define; parameters None for an object-like one; `variadic`: the last one takes the rest, commas and all."""

    name: str
    parameters: tuple[str, ...] | None
    body: str
    variadic: bool = False


@dataclass(slots=True)
class _Conditional:
    """One open #if: whether its current branch is taken, whether any was, and the enclosing state."""

    active: bool
    taken: bool
    enclosing: bool
    line: int
    seen_else: bool = False


class Preprocessor:
    """One run over a program and all it includes."""

    def __init__(
        self, defines: Mapping[str, str], include_dirs: Sequence[Path], within: Sequence[Path] | None = None
    ) -> None:
        self.macros: dict[str, Macro] = {}
        self.include_dirs = [*include_dirs, INCLUDE_DIRECTORY]
        self.within = None if within is None else [folder.resolve() for folder in (*within, INCLUDE_DIRECTORY)]
        self.files = 0
        self.lines: list[str] = []
        self.origins: list[tuple[str, int]] = []
        self.originals: dict[str, list[str]] = {}
        self.paths: dict[str, Path] = {}
        self.file = "<command line>"
        self.line = 1
        self._once: set[Path] = set()
        self._pattern: re.Pattern[str] | None = None
        for name, value in {"__p4c__": "1", "__p4switch__": "1", **defines}.items():
            if not _IDENTIFIER.fullmatch(name):
                raise self.error(f"'-D{name}' does not define an identifier")
            self.macros[name] = Macro(name, None, value)

    def run(self, path: Path) -> SourceText:
        """Preprocess the file; CompileError with a located diagnostic when it or an include cannot be read."""
        self._include(path, path.name if path.parent == Path() else str(path), 0)
        return SourceText("\n".join(self.lines) + "\n", self.origins, self.originals, self.paths)

    def error(self, message: str, column: int = 1) -> CompileError:
        """An exception located at the current line."""
        lines = self.originals.get(self.file, [])
        excerpt = lines[self.line - 1] if 0 < self.line <= len(lines) else ""
        return CompileError([Diagnostic(Severity.ERROR, message, self.file, self.line, column, excerpt)])

    # ---------------------------------------------------------------- files

    def _include(self, path: Path, shown: str, depth: int) -> None:
        if depth > MAX_INCLUDE_DEPTH:
            raise self.error(f"includes nest deeper than {MAX_INCLUDE_DEPTH}")
        self.files += 1
        if self.files > MAX_INCLUDES:
            raise self.error(f"more than {MAX_INCLUDES} includes")
        try:
            text = path.read_text(encoding="utf-8", errors="replace")
        except OSError as problem:
            raise self.error(f"cannot read {shown}: {problem.strerror}") from problem
        lines = text.split("\n")
        if lines and lines[-1] == "":
            lines.pop()
        self.originals[shown] = [line.rstrip("\r") for line in lines]
        self.paths[shown] = path
        outer = (self.file, self.line)
        self.file, self.line = shown, 1
        self._process(path, shown, depth)
        self.file, self.line = outer

    def _process(self, path: Path, shown: str, depth: int) -> None:
        lines = self.originals[shown]
        stack: list[_Conditional] = []
        number = 0
        in_comment = ""
        while number < len(lines):
            first = number
            self.line = first + 1
            text = lines[number]
            number += 1
            while text.endswith("\\") and number < len(lines):
                text = text[:-1] + lines[number]
                number += 1
            before = in_comment
            if in_comment or "/" in text or '"' in text:
                text, in_comment = _strip_comments(text, in_comment)
            active = not stack or stack[-1].active
            if not active and '"' in (before, in_comment):
                in_comment = before  # words that nobody compiles neither open a string nor close one
            match = _DIRECTIVE.match(text) if "#" in text else None
            if match is not None:
                self._directive(match.group(1), match.group(2).strip(), stack, active, path, depth)
                text = ""
            elif not active:
                text = ""
            elif self._needs_expansion(text):
                text, number, in_comment = self._expand_line(text, lines, number, in_comment)
            self._emit(text, shown, first + 1)
            for skipped in range(first + 1, number):
                self._emit("", shown, skipped + 1)
        if stack:
            self.line = stack[-1].line
            raise self.error("this #if has no #endif")
        if in_comment == "/*":
            self.line = len(lines)
            raise self.error("a /* comment does not end")

    def _emit(self, text: str, shown: str, line: int) -> None:
        self.lines.append(text)
        self.origins.append((shown, line))

    def _find(self, name: str, quoted: bool, path: Path) -> tuple[Path, str]:
        places = ([path.parent] if quoted else []) + [Path(d) for d in self.include_dirs]
        if not quoted:
            places.append(path.parent)
        for place in places:
            candidate = place / name
            if self._may_read(candidate):
                shown = f"<{name}>" if place == INCLUDE_DIRECTORY else str(candidate)
                return candidate, shown
        raise self.error(f"include file {name} not found; searched {', '.join(str(p) for p in places)}")

    def _may_read(self, candidate: Path) -> bool:
        """Whether it is a file, and in one of the folders that the program is kept within."""
        try:
            if not candidate.is_file():
                return False
            real = candidate.resolve()
        except (OSError, ValueError):  # a name that is too long, or holds a NUL
            return False
        return self.within is None or any(real.is_relative_to(folder) for folder in self.within)

    # ---------------------------------------------------------------- directives

    def _directive(self, word: str, rest: str, stack: list[_Conditional], active: bool, path: Path, depth: int) -> None:
        if word in ("if", "ifdef", "ifndef"):
            stack.append(self._open(word, rest, active))
        elif word in ("elif", "else", "endif"):
            self._branch(word, rest, stack)
        elif not active or word == "":
            return
        elif word == "include":
            self._include_directive(rest, path, depth)
        elif word == "define":
            self._define(rest)
        elif word == "undef":
            self.macros.pop(rest.split()[0] if rest else "", None)
            self._pattern = None
        elif word == "error":
            raise self.error(f"#error {rest}".rstrip())
        elif word == "pragma":
            if rest.split()[:1] == ["once"]:
                self._once.add(path.resolve())
        elif word not in ("line", "warning"):
            raise self.error(f"unknown preprocessor directive #{word}")

    def _open(self, word: str, rest: str, active: bool) -> _Conditional:
        if not active:
            return _Conditional(False, True, False, self.line)
        if word == "if":
            value = self._condition(rest)
        else:
            match = _IDENTIFIER.match(rest)
            if match is None:
                raise self.error(f"#{word} needs a name")
            value = (match.group() in self.macros) == (word == "ifdef")
        return _Conditional(value, value, True, self.line)

    def _branch(self, word: str, rest: str, stack: list[_Conditional]) -> None:
        if not stack:
            raise self.error(f"#{word} without #if")
        top = stack[-1]
        if word == "endif":
            stack.pop()
            return
        if top.seen_else:
            raise self.error(f"#{word} after #else")
        if word == "else":
            top.seen_else = True
            top.active = top.enclosing and not top.taken
        else:
            top.active = top.enclosing and not top.taken and self._condition(rest)
        top.taken = top.taken or top.active

    def _include_directive(self, rest: str, path: Path, depth: int) -> None:
        if not rest.startswith(("<", '"')):
            rest = self.expand(rest).strip()
        match = re.match(r'<([^>]+)>|"([^"]+)"', rest)
        if match is None:
            raise self.error('#include needs <file> or "file"')
        found, shown = self._find(match.group(1) or match.group(2), match.group(2) is not None, path)
        if found.resolve() not in self._once:
            self._include(found, shown, depth + 1)

    def _define(self, rest: str) -> None:
        match = _DEFINE.match(rest)
        if match is None:
            raise self.error("#define needs a name")
        name, open_paren, tail = match.groups()
        parameters: tuple[str, ...] | None = None
        variadic = False
        if open_paren:
            close = tail.find(")")
            if close < 0:
                raise self.error(f"the parameters of macro {name} do not end")
            inside = tail[:close].strip()
            parameters = tuple(p.strip() for p in inside.split(",")) if inside else ()
            variadic = bool(parameters) and parameters[-1].endswith("...")
            if variadic:
                parameters = (*parameters[:-1], parameters[-1].removesuffix("...").strip() or "__VA_ARGS__")
            if not all(_IDENTIFIER.fullmatch(p) for p in parameters):
                raise self.error(f"the parameters of macro {name} must be names")
            tail = tail[close + 1 :]
        self.macros[name] = Macro(name, parameters, tail.strip(), variadic)
        self._pattern = None

    # ---------------------------------------------------------------- expansion

    def _needs_expansion(self, text: str) -> bool:
        if self._pattern is None:
            names = sorted(self.macros, key=len, reverse=True)
            self._pattern = re.compile(r"\b(?:" + "|".join(names) + r"|__LINE__|__FILE__)\b")
        return self._pattern.search(text) is not None

    def _expand_line(self, text: str, lines: list[str], number: int, in_comment: str) -> tuple[str, int, str]:
        """Expand a line, taking in the following ones while a macro call's parentheses are open."""
        while self._open_call(text) and number < len(lines):
            more, in_comment = _strip_comments(lines[number], in_comment)
            if _DIRECTIVE.match(more) and "#" in more:
                break
            text += " " + more
            number += 1
        return self.expand(text), number, in_comment

    def _open_call(self, text: str) -> bool:
        for match in _IDENTIFIER.finditer(text):
            macro = self.macros.get(match.group())
            if macro is None or macro.parameters is None:
                continue
            rest = text[match.end() :].lstrip()
            if rest.startswith("(") and _matching_paren(rest) < 0:
                return True
        return False

    def expand(self, text: str) -> str:
        """Replace macros, over and over, never a macro within its own expansion."""
        self._expansions = self._expanded_chars = 0
        return self._expand(text, frozenset())

    def _expand(self, text: str, hidden: frozenset[str]) -> str:
        pieces = _PIECES.findall(text)
        out: list[str] = []
        index = 0
        while index < len(pieces):
            piece = pieces[index]
            index += 1
            macro = self.macros.get(piece)
            if macro is None or piece in hidden:
                out.append(self._builtin(piece))
                continue
            self._expansions += 1
            if self._expansions > MAX_EXPANSIONS_PER_LINE:
                raise self.error(f"macro {piece} expands without end")
            if macro.parameters is None:
                body = self._substituted(macro, {}, hidden) if "##" in macro.body else macro.body
                out.append(self._expand(self._within_bounds(macro, body), hidden | {piece}))
                continue
            call = "".join(pieces[index:])
            stripped = call.lstrip()
            if not stripped.startswith("("):
                out.append(piece)
                continue
            end = _matching_paren(stripped)
            if end < 0:
                raise self.error(f"the call of macro {piece} does not end")
            arguments = _split_arguments(stripped[1:end])
            if macro.parameters == () and arguments == [""]:
                arguments = []
            if macro.variadic:
                fixed = len(macro.parameters) - 1
                arguments = [*arguments[:fixed], ",".join(arguments[fixed:])] if len(arguments) >= fixed else arguments
            if len(arguments) != len(macro.parameters):
                raise self.error(f"macro {piece} takes {len(macro.parameters)} arguments, not {len(arguments)}")
            body = self._substituted(macro, dict(zip(macro.parameters, arguments, strict=True)), hidden)
            out.append(self._expand(self._within_bounds(macro, body), hidden | {piece}))
            pieces = _PIECES.findall(stripped[end + 1 :])
            index = 0
        return "".join(out)

    def _substituted(self, macro: Macro, arguments: Mapping[str, str], hidden: frozenset[str]) -> str:
        """A macro's body with its arguments: as they are beside ##, as a string after #, expanded elsewhere."""
        pieces = _PIECES.findall(macro.body)
        expanded: dict[str, str] = {}
        out: list[str] = []
        index = 0
        while index < len(pieces):
            piece = pieces[index]
            index += 1
            following = _after_space(pieces, index)
            if piece == "#" and pieces[index : index + 1] == ["#"]:
                index = _after_space(pieces, index + 1)
                joined = pieces[index : index + 1]
                while out and out[-1].isspace():
                    out.pop()
                if joined and joined[0] in arguments:
                    argument = arguments[joined[0]]
                    if macro.variadic and joined[0] == (macro.parameters or ())[-1] and out[-1:] == [","]:
                        # What GNU's preprocessor has: the comma goes when nothing follows it.
                        out[-1:] = [",", self._expand(argument, hidden)] if argument else []
                    else:
                        out.append(argument)
                else:
                    out += joined
                index += 1
            elif piece == "#" and macro.parameters is not None:
                if following == len(pieces) or pieces[following] not in arguments:
                    raise self.error(f"# in macro {macro.name} is followed by no parameter")
                out.append(_quoted(arguments[pieces[following]]))
                index = following + 1
            elif piece in arguments and pieces[following : following + 2] == ["#", "#"]:
                out.append(arguments[piece])
            elif piece in arguments:
                if piece not in expanded:
                    expanded[piece] = self._expand(arguments[piece], hidden)
                out.append(expanded[piece])
            else:
                out.append(piece)
        return "".join(out)

    def _within_bounds(self, macro: Macro, body: str) -> str:
        self._expanded_chars += len(body)
        if self._expanded_chars > MAX_EXPANDED_CHARS_PER_LINE:
            raise self.error(f"macro {macro.name} makes more than {MAX_EXPANDED_CHARS_PER_LINE} characters of a line")
        return body

    def _builtin(self, piece: str) -> str:
        if piece == "__LINE__":
            return str(self.line)
        return f'"{self.file}"' if piece == "__FILE__" else piece

    # ---------------------------------------------------------------- conditions

    def _condition(self, text: str) -> bool:
        text = re.sub(
            r"\bdefined\s*(?:\(\s*([A-Za-z_]\w*)\s*\)|([A-Za-z_]\w*))",
            lambda m: "1" if (m.group(1) or m.group(2)) in self.macros else "0",
            text,
        )
        try:
            return evaluate(self.expand(text)) != 0
        except ConditionError as problem:
            raise self.error(str(problem)) from problem


def _after_space(pieces: Sequence[str], index: int) -> int:
    while index < len(pieces) and pieces[index].isspace():
        index += 1
    return index


def _quoted(argument: str) -> str:
    """An argument as a string literal: spaces as one, quotes and backslashes with one before them."""
    text = " ".join(argument.split()).replace("\\", "\\\\").replace('"', '\\"')
    return f'"{text}"'


def _matching_paren(text: str) -> int:
    """Index of the parenthesis that closes text[0], or -1."""
    depth = 0
    for at, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
            if depth == 0:
                return at
    return -1


def _split_arguments(text: str) -> list[str]:
    out: list[str] = []
    depth = 0
    start = 0
    for at, char in enumerate(text):
        if char in "([{":
            depth += 1
        elif char in ")]}":
            depth -= 1
        elif char == "," and depth == 0:
            out.append(text[start:at].strip())
            start = at + 1
    out.append(text[start:].strip())
    return out


_COMMENT = re.compile(r'"(?:\\.|[^"\\])*"?|//.*|/\*')
_STRING_END = re.compile(r'(?:\\.|[^"\\])*"')


def _strip_comments(text: str, inside: str) -> tuple[str, str]:
    """Blank out comments of one line, keeping columns; says what stays open: a `/*` comment, a `"` string or nothing.

    `inside`: what was open before the line. Strings may have line breaks, as annotations of sonic-pins do.
    """
    out = ""
    at = 0
    while True:
        if inside == '"':
            close = _STRING_END.match(text, at)
            if close is None:
                return out + text[at:], inside
            out += close.group()
            at = close.end()
        elif inside:
            end = text.find("*/", at)
            if end < 0:
                return out + " " * (len(text) - at), inside
            out += " " * (end + 2 - at)
            at = end + 2
        inside = ""
        match = _COMMENT.search(text, at)
        while match is not None and match.group().startswith('"') and _closed(match.group()):
            match = _COMMENT.search(text, match.end())
        if match is None:
            return out + text[at:], ""
        if match.group().startswith('"'):
            return out + text[at:], '"'
        out += text[at : match.start()]
        if match.group().startswith("//"):
            return out, ""
        out += "  "
        at = match.start() + 2
        inside = "/*"


def _closed(string: str) -> bool:
    return _STRING_END.fullmatch(string, 1) is not None


def preprocess(
    path: Path, defines: Mapping[str, str], include_dirs: Sequence[Path], within: Sequence[Path] | None = None
) -> SourceText:
    """Run the preprocessor over a file. CompileError with a location for anything that fails."""
    return Preprocessor(defines, include_dirs, within).run(path)
