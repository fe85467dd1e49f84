"""How `kvcast top` shows what it knows: lines for a terminal of any width from 80 columns on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from rich.console import Group, JustifyMethod, RenderableType
from rich.table import Table
from rich.text import Text

from kvcast.operator import holders_text, key_text
from kvcast.top.board import SOURCES, Board, View, Wish, shares, sizes
from kvproto.printable import printable
from kvproto.rpc import control_pb2 as rpc
from kvproto.units import format_bytes

RowT = TypeVar("RowT")
COLOURS = {"local": "green", "disk": "magenta", "cold": "cyan", "switch": "red", "cast": "yellow", "holder": "blue"}
_LETTERS = {name: letter for letter, name, _ in SOURCES}
_BAR_CELLS = 10
_WIDE = 104
"""From so many columns on there is room for namespaces and holders."""
_STATES = {"ready": "green", "absent": "default"}
_FIXED_ROWS = 9
"""Lines but for those of nodes and of the table below them."""
_PROBLEMS_MAX = 3
HELP = """
 q            quit
 s            sort prefixes by the next column:
              reads/s, size, casts, riders, served, wait
 /            show only rows with some text: type it, then Enter
 Escape       show all rows again
 Tab          prefixes, what is on its way, decisions with reasons, drops
 j k ↓ ↑      scroll; also Page Up, Page Down, Home
 ?            this help; any key leaves it

 A prefix is a run of chunks up to the next branch.
 CASTS        of its chunks
 RIDERS       arrivals of those casts that cost no holder a byte
 SERVED       chunks that came from the switch's memory
 FROM         where its bytes came from, a letter for each tenth:
              o own DRAM, d own disk, k cold store, s switch memory, c cast, u unicast
 WAIT         how long a fetch of it takes, on average
