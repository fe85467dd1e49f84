"""Signs the tokens with which agents open connections for reads. Pure: the key follows from the controller's secret.

Each start of a controller has another key. Agents learn it over the control channel, and keep the keys of controllers
before as long as tokens of these are good: so a failover interrupts no read.
"""

from __future__ import annotations

import hashlib
import ipaddress

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from controlplane.core.nodes import NodeFacts
from kvproto.grants import NamespaceRules
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc.read_tokens import ReadToken, signed_bytes


class ReadTokens:
    """Of one controller."""

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
        token = ReadToken(self._verify_key, facts.name, _reads_from(facts), now_ms + self._lifetime_ms, grant).pack()
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


def _reads_from(facts: NodeFacts) -> bytes:
    """Where connections of a node come from: the address at which it is read itself."""
    try:
        return ipaddress.IPv4Address(facts.read_endpoint.rpartition(":")[0]).packed
    except ValueError:
        return facts.data_ip
