"""Who may open a connection for reads: tokens of this node, and checks of those that others show. Pure.

Tokens go by the clock of the controller that signed them, as the control channel told it: clocks of machines need not
agree. Without a controller nobody could get another token, so its time stands still until there is one again.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from kvproto.grants import Grant
from kvproto.rpc import control_pb2 as pb
from kvproto.rpc.read_tokens import SHOWN_MAX, ReadToken, pack_shown, signed_bytes, unpack_shown, unpack_token


class Refusal(enum.IntEnum):
    """Why a reader is not served; the values are statuses of `read_protocol`."""

    NO_TOKEN = 4
    UNKNOWN_CONTROLLER = 5
    """Signed with a key that the holder does not have (yet)."""
    EXPIRED = 6
    WRONG_TOKEN = 7
    """Malformed, forged, or of another address."""
    EXPELLED = 8
    """Of a node that an operator has put out."""


REFUSALS: Final = frozenset(one.value for one in Refusal)
"""Their statuses."""


def refused_words(refusal: Refusal) -> str:
    """For the log of the reader."""
    return f"it does not serve our reads: {_WORDS[refusal]}"


_WORDS = {
    Refusal.NO_TOKEN: "we have no token to show yet; it comes from the controller",
    Refusal.UNKNOWN_CONTROLLER: "it does not know our controller: do both nodes have the same one?",
    Refusal.EXPIRED: "our token has expired; the controller has sent no other",
    Refusal.WRONG_TOKEN: "our token is not for this address: do data.address and the way to it agree?",
    Refusal.EXPELLED: "an operator has put this node out of the cluster",
}


@dataclass(frozen=True, slots=True)
class Admitted:
    """A reader whose token is good."""

    node: str
    grant: Grant
    good_for_s: float


@dataclass(slots=True)
class _Controller:
    key: Ed25519PublicKey
    now_ms: int
    """What it said,"""
    at_s: float
    """and when, in this book's time."""
    lifetime_s: float
    token: pb.SignedReadToken
    """This node's, by this controller."""


class TokenBook:
    """One agent's. All times are of the event loop's clock, in seconds."""

    def __init__(self, *, demands: bool) -> None:
        """`demands`: whether readers have to show tokens, until a controller says whether it gives any."""
        self.demands = demands
        self.shown = b""
        """What this node shows to holders; empty: it has nothing to show."""
        self._expelled: frozenset[str] = frozenset()
        self._watchers: set[Callable[[], None]] = set()
        self._controllers: dict[bytes, _Controller] = {}
        """By key, the last to be heard last."""
        self._book_s = 0.0
        self._since_s: float | None = None
        """When time began to run, None: it stands still."""

    def controller_connected(self, now_s: float, *, gives_tokens: bool) -> None:
        """A controller has said Welcome."""
        self._book_s, self._since_s = self._time_s(now_s), now_s
        before, self.demands = self.demands, gives_tokens
        if gives_tokens and not before:
            self._have_all_look_again()

    def controller_lost(self, now_s: float) -> None:
        """There is no controller any more."""
        self._book_s, self._since_s = self._time_s(now_s), None

    def access_given(self, access: pb.ReadAccess, now_s: float) -> None:
        """The controller's key and time, and a token for this node. Raises ValueError for what is no key."""
        key = Ed25519PublicKey.from_public_bytes(access.verify_key)
        at_s = self._time_s(now_s)
        self._controllers.pop(access.verify_key, None)
        self._controllers[access.verify_key] = _Controller(
            key, access.now_ms, at_s, access.lifetime_ms / 1000, access.token
        )
        old = [one for one, known in self._controllers.items() if at_s - known.at_s > known.lifetime_s]
        for one in [*old, *list(self._controllers)[:-SHOWN_MAX]]:
            self._controllers.pop(one, None)
        self.shown = pack_shown([known.token for known in reversed(self._controllers.values())])
        expelled = frozenset(access.expelled)
        news, self._expelled = expelled - self._expelled, expelled
        if news:
            self._have_all_look_again()

    def watch(self, look_again: Callable[[], None]) -> None:
        """Call this whenever tokens that were good, or none, may be so no more."""
        self._watchers.add(look_again)

    def _have_all_look_again(self) -> None:
        for look_again in list(self._watchers):
            look_again()

    def unwatch(self, look_again: Callable[[], None]) -> None:
        """Never again. Idempotent."""
        self._watchers.discard(look_again)

    def check(self, shown: bytes, address: bytes, now_s: float) -> Admitted | Refusal:
        """Of what a reader at this address shows: the first token that is good, or what is wrong with the best."""
        try:
            tokens = unpack_shown(shown)
        except ValueError:
            return Refusal.WRONG_TOKEN
        worst = Refusal.NO_TOKEN
        for packed, signature in tokens:
            verdict = self._check_one(packed, signature, address, now_s)
            if isinstance(verdict, Admitted):
                return verdict
            worst = max(worst, verdict)
        return worst

    def _check_one(self, packed: bytes, signature: bytes, address: bytes, now_s: float) -> Admitted | Refusal:
        try:
            token = unpack_token(packed)
        except ValueError:
            return Refusal.WRONG_TOKEN
        controller = self._controllers.get(token.verify_key)
        if controller is None:
            return Refusal.UNKNOWN_CONTROLLER
        try:
            controller.key.verify(signature, signed_bytes(packed))
        except InvalidSignature:
            return Refusal.WRONG_TOKEN
        if address not in (token.address, *token.rail_addresses):
            return Refusal.WRONG_TOKEN
        if token.node in self._expelled:
            return Refusal.EXPELLED
        left_s = self._left_s(token, controller, now_s)
        return Admitted(token.node, token.grant, left_s) if left_s > 0 else Refusal.EXPIRED

    def _left_s(self, token: ReadToken, controller: _Controller, now_s: float) -> float:
        """No token is good for longer than its controller said of all of them."""
        passed_s = self._time_s(now_s) - controller.at_s
        return min(controller.lifetime_s, (token.expires_ms - controller.now_ms) / 1000 - passed_s)

    def _time_s(self, now_s: float) -> float:
        return self._book_s if self._since_s is None else self._book_s + (now_s - self._since_s)
