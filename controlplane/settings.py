"""Reading a configuration strictly: every problem is one line that names the key and the remedy."""

from __future__ import annotations

import difflib
import ipaddress
import re
from collections.abc import Mapping
from typing import TypeVar, overload

_Default = TypeVar("_Default")


class ConfigError(Exception):
    """The configuration cannot be used; the text is one line for the operator."""


class Section:
    """One mapping of the file. Ask for each key once, then call `done`: what nobody asked for is an error."""

    def __init__(self, values: object, path: str) -> None:
        if values is None:
            values = {}
        if not isinstance(values, Mapping):
            raise ConfigError(f"{path or 'the file'} is not a mapping of keys to values")
        self._values = dict(values)
        self._path = path
        self._asked: list[str] = []

    def section(self, key: str) -> Section:
        return Section(self._take(key, None), self._name(key))

    def items(self) -> list[tuple[str, object]]:
        """All keys and values, for a section whose keys are the operator's own names."""
        self._asked.extend(str(key) for key in self._values)
        return [(str(key), value) for key, value in self._values.items()]

    @overload
    def text(self, key: str, default: str) -> str: ...
    @overload
    def text(self, key: str, default: None = None) -> str | None: ...
    def text(self, key: str, default: str | None = None) -> str | None:
        value = self._take(key, default)
        if value is not None and not isinstance(value, str):
            raise ConfigError(f"{self._name(key)}: {value!r} is not text")
        return value

    def flag(self, key: str, default: bool) -> bool:
        value = self._take(key, default)
        if not isinstance(value, bool):
            raise ConfigError(f"{self._name(key)}: {value!r} is neither true nor false")
        return value

    def whole(self, key: str, default: int, low: int, high: int) -> int:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ConfigError(f"{self._name(key)}: {value!r} is not a whole number from {low} to {high}")
        return value

    def number(self, key: str, default: float, low: float, high: float) -> float:
        value = self._take(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise ConfigError(f"{self._name(key)}: {value!r} is not a number from {low:g} to {high:g}")
        return float(value)

    def choice(self, key: str, default: str, options: tuple[str, ...]) -> str:
        value = self.text(key, default)
        if value not in options:
            raise ConfigError(f"{self._name(key)}: {value!r} is none of {', '.join(options)}")
        return value

    def ports(self, key: str) -> tuple[int, ...]:
        """A list of switch ports."""
        value = self._take(key, [])
        if not isinstance(value, list) or not all(isinstance(one, int) and 0 < one < 511 for one in value):
            raise ConfigError(f"{self._name(key)}: {value!r} is not a list of switch ports from 1 to 510")
        return tuple(value)

    def address(self, key: str, default: str) -> bytes:
        value = self.text(key, default)
        try:
            return ipaddress.IPv4Address(value).packed
        except ValueError:
            raise ConfigError(f"{self._name(key)}: {value!r} is not an IPv4 address") from None

    def mac(self, key: str, default: str) -> bytes:
        value = self.text(key, default)
        if not re.fullmatch(r"([0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}", value):
            raise ConfigError(f"{self._name(key)}: {value!r} is not a MAC address like 02:4b:56:00:ff:fe (in quotes)")
        return bytes.fromhex(value.replace(":", ""))

    def endpoint(self, key: str, default: str) -> str:
        """host:port."""
        value = self.text(key, default)
        host, colon, port = value.rpartition(":")
        if not (host and colon and port.isascii() and port.isdigit() and int(port) <= 65535):
            raise ConfigError(f"{self._name(key)}: {value!r} is not host:port")
        return value

    def done(self) -> None:
        """Raises ConfigError if the file has a key that nobody asked for."""
        for key in self._values:
            if key not in self._asked:
                near = difflib.get_close_matches(str(key), self._asked, n=1)
                hint = f"did you mean '{near[0]}'?" if near else f"known are {', '.join(sorted(self._asked))}"
                raise ConfigError(f"unknown key '{self._name(str(key))}': {hint}")

    def _take(self, key: str, default: _Default) -> object | _Default:
        self._asked.append(key)
        value = self._values.get(key)
        return default if value is None else value

    def _name(self, key: str) -> str:
        return f"{self._path}.{key}" if self._path else key
