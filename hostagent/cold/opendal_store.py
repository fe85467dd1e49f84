"""A cold store through opendal: a file system, S3, Redis and some fifty other services, by configuration alone.

opendal (PyPI, Apache-2.0) is an optional dependency: nothing imports it before `open_opendal`. Credentials go straight
into opendal's operator, and are cut out of its error texts.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Awaitable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np

from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.credentials import one_line
from hostagent.cold.stores import ColdStoreError
from kvdaemon.errors import CannotRunError

T = TypeVar("T")
ATOMIC_FOLDER: Final = ".kvcast-partial"
"""Below the root of a file system: an object is written there and renamed, so none is ever half there."""
REDIS_ENDPOINT: Final = "tcp://127.0.0.1:6379"
"""Of a configuration that names no address: opendal has no default of its own."""


class OpendalStore:
    """See `ColdStore`. Its `repr` names the service and nothing else."""

    def __init__(self, scheme: str, operator: Any, exceptions: Any, secrets: tuple[str, ...] = ()) -> None:
        """`operator`: opendal's AsyncOperator; `secrets`: what no error may show."""
        self._scheme = scheme
        self._operator = operator
        self._exceptions = exceptions
        self._errors = errors_of(exceptions)
        self._hide = secrets

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
        except ColdStoreError as error:
            # Some services end a read beyond the object's end with an error of any kind.
            with contextlib.suppress(ColdStoreError):
                if await self._size_bytes(name) < size_bytes:
                    return False
            raise error from None
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
        try:
            return bool(await self._do(self._operator.exists(name)))
        except ColdStoreError:
            # HTTP's HEAD has no body, so its error has no reason, and some may GET who may not HEAD.
            return await self.get_into(name, (memoryview(bytearray(1)),)) is not None

    async def delete(self, name: str) -> None:
        """See `ColdStore`."""
        await self._do(self._operator.delete(name))

    async def close(self) -> None:
        """See `ColdStore`: connections are opendal's own affair."""

    async def _do(self, operation: Awaitable[T]) -> T:
        exceptions = self._exceptions
        try:
            return await operation
        except (exceptions.NotFound, exceptions.RangeNotSatisfied):
            raise
        except self._errors as error:
            raise ColdStoreError(one_line(str(error), self._hide)) from None
        except BaseException as error:
            if not _is_panic(error):
                raise
            raise ColdStoreError(_panicked(error, self._hide)) from None


def open_opendal(config: ColdConfig, secrets: Mapping[str, str]) -> OpendalStore:
    """Any service of opendal; `secrets`: credentials by option. Raises CannotRunError."""
    try:
        opendal = importlib.import_module("opendal")
        exceptions = importlib.import_module("opendal.exceptions")
    except ModuleNotFoundError:
        raise CannotRunError(
            f"cold.scheme is {config.scheme}, and the package opendal is not installed: pip install 'kvcast[cold]'"
        ) from None
    except (ImportError, OSError) as error:
        raise CannotRunError(
            f"cold.scheme is {config.scheme}, and the package opendal does not load here: {one_line(str(error), ())};"
            " install a build of it for this system"
        ) from None
    options = dict(config.options)
    if config.scheme == "fs" and "root" in options:
        options.setdefault("atomic_write_dir", str(Path(options["root"]) / ATOMIC_FOLDER))
    if config.scheme == "redis":
        _check_redis(options)
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
    except BaseException as error:
        if not _is_panic(error):
            raise
        raise CannotRunError(f"cold.options: {config.scheme}: {_panicked(error, hidden)}") from None
    return OpendalStore(config.scheme, operator, exceptions, hidden)


def _check_redis(options: dict[str, str]) -> None:
    """Fill in the default address. Raises CannotRunError for one that opendal's client of Redis cannot use.

    opendal accepts these addresses, and fails with each operation: a panic for TLS (its wheel has no provider of
    cryptography), a time-out for an IPv6 address (it looks up the brackets as part of a name).
    """
    option = "cluster_endpoints" if "cluster_endpoints" in options else "endpoint"
    for address in options.setdefault(option, REDIS_ENDPOINT).split(","):
        if address.strip().startswith("rediss://"):
            raise CannotRunError(
                f"cold.options.{option}: opendal cannot reach Redis by TLS (rediss://): "
                "give tcp://HOST:PORT, of a TLS tunnel such as stunnel where the connection must be encrypted"
            )
        if "[" in address:
            raise CannotRunError(
                f"cold.options.{option}: opendal cannot reach Redis by an IPv6 address: "
                "give a host name that resolves to it, as in tcp://cache.example:6379"
            )


def _is_panic(error: BaseException) -> bool:
    """Whether Rust code has panicked: opendal exports no class for that, and PyO3's is no Exception, so the names are
    all there is to know it by."""
    return type(error).__name__ in ("RustPanic", "PanicException")


def _panicked(error: BaseException, hide: tuple[str, ...]) -> str:
    return one_line(f"opendal failed with a defect of its own: {error}", hide)


def errors_of(exceptions: Any) -> tuple[type[Exception], ...]:
    """All that opendal raises: its exceptions have no base of their own."""
    found = [getattr(exceptions, name) for name in dir(exceptions)]
    return tuple(one for one in found if isinstance(one, type) and issubclass(one, Exception))
