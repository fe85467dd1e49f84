"""An agent with several controllers follows the one that leads, over real gRPC."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Coroutine
from typing import Any

import grpc.aio
import pytest

from hostagent import limits
from hostagent.controller.leaders import DeposedLeaderError, LatestLeader, StreamSigns, Turns, Verdict
from hostagent.controller.link import ControllerLink
from kvproto.rpc import control_pb2 as pb
from kvproto.rpc import control_pb2_grpc as rpc
from tests.waiting import eventually

SILENCE_MS = 900
BEATS = 3
"""Within that time."""


class Controller(rpc.CoordinatorServicer):
    """Answers as the test says. Refuses streams while `standby`."""

    def __init__(self, epoch: int) -> None:
        self.epoch = epoch
        self.standby = False
        self.address = ""
        self.streams = 0
        self.heard: list[pb.FromAgent] = []
        self.outbox: asyncio.Queue[pb.ToAgent | None] = asyncio.Queue()
        """None: it wants another stream."""
        self.beats = True
        self.beats_count = 0
        self.unsure = False
        self.asked_count = 0

    async def Attach(self, requests: AsyncIterator[pb.FromAgent], context: Any) -> AsyncIterator[pb.ToAgent]:
        if self.standby:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "on standby")
        self.heard.append(await anext(requests))
        self.streams += 1
        yield pb.ToAgent(welcome=pb.Welcome(epoch=self.epoch, silence_ms=SILENCE_MS))
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SILENCE_MS / 1000 / BEATS):
                    message = await self.outbox.get()
                if message is None:
                    await context.abort(grpc.StatusCode.ABORTED, "attach again")
                else:
                    yield message
            if self.beats:
                self.beats_count += 1
                yield pb.ToAgent(leads=pb.Leads(epoch=self.epoch, unsure=self.unsure))

    async def Leader(self, request: pb.LeaderRequest, context: Any) -> pb.LeaderReply:
        self.asked_count += 1
        return pb.LeaderReply(epoch=0 if self.standby or self.unsure else self.epoch)


class User:
    """What the link passes on."""

    def __init__(self) -> None:
        self.messages: list[pb.ToAgent] = []
        self.ends = 0

    def hello(self) -> pb.FromAgent:
        return pb.FromAgent(hello=pb.Hello(node="n1"))

    def message_received(self, message: pb.ToAgent) -> None:
        self.messages.append(message)

    def stream_ended(self) -> None:
        self.ends += 1


@contextlib.asynccontextmanager
async def listening(*epochs: int) -> AsyncIterator[list[Controller]]:
    async with contextlib.AsyncExitStack() as stack:
        made = []
        for epoch in epochs:
            one, server = Controller(epoch), grpc.aio.server()
            rpc.add_CoordinatorServicer_to_server(one, server)
            one.address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            stack.push_async_callback(server.stop, None)
            made.append(one)
        yield made


@contextlib.asynccontextmanager
async def linked(first: Controller, *others: Controller) -> AsyncIterator[User]:
    """The link of an agent that has found the first one; then the others lead, too."""
    user = User()
    link = ControllerLink([one.address for one in (first, *others)], user)
    for one in others:
        one.standby = True
    link.start()
    try:
        await eventually(lambda: first.streams, "it attaches")
        for one in others:
            one.standby = False
        yield user
    finally:
        await link.close()


def run(steps: Coroutine[Any, Any, None]) -> None:
    asyncio.run(steps)


def test_a_controller_that_stands_still_is_left_for_another() -> None:
    async def steps() -> None:
        async with listening(5, 6) as (first, second), linked(first, second) as user:
            first.beats = False
            first.standby = True
            await eventually(lambda: second.streams, "it goes to the second")
            assert user.ends

    run(steps())


def test_signs_of_life_keep_a_stream_and_are_for_the_link_alone() -> None:
    async def steps() -> None:
        async with listening(5, 6) as (first, second), linked(first, second) as user:
            await eventually(lambda: first.beats_count > 3 * BEATS, "thrice the time that it may be silent")
            assert (first.streams, second.streams, user.ends) == (1, 0, 0)
            assert {one.WhichOneof("message") for one in user.messages} == {"welcome"}

    run(steps())


def test_a_leader_that_wants_another_stream_is_not_left_for_another_controller() -> None:
    async def steps() -> None:
        async with listening(5, 6) as (first, second), linked(first, second) as user:
            await first.outbox.put(None)
            await eventually(lambda: first.streams == 2, "it attaches again")
            assert (second.streams, user.ends) == (0, 1)

    run(steps())


def test_the_only_controller_is_waited_for() -> None:
    async def steps() -> None:
        async with listening(5, 6, 7) as (only, silent, other), linked(only) as user, linked(silent, other):
            only.beats = silent.beats = False
            await eventually(lambda: other.streams, "whoever has another one has left")
            assert (only.streams, user.ends) == (1, 0)

    run(steps())


def test_who_is_not_sure_that_it_leads_is_kept_until_another_one_is() -> None:
    async def steps() -> None:
        async with listening(5, 6) as (first, second), linked(first, second) as user:
            second.standby = True
            first.unsure = True
            await eventually(lambda: second.asked_count > 2, "the other one is asked whether it leads")
            assert user.ends == 0, "nobody else leads"
            second.standby = False
            await eventually(lambda: second.streams, "it goes to the second")
            assert user.ends

    run(steps())


def test_nothing_is_taken_of_a_leader_that_was_deposed() -> None:
    async def steps() -> None:
        async with listening(7, 5) as (later, earlier), linked(later, earlier) as user:
            later.standby, later.beats = True, False
            await eventually(lambda: earlier.streams > 1, "it has tried the earlier one twice")
            welcomes = [one.welcome.epoch for one in user.messages if one.HasField("welcome")]
            assert welcomes == [7], "its welcome did not get past the link"

    run(steps())


def test_a_task_of_a_deposed_leader_ends_its_stream() -> None:
    async def steps() -> None:
        async with listening(7, 9) as (first, second), linked(first, second) as user:
            await first.outbox.put(pb.ToAgent(task=pb.Task(task=1, epoch=6)))
            await eventually(lambda: second.streams, "it goes to the second")
            assert not any(one.HasField("task") for one in user.messages)
            await second.outbox.put(pb.ToAgent(task=pb.Task(task=2, epoch=9)))
            await eventually(lambda: any(one.HasField("task") for one in user.messages), "the task comes")

    run(steps())


def test_a_leader_from_before_epochs_is_taken() -> None:
    latest = LatestLeader()
    latest.heard(7, 0.0)
    latest.heard(0, 1.0)
    latest.heard(8, 2.0)
    with pytest.raises(DeposedLeaderError, match="its epoch is 7, that of a later leader 8"):
        latest.heard(7, 3.0)


def test_a_later_leader_is_forgotten_when_it_has_long_been_away() -> None:
    latest = LatestLeader()
    latest.heard(2**60, 0.0)
    with pytest.raises(DeposedLeaderError):
        latest.heard(7, limits.LEADER_REMEMBERED_S - 1)
    latest.heard(7, limits.LEADER_REMEMBERED_S + 1)
    latest.heard(7, limits.LEADER_REMEMBERED_S + 2)


def test_an_agent_that_stood_still_itself_blames_nobody() -> None:
    signs = StreamSigns()
    for _ in range(limits.CONTROLLER_LOOKS):
        assert signs.look() is Verdict.FINE
    signs.message_received()
    assert signs.look() is Verdict.FINE, "one look, however long it took to come"
    signs.leads(unsure=True)
    assert signs.look() is Verdict.UNSURE
    for _ in range(limits.CONTROLLER_LOOKS):
        verdict = signs.look()
    assert verdict is Verdict.SILENT


def test_no_pause_is_long_while_an_election_may_last() -> None:
    """A standby leads up to four seconds after a leader died; the agents have five in all."""
    turns, at_s = Turns(["a", "b"]), 0.0
    while at_s < 4.2:
        pause_s = turns.ended(welcomed=False)
        assert pause_s < 0.5, f"after {at_s:.1f} s"
        at_s += pause_s


def test_controllers_are_asked_in_turns_with_longer_and_longer_pauses() -> None:
    turns = Turns(["a", "b"])
    asked, pauses_s = [], []
    for _ in range(5):
        asked.append(turns.next())
        pauses_s.append(turns.ended(welcomed=False))
    assert asked == ["a", "b", "a", "b", "a"]
    short_s, *rounds_s = limits.CONTROLLER_BACKOFF_S
    assert pauses_s == [short_s, rounds_s[0], short_s, rounds_s[1], short_s]
    assert not turns.is_first_round
    assert not turns.round_failed
    turns.ended(welcomed=False)
    assert turns.round_failed
    turns.ask(["c", "d", "e"])
    assert turns.next() == "c"
    assert turns.ended(welcomed=True) == short_s
    assert turns.is_first_round
    turns.found = "a"
    assert [turns.next(), turns.next()] == ["a", "d"], "who leads is asked next, and then whose turn it is"
