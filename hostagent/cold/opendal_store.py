"""A cold store through opendal: a file system, S3, Redis and some fifty other services, by configuration alone.

opendal (PyPI, Apache-2.0) is an optional dependency: nothing imports it before `open_store`. Credentials go from their
files or variables straight into opendal's operator; they are in no object of ours, and cut out of its error texts.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from hostagent.cold.cold_options import ColdConfig, SecretPlace
from hostagent.cold.stores import ColdStoreError
from kvdaemon.errors import CannotRunError

T = TypeVar("T")
SECRET_BYTES_MAX: Final = 65536
_TEXT_MAX: Final = 300
ATOMIC_FOLDER: Final = ".kvcast-partial"
"""Below the root of a file system: an object is written there and renamed, so none is ever half there."""


class OpendalStore:
    """See `ColdStore`. Its `repr` names the service and nothing else."""

    def __init__(self, scheme: str, operator: Any, exceptions: Any, secrets: tuple[str, ...] = ()) -> None:
        """`operator`: opendal's AsyncOperator; `secrets`: what no error may show."""
        self._scheme = scheme
        self._operator = operator
        self._exceptions = exceptions
        self._errors = errors_of(exceptions)
        self._hide = tuple(secret for secret in secrets if secret)

    def __repr__(self) -> str:
        return f"OpendalStore({self._scheme})"

    async def put(self, name: str, content: bytes) -> None:
        """See `ColdStore`."""
        await self._do(self._operator.write(name, content))

    async def get_into(self, name: str, buffers: Sequence[memoryview]) -> bool | None:
        """See `ColdStore`."""
        size_bytes = sum(map(len, buffers))
        try:
            content = memoryview(await self._do(self._operator.read(name, offset=0, size=size_bytes)))
        except self._exceptions.NotFound:
            return None
        except self._exceptions.RangeNotSatisfied:
            return False
        except ColdStoreError:
            # Some services end a read beyond the object's end with an error of any kind.
            if await self._size_bytes(name) < size_bytes:
                return False
            raise
        if len(content) != size_bytes:
            return False
        at = 0
        for buffer in buffers:
            # numpy lets go of the GIL while it copies.
            np.copyto(np.frombuffer(buffer, np.uint8), np.frombuffer(content[at : at + len(buffer)], np.uint8))
            at += len(buffer)
        return True

    async def _size_bytes(self, name: str) -> int:
        try:
            found = await self._do(self._operator.stat(name))
        except self._exceptions.NotFound:
            return 0
        return int(found.content_length)

    async def exists(self, name: str) -> bool:
        """See `ColdStore`."""
        return bool(await self._do(self._operator.exists(name)))

    async def delete(self, name: str) -> None:
        """See `ColdStore`."""
        await self._do(self._operator.delete(name))

    async def _do(self, operation: Awaitable[T]) -> T:
        exceptions = self._exceptions
        try:
            return await operation
        except (exceptions.NotFound, exceptions.RangeNotSatisfied):
            raise
        except self._errors as error:
            raise ColdStoreError(one_line(str(error), self._hide)) from None


def open_store(config: ColdConfig, environment: Mapping[str, str] = os.environ) -> OpendalStore:
    """The store that a configuration describes; nothing is asked of it yet. Raises CannotRunError."""
    try:
        opendal = importlib.import_module("opendal")
        exceptions = importlib.import_module("opendal.exceptions")
    except ImportError:
        raise CannotRunError(
            f"cold.scheme is {config.scheme}, and the package opendal is not installed: pip install 'kvcast[cold]'"
        ) from None
    secrets = {name: read_secret(name, place, environment) for name, place in config.secrets.items()}
    options = dict(config.options)
    if config.scheme == "fs" and "root" in options:
        options.setdefault("atomic_write_dir", str(Path(options["root"]) / ATOMIC_FOLDER))
    hidden = tuple(secrets.values())
    try:
        operator = opendal.AsyncOperator(config.scheme, **options, **secrets)
    except exceptions.Unsupported:
        raise CannotRunError(
            f"cold.scheme: the installed opendal does not know {config.scheme!r}: fs, s3, redis, ...; "
            "https://opendal.apache.org/docs/ lists them all"
        ) from None
    except errors_of(exceptions) as error:
        raise CannotRunError(f"cold.options: {config.scheme}: {one_line(str(error), hidden)}") from None
    return OpendalStore(config.scheme, operator, exceptions, hidden)


def errors_of(exceptions: Any) -> tuple[type[Exception], ...]:
    """All that opendal raises: its exceptions have no base of their own."""
    found = [getattr(exceptions, name) for name in dir(exceptions)]
    return tuple(one for one in found if isinstance(one, type) and issubclass(one, Exception))


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
    """A text of opendal as one line for the log: its first lines and the source of the error, no credential in it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    source = [line for at, line in enumerate(lines) if at and lines[at - 1] == "Source:"]
    joined = "; ".join([*lines[:1], *source[:1]])
    for secret in sorted(hide, key=len, reverse=True):
        joined = joined.replace(secret, "***")
    return joined[:_TEXT_MAX]