"""


def screen(board: Board, wish: Wish, width: int, height: int | None, limit: int) -> Group:
    """One look. `height`: lines of the terminal; None: as many as it takes, for `limit` rows."""
    if wish.helping:
        return Group(_headline(board), Text(HELP))
    nodes = board.nodes
    shown_nodes = len(nodes) if height is None else max(2, min(len(nodes), (height - _FIXED_ROWS) // 2))
    wide = width >= _WIDE
    head = [_headline(board), _switch_line(board.status.switch_view), _delivered(board), Text()]
    problems = _port_problems(nodes)
    room = limit if height is None else max(1, min(limit, height - _FIXED_ROWS - shown_nodes - len(problems)))
    count, body = _body(board, wish, wide=wide, room=room)
    more = _more(len(nodes) - shown_nodes)
    parts: list[RenderableType] = [*head, _nodes(nodes[:shown_nodes], wide=wide), *problems, more, body]
    if height is not None:
        parts += [Text("\n" * max(0, room - max(count, 1) - (count == 0))), _footer(wish, width)]
    return Group(*parts)


def _headline(board: Board) -> Text:
    if board.trouble:
        return Text.assemble(("not connected: ", "bold red"), (board.trouble, "red"), "; trying again", no_wrap=True)
    status = board.status
    return Text.assemble(
        ("INSECURE: no TLS; " if status.security == "insecure" else "", "bold red"),
        ("LEASE HAS RUN OUT: nothing is started; " if status.leadership == "lapsed" else "", "bold red"),
        (f"{status.chunks} chunks", "bold"),
        f" ({format_bytes(status.chunk_bytes)}) in {status.copies} copies; kept off uplinks ",
        (format_bytes(status.bytes_kept_off_uplinks), "bold"),
        f"; managing {format_bytes(status.management_bytes)}",
        no_wrap=True,
        overflow="ellipsis",
    )


def _switch_line(switch: rpc.SwitchView) -> Text:
    if switch.state == "absent" and switch.fanout:
        why = f": {switch.fanout_why}" if switch.fanout_why else ""
        return Text(f"no kvcast switch: casts by {switch.fanout}{why}", no_wrap=True, overflow="ellipsis")
    if switch.state in ("absent", ""):
        return Text("no kvcast switch: every fetch is unicast" if switch.state else "no news yet")
    if switch.state == "standby":
        return Text("this controller is on standby: another one leads", style="yellow")
    return Text.assemble(
        f"{switch.target} at {switch.address}: ",
        (switch.state, _STATES.get(switch.state, "yellow")),
        f", {switch.slots_used}/{switch.slots} slots, {switch.serving} served, {switch.filling} filling",
        f"; {switch.fanout_why}" if switch.fanout_why else "",
        no_wrap=True,
        overflow="ellipsis",
    )


def _delivered(board: Board) -> Text:
    now = board.delivered_now()
    total = sum(now.values())
    line = Text(f"delivered {format_bytes(round(total))}/s ", no_wrap=True, overflow="ellipsis")
    for _, name, words in SOURCES:
        if now[name]:
            line.append(f" {words} {now[name] / total:.0%}", style=COLOURS[name])
    return line


def _nodes(nodes: Sequence[rpc.LiveNode], *, wide: bool) -> Table:
    has_racks = any(row.node.rack for row in nodes)
    head = ("STATE", "PORT>", "POOL>", "CHUNKS>", "LAST COPIES>", "SENT>", "RECEIVED>")
    table = _table("NODE", *(("RACK",) if has_racks else ()), *head)
    for row in nodes:
        node = row.node
        pool = f"{node.pool_used_bytes * 100 // max(1, node.pool_bytes)}% of {format_bytes(node.pool_bytes)}"
        disk = f" +{format_bytes(node.disk_used_bytes)} disk" if wide and node.disk_bytes else ""
        table.add_row(
            node.name[:16],
            *([node.rack[:12] or "-"] if has_racks else []),
            node.state,
            str(node.switch_port) if node.HasField("switch_port") else "-",
            pool + disk,
            str(node.chunks),
            str(node.last_copies),
            f"{format_bytes(round(row.sent_bytes_per_s))}/s",
            f"{format_bytes(round(row.received_bytes_per_s))}/s",
            style="" if node.state == "attached" else "yellow",
        )
    return table


def _port_problems(nodes: Sequence[rpc.LiveNode]) -> list[Text]:
    """Nodes that no cast reaches, and why: a line each, of many the first few."""
    troubled = [row.node for row in nodes if row.node.port_problem]
    lines = [f"{node.name}: {node.port_problem}" for node in troubled[:_PROBLEMS_MAX]]
    if len(troubled) > _PROBLEMS_MAX:
        lines.append(f"… and {len(troubled) - _PROBLEMS_MAX} more nodes that no cast reaches")
    return [Text(line, "yellow", no_wrap=True, overflow="ellipsis") for line in lines]


def _more(count: int) -> Text:
    return Text(f"… and {count} more" if count > 0 else "", style="dim")


def _body(board: Board, wish: Wish, *, wide: bool, room: int) -> tuple[int, RenderableType]:
    """How many rows of the table are seen, and the table."""
    match wish.view:
        case View.PREFIXES:
            prefixes = _window(board.prefixes(wish.order, wish.wanted), wish.top, room)
            return len(prefixes), _prefixes(prefixes, wide=wide)
        case View.TRANSFERS:
            transfers = _window(board.transfers(wish.wanted), wish.top, room)
            return len(transfers), _transfers(transfers)
        case View.EVENTS:
            events = _window(board.events(wish.wanted), wish.top, room)
            return len(events), _events(events, board.status.uptime_ms)
        case View.DROPS:
            drops = _window(board.counts("drops", wish.wanted), wish.top, room)
            return len(drops), _drops(drops)


def _window(rows: Sequence[RowT], top: int, room: int) -> Sequence[RowT]:
    """The rows that are seen; scrolling ends at the last."""
    top = min(top, max(0, len(rows) - room))
    return rows[top : top + room]


def _prefixes(prefixes: Sequence[rpc.PrefixView], *, wide: bool) -> RenderableType:
    if not prefixes:
        return Text("no prefix was read yet, or none matches", style="dim")
    names = ["PREFIX", "CHUNKS>", "SIZE>", "READS/S>", "CASTS>", "RIDERS>", "SERVED>", "FROM", "WAIT>"]
    table = _table(*names, *(("NAMESPACE", "HOLDERS") if wide else ()))
    for prefix in prefixes:
        more = (printable(prefix.namespace)[:24], holders_text(list(prefix.holders), [])) if wide else ()
        table.add_row(
            key_text(prefix.first),
            str(prefix.chunks),
            format_bytes(prefix.size_bytes),
            f"{prefix.reads_per_s:g}",
            str(prefix.casts),
            str(prefix.riders),
            str(prefix.delivered.switch_chunks),
            _bar(prefix.delivered),
            f"{prefix.wait_ms:.3g} ms" if prefix.wait_ms < 1000 else f"{prefix.wait_ms / 1000:.3g} s",
            *more,
        )
    return table


def _bar(delivered: rpc.Delivered) -> Text:
    bar = Text()
    for name, cells in shares(sizes(delivered), _BAR_CELLS):
        bar.append(_LETTERS[name] * cells, style=COLOURS[name])
    return bar


def _transfers(transfers: Sequence[rpc.TransferView]) -> RenderableType:
    if not transfers:
        return Text("nothing is on its way", style="dim")
    table = _table("ON ITS WAY", "SIZE>", "HOW", "FROM", "RIDERS")
    for transfer in transfers:
        from_switch = transfer.holder == "switch"
        riders = Text(no_wrap=True, overflow="ellipsis")
        for rider in transfer.riders:
            there = "" if rider.arrived_percent == 100 else f" {rider.arrived_percent}%"
            riders.append(f"{rider.node}{there} ", style="dim" if not there else "")
        table.add_row(
            key_text(transfer.key),
            format_bytes(transfer.size_bytes),
            "switch" if from_switch else "cast" if transfer.cast else "unicast" if transfer.holder else "fetch",
            "" if from_switch else transfer.holder,
            riders,
            style="dim" if transfer.ended else "",
        )
    return table


def _events(events: Sequence[rpc.EventView], uptime_ms: int) -> RenderableType:
    if not events:
        return Text("nothing was decided yet, or nothing matches", style="dim")
    table = _table("AGO>", "KIND", "TIMES>", "WHAT AND WHY")
    for column, width in zip(table.columns, (6, 9, 5), strict=False):
        column.min_width = width
    for event in events:
        chunk = f" [{key_text(event.key)}]" if event.key else ""
        ago_s = max(0, uptime_ms - event.at_ms) // 1000
        words = Text(f"{event.text}{chunk}", no_wrap=True, overflow="ellipsis")
        table.add_row(f"{ago_s} s" if ago_s < 100 else f"{ago_s // 60} min", event.kind, str(event.times), words)
    return table


def _drops(drops: Sequence[rpc.CountView]) -> RenderableType:
    if not drops:
        return Text("nothing was dropped", style="dim")
    table = _table("DROPPED>", "WHERE AND WHY")
    for drop in drops:
        table.add_row(str(drop.count), drop.name.replace("_", " "))
    return table


def _footer(wish: Wish, width: int) -> Text:
    if wish.typing:
        return Text(f"filter: {wish.wanted}_   (Enter, or Escape for none)", style="reverse", no_wrap=True)
    words = (
        f" q quit  s sort: {wish.order}  / filter: {wish.wanted or 'none'}  Tab: {wish.view.value}  jk scroll  ? help"
    )
    return Text(words[:width].ljust(width), style="reverse", no_wrap=True)


def _table(*names: str) -> Table:
    """Columns; those whose names end in > are aligned to the right."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 1, 0, 0))
    for name in names:
        justify: JustifyMethod = "right" if name.endswith(">") else "left"
        table.add_column(name.removesuffix(">"), justify=justify, no_wrap=True, overflow="ellipsis")
    return table
