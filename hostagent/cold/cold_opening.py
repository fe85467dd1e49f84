"""Which client serves a cold store: the section `cold` of a configuration becomes a `ColdStore`."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Final

from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.credentials import read_secret
from hostagent.cold.mooncake_store import open_mooncake
from hostagent.cold.opendal_store import open_opendal
from hostagent.cold.stores import ColdStore

MOONCAKE: Final = "mooncake"
"""The one service that opendal does not know."""


def open_store(config: ColdConfig, environment: Mapping[str, str] = os.environ) -> ColdStore:
    """The store that a configuration describes; no request has gone to it yet. Raises CannotRunError."""
    if config.scheme == MOONCAKE:
        return open_mooncake(config)
    secrets = {name: read_secret(name, place, environment) for name, place in config.secrets.items()}
    return open_opendal(config, secrets)
