"""What the operator's commands share: finding the controller, asking it, and showing keys and sizes."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
from collections.abc import Iterator, Mapping

import grpc
from rich.console import Console

from kvcast.arguments import between
from kvcast.cli import UsageError
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc

ADDRESS_VARIABLE = "KVCAST_CONTROLLER"
ADDRESS_DEFAULT = "127.0.0.1:4800"
CONNECT_TIMEOUT_S = 5.0
KEY_DIGITS = 12
"""Of a key in a table: two of a million keys share them once in 500 pools."""


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options of every operator's command."""
    parser.add_argument(
        "--controller",
        metavar="HOST:PORT[,...]",
        default=os.environ.get(ADDRESS_VARIABLE, ADDRESS_DEFAULT),
        help=f"where the controller and those on standby listen (default: ${ADDRESS_VARIABLE}, else {ADDRESS_DEFAULT})",
    )
    parser.add_argument("--json", action="store_true", help="for programs: JSON on standard output")


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """How long a job of the controller may take."""
    parser.add_argument(
        "--timeout",
        type=between(0, 86_400),
        default=0.0,
        metavar="S",
        help="give up after so long (default 0: the controller decides)",
    )


@contextlib.contextmanager
def controller(addresses: str) -> Iterator[control_pb2_grpc.OperatorStub]:
    """The Operator service of the controller; of several the one that leads. What it refuses, and a controller that is
    not there, become UsageError."""
    with contextlib.ExitStack() as stack:
        stub = _leading(addresses.split(","), stack) if "," in addresses else _only(addresses, stack)
        try:
            yield stub
        except grpc.RpcError as error:
            if isinstance(error, grpc.Call):
                raise UsageError(error.details() or error.code().name) from error
            raise


def _only(address: str, stack: contextlib.ExitStack) -> control_pb2_grpc.OperatorStub:
    channel = stack.enter_context(grpc.insecure_channel(address))
    if not _answers(channel):
        raise UsageError(
            f"no controller answers at {address}: start kvcast-controller, or name another with --controller"
        )
    return control_pb2_grpc.OperatorStub(channel)


def _answers(channel: grpc.Channel) -> bool:
    """Whether somebody listens. Who is refused knows it at once; silence is waited for."""
    outcomes: queue.SimpleQueue[bool] = queue.SimpleQueue()

    def changed(state: grpc.ChannelConnectivity) -> None:
        if state in (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.TRANSIENT_FAILURE):
            outcomes.put(state is grpc.ChannelConnectivity.READY)

    channel.subscribe(changed, try_to_connect=True)
    try:
        return outcomes.get(timeout=CONNECT_TIMEOUT_S)
    except queue.Empty:
        return False
    finally:
        channel.unsubscribe(changed)


def _leading(addresses: list[str], stack: contextlib.ExitStack) -> control_pb2_grpc.OperatorStub:
    """Asks all for their status. Those on standby tell theirs and refuse all else."""
    stubs = [
        control_pb2_grpc.OperatorStub(stack.enter_context(grpc.insecure_channel(address))) for address in addresses
    ]
    asked = [stub.Status.future(rpc.StatusRequest(), timeout=CONNECT_TIMEOUT_S) for stub in stubs]
    words = []
    for address, stub, answer in zip(addresses, stubs, asked, strict=True):
        try:
            if answer.result().switch_view.state != "standby":
                return stub
            words.append(f"{address} is on standby")
        except grpc.RpcError:
            words.append(f"{address} does not answer")
    raise UsageError(f"no controller leads: {', '.join(words)}; start kvcast-controller, or correct --controller")


def console() -> Console:
    """Standard output; as wide as the terminal, or 100 columns where there is none."""
    one = Console(highlight=False)
    return one if one.is_terminal else Console(highlight=False, width=100)


def print_json(value: object) -> None:
    print(json.dumps(value, indent=2, sort_keys=True))


def key_text(key: bytes) -> str:
    return key.hex()[:KEY_DIGITS]


def holders_text(holders: list[str], disk_holders: list[str]) -> str:
    """At most three names, those with a copy on disk only behind the others."""
    names = holders + [f"{name}(disk)" for name in disk_holders if name not in holders]
    if not names:
        return "-"
    return " ".join(names[:3]) + (f" +{len(names) - 3}" if len(names) > 3 else "")


def chunk_object(chunk: rpc.ChunkView) -> Mapping[str, object]:
    """A chunk for --json."""
    return {
        "key": chunk.key.hex(),
        "parent": chunk.parent.hex() or None,
        "position": chunk.position,
        "size_bytes": chunk.size_bytes,
        "holders": list(chunk.holders),
        "disk_holders": list(chunk.disk_holders),
        "switch": chunk.switch_state,
        "pinned": chunk.pinned,
        "value": chunk.value,
        "fetches_per_s": chunk.fetches_per_s,
        "namespace": chunk.namespace,
        "children": chunk.children,
    }


def status_object(status: rpc.StatusReply) -> Mapping[str, object]:
    """The controller's state for --json."""
    switch = status.switch_view
    return {
        "nodes": [
            {
                "name": node.name,
                "state": node.state,
                "member": node.member if node.HasField("member") else None,
                "switch_port": node.switch_port if node.HasField("switch_port") else None,
                "pool_bytes": node.pool_bytes,
                "pool_used_bytes": node.pool_used_bytes,
                "disk_bytes": node.disk_bytes,
                "disk_used_bytes": node.disk_used_bytes,
                "chunks": node.chunks,
                "last_copies": node.last_copies,
                "sent_bytes": node.sent_bytes,
                "received_bytes": node.received_bytes,
                "version": node.version,
            }
            for node in status.nodes
        ],
        "switch": {
            "target": switch.target,
            "address": switch.address,
            "state": switch.state,
            "epoch": switch.epoch,
            "slots": switch.slots,
            "slots_used": switch.slots_used,
            "segment_bytes": switch.segment_bytes,
            "serving": switch.serving,
            "filling": switch.filling,
            "groups": switch.groups,
            "write_errors": switch.write_errors,
        },
        "chunks": status.chunks,
        "copies": status.copies,
        "chunk_bytes": status.chunk_bytes,
        "bytes_kept_off_uplinks": status.bytes_kept_off_uplinks,
        "management_messages": status.management_messages,
        "management_bytes": status.management_bytes,
        "uptime_ms": status.uptime_ms,
        "decisions": dict(status.decisions),
    }
