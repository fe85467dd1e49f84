"""controller.yaml and agent.yaml from a few answers. Pure: answers in, text out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kvproto.units import format_bytes
from kvproto.wire.data import FILL_OVERHEAD_BYTES

SEGMENT_BYTES: Final = (4096, 2048, 1024, 512, 256)
"""Of a segment, the best first; the switch program is built for one of them."""
POOL_STEP_BYTES: Final = 64 << 20


@dataclass(frozen=True, slots=True)
class Answers:
    """What the files need to know."""

    node: str
    interface: str
    controllers: tuple[str, ...]
    """HOST:PORT where agents find each controller."""
    listen: str
    """Where this machine's controller listens."""
    switch: str | None
    """HOST:PORT of the switch's P4Runtime; None: a network without a kvcast switch."""
    ports: Mapping[str, int]
    """Switch port where each node has to be; of nodes that are not named it is learned."""
    pool_bytes: int
    segment_bytes: int | None
    """What the data interface carries; None: the data interface is another machine's."""
    tls: str | None = None
    """The folder of `kvcast pki`; None: the files say `insecure: true`."""


def segment_for(mtu_bytes: int) -> int:
    """The largest segment that travels in one frame. Raises ValueError where none does."""
    for segment_bytes in SEGMENT_BYTES:
        if segment_bytes + FILL_OVERHEAD_BYTES <= mtu_bytes:
            return segment_bytes
    raise ValueError(f"an MTU of {mtu_bytes} is too small: {SEGMENT_BYTES[-1] + FILL_OVERHEAD_BYTES} at least")


def pool_for(memory_bytes: int) -> int:
    """Half of the memory that is left, in whole steps; at least one step."""
    return max(1, memory_bytes // 2 // POOL_STEP_BYTES) * POOL_STEP_BYTES


def controller_yaml(answers: Answers) -> str:
    """controller.yaml."""
    lines = [
        "# Made by `kvcast init`. Keys: docs/reference/controller.md. Check: kvcast-controller --config FILE --check",
        f"listen: {answers.listen}",
        "metrics: 127.0.0.1:9470",
        _tls(answers, "controller"),
    ]
    if answers.switch is None:
        lines += ["switch: {target: none}       # no kvcast switch: a pool of hosts, read by unicast"]
    else:
        lines += ["switch:", "  target: p4switch           # p4switch, bmv2 or tofino", f"  address: {answers.switch}"]
    if answers.ports:
        lines.append("nodes:                       # the switch port where each node has to be")
        lines += [f"  {name}: {{port: {port}}}" for name, port in answers.ports.items()]
    if answers.segment_bytes is not None:
        lines += [f"fabric: {{segment_bytes: {answers.segment_bytes}}}"]
    return "\n".join(lines) + "\n"


def _tls(answers: Answers, name: str) -> str:
    if answers.tls is None:
        return "insecure: true               # no TLS: every process that reaches it can do everything (kvcast pki)"
    folder = answers.tls
    return f"tls: {{cert: '{folder}/{name}.pem', key: '{folder}/{name}.key', ca: '{folder}/ca.pem'}}"


def _addresses(controllers: tuple[str, ...]) -> str:
    quoted = [f"'{one}'" for one in controllers]
    return quoted[0] if len(quoted) == 1 else f"[{', '.join(quoted)}]"


def agent_yaml(answers: Answers) -> str:
    """agent.yaml of one node."""
    lines = [
        "# Made by `kvcast init`. Keys: docs/reference/agent.md. Check: kvcast-agent --config FILE --check",
        f"node: {answers.node}",
        "data:",
        f"  interface: {answers.interface}          # towards the switch",
        f"  segment_bytes: {answers.segment_bytes or SEGMENT_BYTES[0]}",
        f"controller: {{address: {_addresses(answers.controllers)}}}",
        _tls(answers, f"agent-{answers.node}"),
        f"pool: {{size: {answers.pool_bytes}}}          # {format_bytes(answers.pool_bytes)}",
        "api: {socket: /run/kvcast/agent.sock}",
    ]
    return "\n".join(lines) + "\n"
