"""Who may read from whom: tokens with which agents open connections for reads, and nodes that operators have put out.

Pure: the key that signs follows from the controller's secret.

Each start of a controller has another key. Agents learn it over the control channel, and keep the keys of controllers
before as long as tokens of these are good: so a failover interrupts no read.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from controlplane.core.limits import NODE_NAME_BYTES_MAX
from controlplane.core.nodes import NodeFacts
from kvproto.grants import NamespaceRules
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc.read_tokens import EXPELLED_MAX, ReadToken, signed_bytes


class ExpulsionError(ValueError):
    """A list that cannot be; one line."""


def checked(names: Iterable[str]) -> frozenset[str]:
    """The nodes to put out, if nodes can have these names and there are not too many. Raises ExpulsionError."""
    found = frozenset(names)
    for name in found:
        if not name.isprintable() or " " in name or not 0 < len(name.encode()) <= NODE_NAME_BYTES_MAX:
            raise ExpulsionError(f"{name[:NODE_NAME_BYTES_MAX]!r} is not a valid node name")
    if len(found) > EXPELLED_MAX:
        raise ExpulsionError(
            f"{len(found)} nodes are expelled, {EXPELLED_MAX} at most: change the authority instead, and give no"
            " certificate of the new one to those that are out"
        )
    return found


class ReadTokens:
    """Owns the key that signs this controller's tokens, and the names of those whose tokens are no good."""

    def __init__(self, secret: bytes, lifetime_ms: int, rules: NamespaceRules) -> None:
        """`secret`: nobody else has it; `rules`: whose which namespaces are."""
        seed = hashlib.blake2b(secret, digest_size=32, person=b"kvcast-tokens").digest()
        self._key = Ed25519PrivateKey.from_private_bytes(seed)
        self._verify_key = self._key.public_key().public_bytes_raw()
        self._rules = rules
        self._lifetime_ms = lifetime_ms
        self.expelled: frozenset[str] = frozenset()
        """Nodes whose tokens are no good any more."""
        self.renew_ns = lifetime_ms * 1_000_000 // 4
        """So often every agent is sent another one: it may miss some."""

    def access_of(self, facts: NodeFacts, now_ns: int) -> rpc.ToAgent:
        """What an agent needs to read, and to be read from."""
        now_ms = now_ns // 1_000_000
        grant = self._rules.grant(facts.name)
        first, *rails = (_reads_from(facts, one) for one in (facts.read_endpoint, *facts.rail_endpoints))
        token = ReadToken(self._verify_key, facts.name, first, now_ms + self._lifetime_ms, grant, tuple(rails)).pack()
        signature = self._key.sign(signed_bytes(token))
        return rpc.ToAgent(
            read_access=rpc.ReadAccess(
                verify_key=self._verify_key,
                now_ms=now_ms,
                lifetime_ms=self._lifetime_ms,
                token=rpc.SignedReadToken(token=token, signature=signature),
                expelled=sorted(self.expelled),
            )
        )


def _reads_from(facts: NodeFacts, endpoint: str) -> bytes:
    """Where connections of a node come from, on a rail: the address at which it is read itself."""
    try:
        return ipaddress.ip_address(endpoint.rpartition(":")[0].strip("[]")).packed
    except ValueError:
        return facts.data_ip
