"""The agent's cold store, tried out: a small object put, read, compared and deleted."""

from __future__ import annotations

import asyncio
import os
from functools import partial
from typing import Final

from hostagent.cold.cold_opening import open_store
from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.stores import ColdStoreError
from hostagent.cold.tier import Trial, try_out, within
from kvcast.doctor.findings import Finding, Level
from kvdaemon.errors import CannotRunError

TRIAL_BYTES: Final = 64 << 10
_WANTED: Final = "an object put, read and deleted"


def cold_store(config: ColdConfig) -> Finding:
    """Whether the store takes an object and gives it back."""
    try:
        found = asyncio.run(_try_out(config))
    except CannotRunError as error:
        return Finding("cold store", str(error), _WANTED, Level.MISSING, "the section cold of the configuration")
    except ColdStoreError as error:
        remedy = "start the service, or correct cold.options and cold.secrets; the agent runs without it until then"
        return Finding("cold store", f"{config.scheme}: {error}", _WANTED, Level.SLOW, remedy + _permissions(config))
    if isinstance(found, ColdStoreError):
        remedy = "room in the store, and permission to write: until then the agent only reads it"
        words = f"{config.scheme} takes nothing: {found}"
        return Finding("cold store", words, _WANTED, Level.SLOW, remedy + _permissions(config))
    times = f"put {found.put_s * 1e3:.1f} ms, get {found.get_s * 1e3:.1f} ms"
    if found.undeletable:
        words = f"{config.scheme}: {times}; it deletes nothing: {found.undeletable}"
        remedy = "permission to delete, or a rule of the store that deletes old objects"
        return Finding("cold store", words, _WANTED, Level.NOTE, remedy + _permissions(config))
    return Finding("cold store", f"{config.scheme}: {times}", _WANTED)


def _permissions(config: ColdConfig) -> str:
    """What S3 must allow; it says of no request which of these it misses."""
    if config.scheme != "s3":
        return ""
    return "; S3 must allow s3:GetObject, s3:PutObject, s3:DeleteObject on the objects, s3:ListBucket on the bucket"


async def _try_out(config: ColdConfig) -> Trial | ColdStoreError:
    store = open_store(config)
    try:
        return await try_out(store, f"kvcast/doctor-{os.getpid()}", TRIAL_BYTES, partial(within, config.timeout_s))
    finally:
        await store.close()
