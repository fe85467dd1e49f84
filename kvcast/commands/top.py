"""`kvcast top`: what is hot, live: nodes, the switch, and the chunks fetched most."""

from __future__ import annotations

import argparse
import sys
import time

from rich.console import Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kvcast.arguments import above_zero, whole
from kvcast.operator import (
    add_common,
    chunk_object,
    console,
    controller,
    holders_text,
    key_text,
    print_json,
    status_object,
)
from kvproto.rpc import control_pb2 as rpc
from kvproto.units import format_bytes


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast top`."""
    parser.add_argument(
        "--interval", type=above_zero, default=1.0, metavar="S", help="seconds between two looks (default 1)"
    )
    parser.add_argument("--limit", type=whole(1), default=10, help="chunks shown (default 10)")
    parser.add_argument("--once", action="store_true", help="look once, then end")
    add_common(parser)


def run(args: argparse.Namespace) -> int:
    """Show until interrupted; once where the output is no terminal."""
    asked = rpc.TopRequest(limit=args.limit)
    out = console()
    with controller(args.controller) as stub:
        reply = stub.Top(asked)
        if args.json:
            hottest = [chunk_object(chunk) for chunk in reply.chunks]
            print_json({"chunks": hottest, "status": status_object(reply.status)})
            return 0
        if args.once or not sys.stdout.isatty():
            out.print(screen(reply, None, args.interval))
            return 0
        with Live(screen(reply, None, args.interval), console=out, screen=True, auto_refresh=False) as live:
            while True:
                time.sleep(max(0.1, args.interval))
                before, reply = reply, stub.Top(asked)
                live.update(screen(reply, before, args.interval), refresh=True)


def screen(reply: rpc.TopReply, before: rpc.TopReply | None, interval_s: float) -> Group:
    """One look; with `before` also what went over each node's link meanwhile."""
    status = reply.status
    return Group(
        _headline(status), _switch_line(status.switch_view), "", _nodes(status, before, interval_s), "", _chunks(reply)
    )


def _headline(status: rpc.StatusReply) -> Text:
    return Text.assemble(
        (f"{status.chunks} chunks", "bold"),
        f" ({format_bytes(status.chunk_bytes)}), {status.copies} copies on {len(status.nodes)} nodes;"
        f" kept off uplinks {format_bytes(status.bytes_kept_off_uplinks)};"
        f" managing cost {format_bytes(status.management_bytes)} in {status.management_messages} messages",
    )


def _switch_line(switch: rpc.SwitchView) -> Text:
    if switch.target == "none":
        return Text("no kvcast switch: every fetch is unicast")
    colour = "green" if switch.state == "ready" else "yellow"
    return Text.assemble(
        f"{switch.target} at {switch.address}: ",
        (switch.state, colour),
        f", {switch.slots_used}/{switch.slots} slots of {switch.segment_bytes} B, {switch.serving} chunks served,"
        f" {switch.filling} filling, {switch.groups} groups",
    )


def _nodes(status: rpc.StatusReply, before: rpc.TopReply | None, interval_s: float) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("NODE", "STATE", "PORT", "POOL", "DISK", "CHUNKS", "LAST COPIES", "SENT", "RECEIVED"):
        table.add_column(name, justify="left" if name in ("NODE", "STATE") else "right", no_wrap=True)
    earlier = {node.name: node for node in before.status.nodes} if before else {}
    for node in status.nodes:
        old = earlier.get(node.name)
        sent, received = format_bytes(node.sent_bytes), format_bytes(node.received_bytes)
        if old is not None and old.sent_bytes <= node.sent_bytes and old.received_bytes <= node.received_bytes:
            sent = format_bytes((node.sent_bytes - old.sent_bytes) / interval_s) + "/s"
            received = format_bytes((node.received_bytes - old.received_bytes) / interval_s) + "/s"
        table.add_row(
            node.name,
            node.state,
            str(node.switch_port) if node.HasField("switch_port") else "-",
            f"{format_bytes(node.pool_used_bytes)} of {format_bytes(node.pool_bytes)}",
            f"{format_bytes(node.disk_used_bytes)} of {format_bytes(node.disk_bytes)}" if node.disk_bytes else "-",
            str(node.chunks),
            str(node.last_copies),
            sent,
            received,
        )
    return table


def _chunks(reply: rpc.TopReply) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for name in ("HOTTEST", "POS", "SIZE", "FETCH/S", "SWITCH", "HOLDERS"):
        table.add_column(name, justify="left" if name in ("HOTTEST", "SWITCH", "HOLDERS") else "right", no_wrap=True)
    for chunk in reply.chunks:
        table.add_row(
            key_text(chunk.key),
            str(chunk.position),
            format_bytes(chunk.size_bytes),
            f"{chunk.fetches_per_s:.3g}",
            "" if chunk.switch_state == "absent" else chunk.switch_state,
            holders_text(list(chunk.holders), list(chunk.disk_holders)),
        )
    return table
