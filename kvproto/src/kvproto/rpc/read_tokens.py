"""Tokens that open connections for reliable reads: what is signed, and what a reader shows. Pure; knows no signatures.

A controller signs a token for each agent: which node it is, from which address its connections come, which namespaces
it may have, until when. A holder checks it once for each connection.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from google.protobuf.message import DecodeError

from kvproto.grants import PATTERNS_MAX, Grant
from kvproto.limits import RAILS_MAX
from kvproto.rpc import control_pb2 as pb

SHOWN_BYTES_MAX: Final = 64 * 1024
"""Of all tokens that a reader shows at once."""
SHOWN_MAX: Final = 4
EXPELLED_MAX: Final = 256
"""Nodes whose tokens are no good any more, that agents are told of."""
_CONTEXT: Final = b"kvcast read token\0"


@dataclass(frozen=True, slots=True)
class ReadToken:
    """What a controller says of a node."""

    verify_key: bytes
    """Ed25519, 32 bytes: of the controller."""
    node: str
    address: bytes
    """4 bytes of IPv4, 16 of IPv6."""
    expires_ms: int
    """On that controller's clock."""
    grant: Grant
    rail_addresses: tuple[bytes, ...] = ()
    """From which connections on further rails come."""

    def pack(self) -> bytes:
        """As it is signed and sent."""
        return pb.ReadToken(
            verify_key=self.verify_key,
            node=self.node,
            address=self.address,
            expires_ms=self.expires_ms,
            grant=pb.Grant(granted=self.grant.granted.written, withheld=self.grant.withheld.written),
            rail_addresses=self.rail_addresses,
        ).SerializeToString(deterministic=True)


def signed_bytes(token: bytes) -> bytes:
    """What the signature is over: nothing else that a controller might sign with this key begins so."""
    return _CONTEXT + token


def unpack_token(packed: bytes) -> ReadToken:
    """Raises ValueError."""
    try:
        said = pb.ReadToken.FromString(packed)
    except DecodeError as error:
        raise ValueError("not a token") from error
    if len(said.verify_key) != 32 or len(said.address) not in (4, 16):
        raise ValueError("a token without key or address")
    if len(said.rail_addresses) >= RAILS_MAX:
        raise ValueError("a token with too many addresses")
    if len(said.grant.granted) + len(said.grant.withheld) > PATTERNS_MAX:
        raise ValueError("a token with too many namespaces")
    grant = Grant.of(said.grant.granted, said.grant.withheld)
    rails = tuple(said.rail_addresses)
    return ReadToken(said.verify_key, said.node, said.address, said.expires_ms, grant, rails)


def pack_shown(tokens: Sequence[pb.SignedReadToken]) -> bytes:
    """What a reader sends first on a connection; empty when it has no token."""
    return pb.ShownReadTokens(tokens=tokens).SerializeToString()


def unpack_shown(packed: bytes) -> list[tuple[bytes, bytes]]:
    """(token, signature) of each. Raises ValueError."""
    try:
        shown = pb.ShownReadTokens.FromString(packed)
    except DecodeError as error:
        raise ValueError("no tokens") from error
    if len(shown.tokens) > SHOWN_MAX:
        raise ValueError("too many tokens")
    return [(one.token, one.signature) for one in shown.tokens]
