"""`kvcast top`: what keys do, what fits into 80 columns, and how it goes on when another controller takes over."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import re
import struct
import sys
import termios
from pathlib import Path

import pytest
from rich.console import Console

from controlplane.config import parse
from controlplane.daemon import Controller
from kvcast.commands.top import names_of
from kvcast.top.board import ORDERS, Board, View, Wish, pressed, shares, within
from kvcast.top.screen import screen
from kvproto.rpc import control_pb2 as rpc
from tests.contracts.switch_target.memory_target import MemorySwitch, MemoryTarget
from tests.unit.controlplane.fake_agent import DEADLINE_S, agents
from tests.unit.controlplane.helpers import key
from tests.unit.controlplane.test_daemon import PREFIX, QUICK, controller, eventually, run

CODES = re.compile(r"\x1b\[[0-9;?]*[a-zA-Z]|\x1b[=>]")
COLUMNS, ROWS = 80, 24


def increment(**tables: object) -> rpc.LiveIncrement:
    view = rpc.SwitchView(target="p4switch", address="10.0.0.1:9559", state="ready", slots=4096, slots_used=100)
    status = rpc.StatusReply(chunks=7, copies=9, chunk_bytes=1 << 20, uptime_ms=5000, switch_view=view)
    return rpc.LiveIncrement(snapshot=True, sequence=1, status=status, **tables)  # type: ignore[arg-type]


def prefix(name: object, **facts: object) -> rpc.PrefixView:
    return rpc.PrefixView(first=key(name), **facts)  # type: ignore[arg-type]


def board(**tables: object) -> Board:
    one = Board()
    one.heard("here", increment(**tables))
    return one


def shown(one: Board, wish: Wish, width: int = COLUMNS, height: int | None = ROWS) -> list[str]:
    console = Console(width=width, height=height, color_system=None)
    with console.capture() as capture:
        console.print(screen(one, wish, width, height, 1000))
    return capture.get().splitlines()


FULL = {
    "nodes": [
        rpc.LiveNode(
            node=rpc.NodeView(
                name=f"node-with-a-long-name-{at}",
                state="attached",
                switch_port=500,
                pool_bytes=1 << 40,
                pool_used_bytes=1 << 39,
                chunks=123_456,
                last_copies=98_765,
            ),
            sent_bytes_per_s=123e9,
            received_bytes_per_s=456e9,
        )
        for at in range(64)
    ],
    "prefixes": [
        prefix(
            at,
            chunks=31_072,
            size_bytes=123 << 30,
            reads_per_s=1234.0,
            casts=1_234_567,
            riders=12_345_678,
            namespace="a label of some length",
            holders=[f"n{at}", "n77"],
            delivered=rpc.Delivered(cast_bytes=30, switch_bytes=50, local_bytes=20, switch_chunks=99_999_999),
            wait_ms=123_456,
        )
        for at in range(40)
    ],
    "transfers": [
        rpc.TransferView(
            key=key(at),
            size_bytes=1 << 30,
            holder="node-1",
            cast=True,
            riders=[rpc.RiderView(node=f"node-{rider}", arrived_percent=rider) for rider in range(64)],
        )
        for at in range(64)
    ],
    "events": [
        rpc.EventView(number=at, at_ms=at, kind="admission", text="a long reason " * 10, key=key(at), times=123_456)
        for at in range(64)
    ],
    "drops": [rpc.CountView(name=f"switch: reason_{at}", count=at) for at in range(30)],
}


# -- keys


def after(*keys: str) -> Wish:
    wish = Wish()
    for one in keys:
        wish = pressed(wish, one)
    return wish


def test_keys_do_what_the_help_says() -> None:
    assert after("q").quitting
    assert after("s").order == "size"
    assert after(*["s"] * len(ORDERS)) == Wish()
    assert [after(*["tab"] * times).view for times in range(5)] == [*View, View.PREFIXES]
    assert after("j", "down", "k").top == 1
    assert after("pagedown", "up").top == 9
    assert after("k").top == 0
    assert after("pagedown", "home").top == 0
    assert after("?").helping
    assert after("?", "j") == Wish()
    assert after("?", "q").quitting
    assert after("x") == Wish()


def test_a_filter_is_typed_and_taken_away() -> None:
    typing = after("/", "s", "q", "backspace", "?")
    assert (typing.wanted, typing.typing, typing.order, typing.quitting) == ("s?", True, "reads/s", False)
    assert pressed(typing, "enter") == Wish(wanted="s?")
    assert pressed(pressed(typing, "enter"), "escape") == Wish()
    assert pressed(typing, "escape") == Wish()


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        (b"q", ["q"]),
        (b"\x1b[A\x1b[Bj", ["up", "down", "j"]),
        (b"\x1bOA", ["up"]),
        (b"\x1b[5~\x1b[6~\x1b[H", ["pageup", "pagedown", "home"]),
        (b"\x1b", ["escape"]),
        (b"\x1b\t?", ["escape", "tab", "?"]),
        (b"\x1b[15~s", ["s"]),
        (b"\x1b[1;5Cq", ["q"]),
        (b"\x1b[", []),
        ("é\x7f\r".encode(), ["é", "backspace", "enter"]),
        (b"\xff", ["\ufffd"]),
    ],
)
def test_what_a_terminal_sends_becomes_keys(typed: bytes, keys: list[str]) -> None:
    assert names_of(typed) == keys


# -- the screen


@pytest.mark.parametrize("view", View)
@pytest.mark.parametrize(("columns", "rows"), [(80, 24), (80, 60), (200, 50)])
def test_everything_fits(view: View, columns: int, rows: int) -> None:
    lines = shown(board(**FULL), Wish(view=view), columns, rows)
    assert len(lines) <= rows
    assert max(map(len, lines)) <= columns
    assert lines[-1].startswith(" q quit")
    assert any(line.startswith("… and ") for line in lines), "there are too many nodes for any of these"


def test_racks_are_shown_where_nodes_name_them() -> None:
    nodes = [
        rpc.LiveNode(node=rpc.NodeView(name=f"n{at}", state="attached", rack=rack)) for at, rack in ((1, "a"), (2, ""))
    ]
    head, *rows = [line.split() for line in shown(board(nodes=nodes), Wish()) if re.match(r" *(NODE|n\d) ", line)]
    assert head[:3] == ["NODE", "RACK", "STATE"]
    assert [row[:3] for row in rows] == [["n1", "a", "attached"], ["n2", "-", "attached"]]
    assert "RACK" not in "".join(shown(board(nodes=nodes[1:]), Wish()))


def test_columns_are_right_in_80() -> None:
    one = prefix(
        "a",
        chunks=16,
        size_bytes=4 << 20,
        reads_per_s=2.5,
        casts=3,
        riders=21,
        wait_ms=12.5,
        delivered=rpc.Delivered(local_bytes=20, switch_bytes=50, cast_bytes=30, switch_chunks=8),
    )
    lines = shown(board(prefixes=[one]), Wish())
    at = next(index for index, line in enumerate(lines) if line.startswith("PREFIX"))
    assert lines[at].split() == ["PREFIX", "CHUNKS", "SIZE", "READS/S", "CASTS", "RIDERS", "SERVED", "FROM", "WAIT"]
    expected = [key("a").hex()[:12], "16", "4", "MiB", "2.5", "3", "21", "8", "oosssssccc", "12.5", "ms"]
    assert lines[at + 1].split() == expected


def test_rows_are_sorted_filtered_and_scrolled() -> None:
    rows = [
        prefix(at, size_bytes=at, reads_per_s=10 - at, holders=[f"n{at}"], namespace="even" * (1 - at % 2))
        for at in range(10)
    ]
    one = board(prefixes=rows)

    def seen(wish: Wish) -> list[str]:
        return [word for line in shown(one, wish) for word in line.split()[:1] if len(word) == 12]

    names = [key(at).hex()[:12] for at in range(10)]
    assert seen(Wish()) == names
    assert seen(Wish(order="size")) == names[::-1]
    assert seen(Wish(wanted="EVEN")) == names[::2]
    assert seen(Wish(wanted="n7")) == names[7:8]
    assert seen(Wish(wanted=key(3).hex()[2:20])) == names[3:4]
    assert any("none matches" in line for line in shown(one, Wish(wanted="nothing like it")))
    assert within(Wish(top=100), one).top == 9
    assert within(Wish(top=100, wanted="EVEN"), one).top == 4
    assert within(Wish(top=100, view=View.DROPS), one).top == 0
    small = [line for line in shown(one, Wish(top=100), COLUMNS, 16) if names[9] in line]
    assert small, "scrolling ends at the last row"


def test_what_is_wrong_is_said_and_what_was_known_stays() -> None:
    one = board(**FULL)
    one.lost("10.0.0.1:4800 does not answer")
    lines = shown(one, Wish())
    assert lines[0] == "not connected: 10.0.0.1:4800 does not answer; trying again"
    assert any("node-with-a-long" in line for line in lines)
    one.heard("other", increment())
    assert "7 chunks" in shown(one, Wish())[0]
    standby = increment()
    standby.status.switch_view.state = "standby"
    one.heard("other", standby)
    assert "on standby: another one leads" in shown(one, Wish())[1]


def test_the_way_of_casts_is_said_and_why() -> None:
    for fanout, why, line in (
        ("", "", "no kvcast switch: every fetch is unicast"),
        ("relay", "groups do not reach n3", "no kvcast switch: casts by relay: groups do not reach n3"),
        ("multicast", "", "no kvcast switch: casts by multicast"),
    ):
        one, news = Board(), increment()
        news.status.switch_view.CopyFrom(rpc.SwitchView(target="none", state="absent", fanout=fanout, fanout_why=why))
        one.heard("here", news)
        assert shown(one, Wish())[1] == line


def test_shares_fill_the_bar() -> None:
    sizes = {"local": 1, "disk": 0, "cold": 0, "switch": 1, "cast": 1, "holder": 0}
    assert sum(cells for _, cells in shares(sizes, 10)) == 10
    assert shares(dict.fromkeys(sizes, 0), 10) == []


# -- a terminal


class Terminal:
    """`kvcast top` on a terminal of the test's."""

    def __init__(self) -> None:
        self.keyboard, self.other_end = pty.openpty()
        fcntl.ioctl(self.other_end, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        self.before = termios.tcgetattr(self.other_end)
        self.said = ""
        self._changed = asyncio.Event()

    async def start(self, *words: str) -> None:
        self.process = await asyncio.create_subprocess_exec(
            sys.executable,
            *("-m", "kvcast.cli", "top", *words),
            stdin=self.other_end,
            stdout=self.other_end,
            stderr=self.other_end,
            env={**os.environ, "TERM": "xterm", "COLUMNS": str(COLUMNS), "LINES": str(ROWS)},
        )
        asyncio.get_running_loop().add_reader(self.keyboard, self._read)

    def _read(self) -> None:
        self.said += os.read(self.keyboard, 1 << 16).decode("utf-8", "replace")
        self._changed.set()

    def press(self, keys: str) -> None:
        os.write(self.keyboard, keys.encode())

    @property
    def screen(self) -> str:
        """The last look that is complete, or nearly so."""
        looks = self.said.split("\x1b[H")
        return CODES.sub("", max(looks[-2:], key=len))

    async def until(self, text: str) -> None:
        async with asyncio.timeout(DEADLINE_S):
            while text not in self.screen:
                self._changed.clear()
                await self._changed.wait()

    async def close(self) -> None:
        asyncio.get_running_loop().remove_reader(self.keyboard)
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        os.close(self.keyboard)
        os.close(self.other_end)


def test_it_goes_on_with_the_next_controller() -> None:
    async def scene() -> None:
        switch = MemorySwitch()
        standby = Controller(parse(QUICK, Path()), MemoryTarget(switch, election_id=5))
        await standby.start()
        terminal = Terminal()
        try:
            async with controller(switch) as leader:
                await eventually(standby.standby_words, "on standby")
                async with agents(leader.grpc_address, PREFIX, []) as (first, second):
                    await second.until(lambda: key("c") in second.entries, "the prefix")
                    event = rpc.FetchEvent(key=key("a"), source=rpc.SOURCE_HOLDER, bytes=100, waited_us=5000)
                    second.say(usage=rpc.Usage(fetches=[event]))
                    both = f"{standby.grpc_address},{leader.grpc_address}"
                    await terminal.start("--interval", "0.1", "--controller", both)
                    await terminal.until(key("a").hex()[:12])
                    await terminal.until("uuuuuuuuuu")
                    assert "n2" in terminal.screen
                    terminal.press("\t\t")
                    await terminal.until("node n2 is attached")
                    assert first.error is None
            await terminal.until("not connected: ")
            async with agents(standby.grpc_address, PREFIX, [], []):
                await terminal.until("node n3 is attached")
                assert "not connected" not in terminal.screen
                terminal.press("/n3\r")
                await terminal.until("filter: n3")
                assert max(map(len, terminal.screen.splitlines())) <= COLUMNS
                terminal.press("q")
                async with asyncio.timeout(DEADLINE_S):
                    assert await terminal.process.wait() == 0
            assert termios.tcgetattr(terminal.other_end) == terminal.before
        finally:
            await terminal.close()
            await standby.stop()

    run(scene())
