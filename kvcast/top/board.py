"""What `kvcast top` knows and what of it a person wants to see. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any, Final

from controlplane.core.live import Tables, apply
from kvproto.rpc import control_pb2 as rpc

SOURCES: Final = (
    ("o", "local", "own DRAM"),
    ("d", "disk", "own disk"),
    ("k", "cold", "cold store"),
    ("s", "switch", "switch memory"),
    ("c", "cast", "cast"),
    ("u", "holder", "unicast"),
)
"""Letter, field of Delivered without `_bytes`, and words."""
BUCKET_S: Final = 2
NOW_BUCKETS: Final = 5
"""Of these, what counts as now."""
"""Of the controller's history of sources."""


class View(Enum):
    """What the lower part of the screen shows."""

    PREFIXES = "prefixes"
    TRANSFERS = "on its way"
    EVENTS = "decisions"
    DROPS = "drops"

    def next(self) -> View:
        views = list(View)
        return views[(views.index(self) + 1) % len(views)]


ORDERS: Final[Mapping[str, Callable[[rpc.PrefixView], Any]]] = {
    "reads/s": lambda prefix: (-prefix.reads_per_s, -prefix.reads),
    "size": lambda prefix: -prefix.size_bytes,
    "casts": lambda prefix: -prefix.casts,
    "riders": lambda prefix: -prefix.riders,
    "served": lambda prefix: -prefix.delivered.switch_chunks,
    "wait": lambda prefix: -prefix.wait_ms,
}
"""How prefixes may be sorted, the most first."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person has asked to see."""

    view: View = View.PREFIXES
    order: str = next(iter(ORDERS))
    wanted: str = ""
    """Only rows with this text."""
    top: int = 0
    """The first row that is shown."""
    typing: bool = False
    """What is typed belongs to `wanted`."""
    helping: bool = False
    quitting: bool = False


_TO_THE_FIRST: Final = -(10**9)
_SCROLL: Final[Mapping[str, int]] = {
    "down": 1,
    "j": 1,
    "up": -1,
    "k": -1,
    "pagedown": 10,
    "pageup": -10,
    "home": _TO_THE_FIRST,
}


def pressed(wish: Wish, key: str) -> Wish:
    """After a key."""
    if wish.typing:
        return _typed(wish, key)
    if wish.helping:
        return replace(wish, helping=False, quitting=key == "q")
    match key:
        case "q":
            return replace(wish, quitting=True)
        case "s":
            orders = list(ORDERS)
            return replace(wish, order=orders[(orders.index(wish.order) + 1) % len(orders)], top=0)
        case "/":
            return replace(wish, typing=True, top=0)
        case "escape":
            return replace(wish, wanted="", top=0)
        case "tab":
            return replace(wish, view=wish.view.next(), top=0)
        case "?":
            return replace(wish, helping=True)
    return replace(wish, top=max(0, wish.top + _SCROLL.get(key, 0)))


def _typed(wish: Wish, key: str) -> Wish:
    match key:
        case "enter":
            return replace(wish, typing=False)
        case "escape":
            return replace(wish, typing=False, wanted="")
        case "backspace":
            return replace(wish, wanted=wish.wanted[:-1])
    return replace(wish, wanted=wish.wanted + key) if len(key) == 1 and key.isprintable() else wish


@dataclass(slots=True)
class Board:
    """What is known."""

    tables: Tables = field(default_factory=dict)
    status: rpc.StatusReply = field(default_factory=rpc.StatusReply)
    address: str = ""
    """Of the controller that is heard."""
    trouble: str = ""
    """Why none is; empty: one is."""

    def heard(self, address: str, increment: rpc.LiveIncrement) -> None:
        """A controller has news."""
        apply(self.tables, increment)
        self.status, self.address, self.trouble = increment.status, address, ""

    def lost(self, why: str) -> None:
        """The controller is not heard any more. What it said last stays."""
        self.trouble = why

    @property
    def nodes(self) -> list[rpc.LiveNode]:
        """By name."""
        return sorted(self._rows("nodes"), key=lambda row: _natural(row.node.name))

    def prefixes(self, order: str, wanted: str = "") -> list[rpc.PrefixView]:
        """Sorted; only those whose key, namespace or holders contain `wanted`."""
        rows = [
            row
            for row in self._rows("prefixes")
            if wanted.lower() in " ".join((row.first.hex(), row.namespace, *row.holders)).lower()
        ]
        return sorted(rows, key=lambda row: (ORDERS[order](row), row.first))

    def transfers(self, wanted: str = "") -> list[rpc.TransferView]:
        """Those under way first, then the latest."""
        rows = [
            row
            for row in self._rows("transfers")
            if wanted.lower() in " ".join((row.key.hex(), row.holder, *(rider.node for rider in row.riders))).lower()
        ]
        return sorted(rows, key=lambda row: (row.ended, -row.since_ms, row.key))

    def events(self, wanted: str = "") -> list[rpc.EventView]:
        """The latest first."""
        rows = [
            row for row in self._rows("events") if wanted.lower() in f"{row.kind} {row.text} {row.key.hex()}".lower()
        ]
        return sorted(rows, key=lambda row: -row.number)

    def counts(self, table: str, wanted: str = "") -> list[rpc.CountView]:
        """Of `decisions` or `drops`, the most first."""
        rows = [row for row in self._rows(table) if wanted.lower() in row.name.lower()]
        return sorted(rows, key=lambda row: (-row.count, row.name))

    def delivered_now(self) -> dict[str, float]:
        """Bytes per second by source, in the last ten seconds that are over: chunks come in bursts."""
        now = self.status.uptime_ms // 1000 // BUCKET_S
        sources = self.tables.get("sources", {})
        found = [sizes(row.delivered) for at in range(now - NOW_BUCKETS, now) if (row := sources.get(str(at)))]
        return {name: sum(one[name] for one in found) / (BUCKET_S * NOW_BUCKETS) for _, name, _ in SOURCES}

    def _rows(self, table: str) -> list[Any]:
        return list(self.tables.get(table, {}).values())


def within(wish: Wish, board: Board) -> Wish:
    """Scrolled no further than to the last row."""
    rows = {
        View.PREFIXES: lambda: len(board.prefixes(wish.order, wish.wanted)),
        View.TRANSFERS: lambda: len(board.transfers(wish.wanted)),
        View.EVENTS: lambda: len(board.events(wish.wanted)),
        View.DROPS: lambda: len(board.counts("drops", wish.wanted)),
    }
    return replace(wish, top=min(wish.top, max(0, rows[wish.view]() - 1)))


def sizes(delivered: rpc.Delivered) -> dict[str, int]:
    """Bytes by source."""
    return {name: getattr(delivered, f"{name}_bytes") for _, name, _ in SOURCES}


def shares(sizes: Mapping[str, float], cells: int) -> list[tuple[str, int]]:
    """How many of so many cells each source has, in order; all together have all of them, if there is anything."""
    total = sum(sizes.values())
    if total <= 0:
        return []
    found, before, so_far = [], 0, 0.0
    for _, name, _ in SOURCES:
        so_far += sizes[name]
        upto = round(cells * so_far / total)
        found.append((name, upto - before))
        before = upto
    return found


def _natural(name: str) -> tuple[str, int, str]:
    """h10 comes after h9."""
    digits = name[len(name.rstrip("0123456789")) :]
    return name.removesuffix(digits), int(digits or 0), name
