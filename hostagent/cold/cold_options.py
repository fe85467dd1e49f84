"""What an operator configures about the cold store. Of secrets only their places: the values are read at start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from hostagent import limits
from kvpolicy.tiers.form_costs import FormChoice

TIMEOUT_S: Final = 10.0
WRITE_BYTES_PER_S: Final = 128 << 20

SECRET_WORDS: Final = (
    "secret", "password", "passwd", "token", "credential", "access_key", "account_key", "application_key",
    "customer_key", "connection_string",
)  # fmt: skip
"""An option whose name has one of these is a credential: it may not stand in the file itself."""


@dataclass(frozen=True, slots=True)
class SecretPlace:
    """Where a credential is read from: a file or a variable of the environment, one of them."""

    file: str = ""
    variable: str = ""


@dataclass(frozen=True, slots=True)
class ColdConfig:
    """The section `cold` of the agent's configuration."""

    scheme: str
    """A service of opendal: fs, s3, redis, ...; or mooncake."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Of that service, as opendal (or `mooncake_store`) names them; none is a credential."""
    secrets: Mapping[str, SecretPlace] = field(default_factory=dict)
    """Further options of the service, read at start from where they are kept."""
    timeout_s: float = TIMEOUT_S
    """An operation that takes longer has failed."""
    lookup_wait_s: float = limits.COLD_LOOKUP_WAIT_S
    """A request waits at most this long to learn whether the store has its chunks."""
    write_bytes_per_s: int = WRITE_BYTES_PER_S
    """Chunks are written behind no faster than this."""
    form: FormChoice = FormChoice.AUTO


def is_secret(name: str) -> bool:
    """Whether an option of this name is a credential."""
    return any(word in name.lower() for word in SECRET_WORDS)
