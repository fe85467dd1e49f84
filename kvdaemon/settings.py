"""Reading a configuration file strictly: YAML, every key known, every mistake one line that names the key."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import yaml
from yaml.composer import ComposerError

from kvdaemon.errors import ConfigError

T = TypeVar("T")

FILE_BYTES_MAX: Final = 1 << 20
"""Of a configuration file; a large one takes a few thousand bytes."""
NODES_MAX: Final = 20_000
"""Values and keys of a file, those that aliases stand for among them: a few lines of aliases can stand for billions."""
KEY_SHOWN_MAX: Final = 64
"""Characters of a key that messages quote whole."""
_REASON_SHOWN_MAX: Final = 400


class _Loader(yaml.SafeLoader):
    """Safe, and bounded in what aliases may stand for."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._nodes_count = 0
        self._counts: dict[int, int] = {}
        """Nodes in each node that is whole, by its `id`: an alias stands for all of them."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Raises ComposerError for too many nodes, and for an alias of what it is a part of."""
        peek: Callable[[], yaml.Event] = self.peek_event
        event = peek()
        before = self._nodes_count
        node = super().compose_node(parent, index)
        if isinstance(event, yaml.AliasEvent):
            if id(node) not in self._counts:
                raise _at(event, f"alias *{event.anchor} is a part of itself")
            self._nodes_count += self._counts[id(node)]
        else:
            self._nodes_count += 1
            self._counts[id(node)] = self._nodes_count - before
        if self._nodes_count > NODES_MAX:
            raise _at(event, f"more than {NODES_MAX} values, with all that aliases stand for")
        return node


def _at(event: Any, problem: str) -> ComposerError:
    return ComposerError(None, None, problem, event.start_mark)


def load(path: Path, parse: Callable[[object], T]) -> T:
    """What `parse` makes of the values in a file. Raises ConfigError; its line begins with the path."""
    try:
        with path.open("rb") as file:
            content = file.read(FILE_BYTES_MAX + 1)
        if len(content) > FILE_BYTES_MAX:
            raise ConfigError(f"{path}: longer than {FILE_BYTES_MAX >> 20} MiB: is it a configuration?")
        values = yaml.load(content.decode("utf-8"), _Loader)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"cannot read {path}: not UTF-8") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f" line {mark.line + 1}" if mark is not None else ""
        raise ConfigError(f"{path}{line}: not YAML: {_shown(error.problem or error.context or '')}") from error
    except (yaml.YAMLError, ValueError) as error:
        # Characters that YAML has not, and values such as the date 2024-13-01.
        raise ConfigError(f"{path}: not YAML: {_shown(str(error).splitlines()[0])}") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply: is it a configuration?") from error
    try:
        return parse(values)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


class Section:
    """One mapping of the file. Take each known key once, then call `done`: it refuses all other keys.

    A check takes the value as YAML has it and returns what the daemon works with, or raises ValueError with a text like
    "'five' is not a number": the section puts the key's name before it. A key without value counts as absent.
    """

    def __init__(self, values: object, path: str = "") -> None:
        """`path`: names of the sections around it, with dots. Raises ConfigError unless `values` is a mapping."""
        if values is None:
            values = {}
        if not isinstance(values, Mapping):
            raise ConfigError(f"{path or 'the file'}: {reprlib.repr(values)} is not a mapping of keys to values")
        self._path = path
        self._values = {str(key): value for key, value in values.items()}
        self._known: set[str] = set()
        self._sections: list[Section] = []

    def take(self, key: str, check: Callable[[object], T], default: T) -> T:
        """The checked value of a key, or `default`, which is not checked. Raises ConfigError."""
        value = self._look_up(key)
        return default if value is None else self._checked(key, value, check)

    def need(self, key: str, check: Callable[[object], T]) -> T:
        """The checked value of a key that has to be there. Raises ConfigError."""
        value = self._look_up(key)
        if value is None:
            unknown = [name for name in self._values if name not in self._known]
            near = difflib.get_close_matches(key, unknown, n=1)
            hint = f": is it '{near[0]}' in the file?" if near else ""
            raise ConfigError(f"{self.full_name(key)} is missing{hint}")
        return self._checked(key, value, check)

    def section(self, key: str) -> Section:
        """The mapping below a key; empty where there is none. Raises ConfigError."""
        made = Section(self._look_up(key), self.full_name(key))
        self._sections.append(made)
        return made

    def sections(self) -> dict[str, Section]:
        """All mappings below, by their keys, where the keys are the operator's own names. Raises ConfigError."""
        return {key: self.section(key) for key in self._values}

    def skip(self, key: str) -> None:
        """A key that means nothing as things are, and may stay in the file."""
        self._look_up(key)

    def refuse(self, key: str, why: str) -> None:
        """Refuse a key of an earlier release that has no effect any more. Raises ConfigError where it is set."""
        if self._look_up(key) is not None:
            raise ConfigError(f"{self.full_name(key)} is gone: {why}")

    def done(self) -> None:
        """Raises ConfigError if this section, or one taken from it, has an unknown key."""
        for key in self._values:
            if key not in self._known:
                near = difflib.get_close_matches(key, sorted(self._known), n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(sorted(self._known))}"
                raise ConfigError(f"unknown key '{self.full_name(key)}': {hint}")
        for section in self._sections:
            section.done()

    def _look_up(self, key: str) -> object:
        self._known.add(key)
        return self._values.get(key)

    def _checked(self, key: str, value: object, check: Callable[[object], T]) -> T:
        try:
            return check(value)
        except ValueError as error:
            raise ConfigError(f"{self.full_name(key)}: {_shown(str(error))}") from error

    def full_name(self, key: str) -> str:
        """The key as messages name it: with the sections above it, separated by dots."""
        name = key if key.isprintable() and len(key) <= KEY_SHOWN_MAX else reprlib.repr(key)
        return f"{self._path}.{name}" if self._path else name


def _shown(reason: str) -> str:
    """A reason as one line that a terminal takes: a value of the file that it quotes may be long."""
    line = " ".join(reason.split())
    return line if len(line) <= _REASON_SHOWN_MAX else f"{line[:_REASON_SHOWN_MAX]}..."
