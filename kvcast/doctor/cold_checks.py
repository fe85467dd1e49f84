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
        return Finding("cold store", f"{config.scheme}: {error}", _WANTED, Level.SLOW, remedy)
    if isinstance(found, ColdStoreError):
        remedy = "room in the store, and permission to write: until then the agent only reads it"
        return Finding("cold store", f"{config.scheme} takes nothing: {found}", _WANTED, Level.SLOW, remedy)
    times = f"put {found.put_s * 1e3:.1f} ms, get {found.get_s * 1e3:.1f} ms"
    return Finding("cold store", f"{config.scheme}: {times}", _WANTED)


async def _try_out(config: ColdConfig) -> Trial | ColdStoreError:
    store = open_store(config)
    try:
        return await try_out(store, f"kvcast/doctor-{os.getpid()}", TRIAL_BYTES, partial(within, config.timeout_s))
    finally:
        await store.close()
