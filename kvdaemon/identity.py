"""Who a process is, by its certificate: SPIFFE-style names, one for each role. Pure.

spiffe://TRUST_DOMAIN/agent/NODE, and /controller, /operator, /engine, /switch without a name behind them (SPIFFE ID
standard, section 2: a URI in the certificate's subject alternative names). A server's certificate has a DNS name
besides, ROLE.TRUST_DOMAIN, because a gRPC client compares nothing but DNS names and addresses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

TRUST_DOMAIN: Final = "kvcast.internal"
"""Unless an operator says another."""
_SCHEME: Final = "spiffe://"
_TRUST_DOMAIN: Final = re.compile(r"[a-z0-9]([a-z0-9._-]{0,253}[a-z0-9])?")
_NODE: Final = re.compile(r"[A-Za-z0-9._-]{1,64}")


class Role(StrEnum):
    """What a process is for; the values are the first parts of paths."""

    AGENT = "agent"
    CONTROLLER = "controller"
    OPERATOR = "operator"
    ENGINE = "engine"
    SWITCH = "switch"


@dataclass(frozen=True, slots=True)
class Identity:
    """One name in a certificate. `node`: of an agent; empty for all other roles."""

    trust_domain: str
    role: Role
    node: str = ""

    def __str__(self) -> str:
        """The URI."""
        return f"{_SCHEME}{self.trust_domain}/{self.role.value}" + (f"/{self.node}" if self.node else "")

    @property
    def server_name(self) -> str:
        """The DNS name that goes with it in a server's certificate."""
        return f"{self.role.value}.{self.trust_domain}"


def trust_domain(text: str) -> str:
    """A checked trust domain. Raises ValueError."""
    if not _TRUST_DOMAIN.fullmatch(text):
        raise ValueError(f"{text!r} is not a trust domain like kvcast.internal")
    return text


def parse_identity(uri: str) -> Identity:
    """From a URI. Raises ValueError for names that are none of ours."""
    domain, _, path = uri.removeprefix(_SCHEME).partition("/")
    word, _, node = path.partition("/")
    known = uri.startswith(_SCHEME) and _TRUST_DOMAIN.fullmatch(domain) and word in [role.value for role in Role]
    if not known or ("/" in path) != (word == Role.AGENT) or (node and not _NODE.fullmatch(node)):
        raise ValueError(f"{uri!r} is not {_SCHEME}TRUST_DOMAIN/agent/NODE, /controller, /operator, /engine or /switch")
    if word == Role.AGENT and not node:
        raise ValueError(f"{uri!r} names no node")
    return Identity(domain, Role(word), node)


def identities(names: Iterable[str]) -> tuple[Identity, ...]:
    """Those of some names that are identities of ours; others (DNS names, addresses) mean nothing here."""
    found = []
    for name in names:
        if name.startswith(_SCHEME):
            try:
                found.append(parse_identity(name))
            except ValueError:
                continue
    return tuple(found)
