"""The catalog's memory, and the tables in which engines lease chunks by themselves: memory files that go to engines.

An engine can do anything to its table: write what it likes, punch holes into it, or die. The agent reads it with
preadv(2) and never maps it, so that it gets bytes or an error, and no signal. A word that is written at the moment when
it is read may be torn: such a lease came after the barrier, and its engine finds the chunk hidden (`kvclient.catalog`).
"""

from __future__ import annotations

import logging
import mmap
import os
import struct
from collections.abc import Sequence

from hostagent import limits
from hostagent.memory import seals
from hostagent.memory.pool_memory import address_of
from hostagent.pool.catalog import Catalog, Grants
from hostagent.pool.tenants import NOBODY, EngineId
from kvclient import barrier, catalog

log = logging.getLogger(__name__)

_GREETING = struct.Struct("=QQ")


class LeaseTable:
    """Of one connection."""

    def __init__(self, tenant: str, allowance_bytes: int) -> None:
        """Raises OSError when no descriptor or memory is left."""
        self.tenant = tenant
        self.allowance_bytes = allowance_bytes
        self.fd = os.memfd_create("kvcast-leases", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(self.fd, catalog.TABLE_BYTES)
            seals.fix_size(self.fd, for_good=True)
            os.pwrite(self.fd, _GREETING.pack(catalog.MAGIC, allowance_bytes), 0)
        except BaseException:
            os.close(self.fd)
            raise
        self._buffer = bytearray(catalog.TABLE_BYTES)

    def read(self) -> bytes:
        """As it is now; nothing, where the engine has made it unreadable."""
        try:
            count = os.preadv(self.fd, [self._buffer], 0)
        except OSError:
            return b""
        return bytes(self._buffer) if count == catalog.TABLE_BYTES else b""

    def close(self) -> None:
        """The connection ended."""
        os.close(self.fd)


class OwnTable:
    """Of this process itself, which reads chunks for peers. Nobody else has it, so that it may lease what it likes."""

    tenant = NOBODY
    allowance_bytes = 1 << 62

    def __init__(self) -> None:
        """Raises OSError when no descriptor or memory is left."""
        self._fd = os.memfd_create("kvcast-own-leases", os.MFD_CLOEXEC)
        try:
            os.ftruncate(self._fd, catalog.TABLE_BYTES)
            self._map = mmap.mmap(self._fd, catalog.TABLE_BYTES)
        except BaseException:
            os.close(self._fd)
            raise

    @property
    def address(self) -> int:
        """Where it is mapped."""
        return address_of(self._map)

    def read(self) -> bytes:
        """As it is now."""
        return os.pread(self._fd, catalog.TABLE_BYTES, 0)

    def close(self) -> None:
        """Nobody leases in it any more."""
        os.close(self._fd)


class LocalLeases:
    """Of one node."""

    def __init__(self, pool_bytes: int) -> None:
        """Raises OSError, one line: the kernel has no barrier for it (Linux 4.16), or there is no memory."""
        if not barrier.register() or not barrier.issue():
            raise OSError("membarrier(2) is not there, or not allowed")
        sets = catalog.sets_for(pool_bytes // limits.EXTENT_ALIGN_BYTES)
        size_bytes = catalog.catalog_bytes(sets)
        fd = os.memfd_create("kvcast-catalog", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        try:
            os.ftruncate(fd, size_bytes)
            seals.fix_size(fd)
            self._map = mmap.mmap(fd, size_bytes, mmap.MAP_SHARED)
            self._readers_fd = seals.end_writing(fd)
        finally:
            os.close(fd)
        self._tables: dict[EngineId, LeaseTable] = {}
        self._own: list[OwnTable] = []
        self._grants = Grants(pool_bytes)
        self.catalog = Catalog(memoryview(self._map).cast("Q"), sets, os.urandom(catalog.SALT_BYTES), self)

    def open(self, engine: EngineId, tenant: str) -> tuple[int, int] | None:
        """(descriptor of the catalog, descriptor of a table) for a new engine, to be passed on; None: it gets none,
        because others have all that is given out. Raises OSError."""
        allowance_bytes = self._grants.begin(tenant)
        if not allowance_bytes:
            return None
        try:
            table = self._tables[engine] = LeaseTable(tenant, allowance_bytes)
        except OSError:
            self._grants.end(tenant, allowance_bytes)
            raise
        return self._readers_fd, table.fd

    def end(self, engine: EngineId) -> None:
        """The engine has gone, and its leases with it."""
        table = self._tables.pop(engine, None)
        if table is not None:
            self._grants.end(table.tenant, table.allowance_bytes)
            table.close()

    @property
    def address(self) -> int:
        """Where the catalog is mapped in this process."""
        return address_of(self._map)

    def own_table(self) -> OwnTable:
        """A table for this process. Raises OSError when there is no memory."""
        table = OwnTable()
        self._own.append(table)
        return table

    def end_own_table(self, table: OwnTable) -> None:
        """Nothing is leased in it any more."""
        self._own.remove(table)
        table.close()

    def all(self) -> Sequence[LeaseTable | OwnTable]:
        """Tables of the connections that have one, and this process' own."""
        return [*self._tables.values(), *self._own]

    def fence(self) -> None:
        """See `kvclient.barrier`."""
        if not barrier.issue():
            raise AssertionError("membarrier(2) worked before")

    def close(self) -> None:
        """All engines have gone."""
        os.close(self._readers_fd)


def local_leases(pool_bytes: int) -> LocalLeases | None:
    """None, with a line in the log: engines ask the agent for every chunk, some 0.2 ms each."""
    try:
        return LocalLeases(pool_bytes)
    except OSError as error:
        log.warning("engines cannot read local chunks without asking the agent: %s", error.strerror or error)
        return None
