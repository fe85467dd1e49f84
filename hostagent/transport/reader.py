"""Who reads on one connection that we serve: what its token allows, and for how long.

One check for each token that is shown; a read costs a look into a set.
"""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import Callable

from hostagent import limits
from hostagent.transport.base import TransportCounters
from hostagent.transport.read_tokens import Admitted, Refusal, TokenBook
from kvproto.grants import EVERYTHING, Grant

_NAMESPACES_REMEMBERED = 4096


class Reader:
    """Of one connection."""

    def __init__(
        self,
        tokens: TokenBook | None,
        peer: str,
        loop: asyncio.AbstractEventLoop,
        counters: TransportCounters,
        end: Callable[[], None],
        changed: Callable[[], None] = lambda: None,
    ) -> None:
        """`tokens` None: everybody may read; `peer`: its address; `end()`: the connection has to end; `changed()`: it
        may have something else than before, although it has shown nothing new."""
        self._changed = changed
        self._tokens = tokens
        self._peer = peer
        self._loop = loop
        self._counters = counters
        self._end = end
        self._verdict: Admitted | Refusal = Refusal.NO_TOKEN
        self._shown = b""
        self._namespaces: dict[str, bool] = {}
        self._timer: asyncio.TimerHandle | None = None
        if tokens is not None:
            tokens.watch(self._hear_who_is_out)
        if tokens is not None and tokens.demands:
            self._timer = loop.call_later(limits.READ_TOKEN_S, self._look_again)

    @property
    def refusal(self) -> Refusal | None:
        """Why its requests are not answered; None: they are."""
        if self._tokens is None or not self._tokens.demands or isinstance(self._verdict, Admitted):
            return None
        return self._verdict

    @property
    def grant(self) -> Grant:
        """What it may have."""
        demanded = self._tokens is not None and self._tokens.demands
        return self._verdict.grant if demanded and isinstance(self._verdict, Admitted) else EVERYTHING

    def allows(self, namespace: str) -> bool:
        """Whether it may have chunks of this namespace."""
        allowed = self._namespaces.get(namespace)
        if allowed is None:
            if len(self._namespaces) == _NAMESPACES_REMEMBERED:
                self._namespaces.clear()
            allowed = self._namespaces[namespace] = self.grant.allows(namespace)
        return allowed

    def shows(self, tokens: bytes) -> None:
        """The peer shows its tokens, the first time or again."""
        if self._tokens is None:
            return
        self._shown = tokens
        self._verdict = self._tokens.check(tokens, ipaddress.ip_address(self._peer).packed, self._loop.time())
        self._namespaces.clear()
        if self._timer is not None:
            self._timer.cancel()
        left_s = self._verdict.good_for_s if isinstance(self._verdict, Admitted) else limits.READ_TOKEN_S
        self._timer = self._loop.call_later(max(left_s, limits.READ_TOKEN_AGAIN_S), self._look_again)

    def count_refused(self) -> None:
        """A request that is not answered."""
        if isinstance(self._verdict, Refusal):
            self._counters.drop(f"read_unadmitted_{self._verdict.name.lower()}")

    def close(self) -> None:
        """The connection has ended."""
        if self._tokens is not None:
            self._tokens.unwatch(self._hear_who_is_out)
        if self._timer is not None:
            self._timer.cancel()

    def _hear_who_is_out(self) -> None:
        """Nodes were expelled, or tokens are demanded now. If this one is out, its connection ends, and with it all
        that it has open."""
        if self._shown:
            self.shows(self._shown)
        if self._verdict is Refusal.EXPELLED:
            self._end()
        else:
            self._changed()

    def _look_again(self) -> None:
        """The token has expired, unless time stands still; or none that is good has come."""
        if self._tokens is None or not self._tokens.demands:
            return
        if self._shown:
            self.shows(self._shown)
        if isinstance(self._verdict, Refusal):
            self._end()
        else:
            self._changed()
