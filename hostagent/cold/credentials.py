"""Credentials of a cold store: read at start from where they are kept, and cut out of every text that is shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from hostagent.cold.cold_options import SecretPlace
from kvdaemon.errors import CannotRunError

SECRET_BYTES_MAX: Final = 65536
_TEXT_MAX: Final = 300


def read_secret(name: str, place: SecretPlace, environment: Mapping[str, str]) -> str:
    """A credential from where it is kept, without the end of its line. Raises CannotRunError."""
    if place.variable:
        value = environment.get(place.variable)
        if not value:
            raise CannotRunError(f"cold.secrets.{name}: the environment variable {place.variable} is not set")
        return value
    try:
        with open(place.file, "rb") as file:
            content = file.read(SECRET_BYTES_MAX + 1)
        value = content.decode().strip()
    except OSError as error:
        raise CannotRunError(f"cold.secrets.{name}: cannot read {place.file}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise CannotRunError(f"cold.secrets.{name}: {place.file} is not text") from None
    if not value or len(content) > SECRET_BYTES_MAX:
        raise CannotRunError(f"cold.secrets.{name}: {place.file} is empty, or too long for a credential")
    return value


def one_line(text: str, hide: tuple[str, ...]) -> str:
    """A client's error text as one line: its first one and the source that opendal adds, no credential in it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    source = [line for at, line in enumerate(lines) if at and lines[at - 1] == "Source:"]
    joined = "; ".join([*lines[:1], *source[:1]])
    for secret in sorted(filter(None, hide), key=len, reverse=True):
        joined = joined.replace(secret, "***")
    return joined[:_TEXT_MAX]
