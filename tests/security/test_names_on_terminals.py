"""Names that an engine makes up, on the operator's terminal: they are shown, and do nothing there."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.message import Message

from controlplane.config import parse
from controlplane.daemon import Controller
from kvcast.terminal import Terminal
from kvcast.top.board import Board, View, Wish
from kvcast.top.screen import screen
from kvproto.printable import printable
from kvproto.rpc import control_pb2 as rpc
from tests.terminals import on_a_terminal
from tests.unit.controlplane.test_daemon import QUICK
from tests.unit.hostagent.agent_harness import Cluster, cluster, key

pytestmark = pytest.mark.security
NAMES = ("\x1b]0;owned\x07", "\x1b]52;c;b3duZWQ=\x07", "[/x]", "[bold]x[/bold]", "\u202egnp.exe", ":skull:", "a\nb\rc")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Of a controller; engines of its one agent have put a chunk under each name."""
    with cluster(0) as it:

        async def start() -> Controller:
            controller = Controller(parse(QUICK, Path()))
            await controller.start()
            return controller

        controller = it.do(start())
        try:
            it.add(controllers=[controller.grpc_address])
            for number, name in enumerate(NAMES):
                it.client(0).put(key(number), None, random.Random(number).randbytes(4096), namespace=name)
            it.until(lambda: all(it.agents[0].core.directory.find(key(n)) is not None for n in range(len(NAMES))))
            for number in range(len(NAMES)):
                with it.client(0).fetch([key(number)], deadline_s=10.0) as got:
                    assert got.count == 1
            yield controller.grpc_address
        finally:
            _end(it)
            it.do(controller.stop())


def _end(it: Cluster) -> None:
    for _, client in it.clients:
        client.close()
    it.clients.clear()
    for agent in it.agents:
        it.do(agent.stop())
    it.agents.clear()


@pytest.mark.parametrize("words", [["ls"], ["top", "--once"]])
def test_names_are_shown_and_do_nothing(address: str, words: list[str]) -> None:
    status, said = on_a_terminal([*words, "--controller", address])
    assert status == 0, said
    for character in ("\x1b]", "\x07", "\u202e"):
        assert character not in said
    if words == ["ls"]:
        for shown in (r"\x1b]0;owned\x07", "[/x]", "[bold]x[/bold]", r"\u202egnp.exe", ":skull:", r"a\nb\rc"):
            assert shown in said


def test_a_name_in_an_error_does_nothing(address: str) -> None:
    status, said = on_a_terminal(["ls", "--controller", "\x1b]0;owned\x07.example:1"])
    assert status == 2
    assert "\x1b]" not in said
    assert r"\x1b]0;owned" in said


def filled(message: Message, text: str, depth: int = 0) -> None:
    """Every string of a message, and of one of each of its parts."""
    for each in message.DESCRIPTOR.fields:
        value = getattr(message, each.name)
        if each.type == each.TYPE_STRING and not each.is_repeated:
            setattr(message, each.name, text)
        elif each.type == each.TYPE_STRING:
            value.append(text)
        elif each.type == each.TYPE_MESSAGE and depth < 4 and not each.message_type.GetOptions().map_entry:
            filled(value.add() if each.is_repeated else value, text, depth + 1)


@pytest.mark.parametrize("name", NAMES)
def test_top_shows_them_in_all_its_views(name: str) -> None:
    increment = rpc.LiveIncrement()
    filled(increment, name)
    del increment.gone[:]
    increment.snapshot = True
    board = Board()
    board.heard(name, increment)
    board.lost(name)
    out = Terminal()
    out.width = 250
    with out.capture() as captured:
        for view in View:
            out.print(screen(board, Wish(view), out.width, None, 10))
    said = captured.get()
    assert said.replace("\n", "").isprintable()
    assert printable(name) in said
