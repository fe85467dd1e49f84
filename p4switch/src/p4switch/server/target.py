"""What the server asks of the switch as a whole: compiling, swapping programs, packets to and from the CPU port."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

from p4switch.proto import p4info_pb2 as p4i
from p4switch.server.schema import ProgramIndex
from p4switch.server.target_pipeline import EntryHandle, Pipeline


class ConfigError(Exception):
    """A device configuration that cannot be realized; the message holds located diagnostics, one per line."""


class CompiledProgram(Protocol):
    """A program ready to be loaded."""

    @property
    def p4info(self) -> p4i.P4Info:
        """What the compiler says about the program."""
        ...

    @property
    def index(self) -> ProgramIndex:
        """Where the program keeps what P4Info names."""
        ...


@dataclass(frozen=True, slots=True)
class DigestEvent:
    """A packet made a digest: index of the digest and its scalars in order."""

    pipeline: Pipeline
    digest: int
    leaves: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class PacketInEvent:
    """A packet left through the CPU port."""

    frame: bytes


@dataclass(frozen=True, slots=True)
class IdleEvent:
    """An entry was not hit for its idle timeout."""

    pipeline: Pipeline
    table: int
    handle: EntryHandle


Event: TypeAlias = DigestEvent | PacketInEvent | IdleEvent


class Target(Protocol):
    """The switch: ports, a compiler, and at most one pipeline on the packets' path."""

    def compile(self, device_config: bytes, *, pushed: bool) -> CompiledProgram:
        """Compile a device configuration. Raises ConfigError. May take seconds; called without locks.

        `pushed`: it came over P4Runtime, not from whoever runs the switch, and may name few files of this machine.
        """
        ...

    def prepare(self, program: CompiledProgram) -> Pipeline:
        """A pipeline of the program in its initial state, not yet on the packets' path. Raises ConfigError."""
        ...

    def commit(self, pipeline: Pipeline) -> None:
        """Put a pipeline on the packets' path, between two packets."""
        ...

    def has_cpu_port(self) -> bool:
        """Whether packets can be sent to and from the controller."""
        ...

    def packet_out(self, frame: bytes) -> None:
        """Process a frame as if it had arrived on the CPU port."""
        ...

    def events(self, timeout_s: float) -> Sequence[Event]:
        """What happened since the last call; waits up to `timeout_s` for the first. Called by one thread."""
        ...

    def exists(self, port: int) -> bool:
        """Whether the switch has the port."""
        ...
