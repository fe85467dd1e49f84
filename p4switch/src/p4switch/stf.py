"""Runs a test case in STF, p4c's format of packets in and packets expected, in this process and without a network.

Exit status of a case: 0 all expectations hold, 1 one fails, 2 the program (or the case) uses something unsupported.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from p4switch.compiler import BuildError, CompileError, compile_program
from p4switch.ir.program import MatchKind, Table, TableKey
from p4switch.ir.program import Program as IrProgram
from p4switch.ir.types import width_of
from p4switch.recirculation import PORT_DEFAULT, QUEUE_BYTES_DEFAULT
from p4switch.runtime import Match, Pipeline, Program, Status, Switch, SwitchConfig
from p4switch.values import ActionCall, MeterConfig, Replica

PASSED, FAILED, UNSUPPORTED = 0, 1, 2
STEPS_MAX = 1000
"""Turns of the packet loop after one packet; a program that recirculates for ever ends here."""
PACKET_GAP_US = 1000

_NUMBER = re.compile(r"0[xX][0-9a-fA-F*]+|0[bB][01*]+|0[oO][0-7*]+|\d+")
_RATE = re.compile(r"([\d.]+):(\d+)")


class StfError(Exception):
    """The case cannot be carried out; one line."""


@dataclass(slots=True)
class Expectation:
    """A packet expected on a port; `pattern` in hexadecimal digits and `*`, None for any packets at all."""

    line: int
    pattern: str | None
    whole: bool = False


@dataclass(slots=True)
class Report:
    """What a case came to."""

    failures: list[str] = field(default_factory=list)


class StfRunner:
    """Carries out the commands of one case on a switch with memory ports."""

    def __init__(self, ir: IrProgram, program: Program) -> None:
        self.ir = ir
        config = SwitchConfig(
            virtual_clock=True, recirculation_ports=(PORT_DEFAULT,), recirculation_queue_bytes=QUEUE_BYTES_DEFAULT
        )
        self.switch = Switch(config)
        self.pipeline: Pipeline = self.switch.prepare(program)
        self.switch.commit(self.pipeline)
        self.ports: set[int] = set()
        self.received: dict[int, list[bytes]] = {}
        self.expected: dict[int, list[Expectation]] = {}
        self.groups: dict[int, list[int]] = {}
        self.nodes: list[tuple[int, list[int]]] = []

    def close(self) -> None:
        """End the switch."""
        self.switch.close()

    def run(self, text: str) -> Report:
        """Carry out all commands, then compare."""
        lines = [line.split("#", 1)[0].strip() for line in text.splitlines()]
        for line in lines:
            words = line.split()
            if len(words) > 1 and words[0].lower() in ("packet", "expect", "no_packet"):
                self.ports.add(int(words[1]))
        for port in self.ports:
            self.switch.add_memory(port)
        for number, line in enumerate(lines, 1):
            if line:
                try:
                    self.command(number, line)
                except (StfError, ValueError) as problem:
                    raise StfError(f"line {number}: {problem}") from problem
        return self.compare()

    # ---------------------------------------------------------------- commands

    def command(self, number: int, line: str) -> None:
        """One line of the case."""
        word, _, rest = line.partition(" ")
        rest = rest.strip()
        word = word.lower()
        if word == "packet":
            self._packet(rest)
        elif word == "expect":
            self._expect(number, rest)
        elif word == "add":
            self._add(rest)
        elif word == "setdefault":
            self._set_default(rest)
        elif word in ("wait", "no_packet", "mirroring_get", "counter_read", "register_read", "meter_get_rates"):
            return
        elif word.startswith("mc_"):
            self._multicast(word, rest.split())
        elif word.startswith("mirroring_"):
            self._mirroring(word, rest.split())
        elif word.startswith("register_"):
            self._register(word, rest.split())
        elif word.startswith("meter_"):
            self._meter(word, rest)
        else:
            raise StfError(f"command {word} is not known")

    def _packet(self, rest: str) -> None:
        port, _, digits = rest.partition(" ")
        self.switch.inject(int(port), bytes.fromhex("".join(digits.split())))
        for _ in range(STEPS_MAX):
            if self.switch.step() == 0:
                break
        self.switch.advance(PACKET_GAP_US)
        for out, frame in self.switch.collect():
            self.received.setdefault(out, []).append(frame)

    def _expect(self, number: int, rest: str) -> None:
        port, _, digits = rest.partition(" ")
        pattern = "".join(digits.split()).upper()
        entry = Expectation(number, pattern.removesuffix("$") or None, pattern.endswith("$"))
        self.expected.setdefault(int(port), []).append(entry)

    # ---------------------------------------------------------------- tables

    def _table(self, name: str) -> Table:
        return _by_suffix(self.ir.tables, name, "table")

    def _add(self, rest: str) -> None:
        head, call = _split_call(rest)
        words = head.split()
        table = self._table(words[0])
        priority = 0
        if len(words) > 1 and words[1].isdigit():
            priority = int(words.pop(1))
        given = dict(_key_and_value(w) for w in words[1:])
        keys: list[Match] = []
        for key in table.keys:
            text = next((given.pop(n) for n in list(given) if _names(key.name, n)), None)
            keys.append(_match(key, text))
        if given:
            raise StfError(f"table {table.name} has no key {next(iter(given))}")
        batch = self.pipeline.batch()
        batch.insert(table.index, keys, self._call(table, call), priority + 1)
        result = batch.commit()[0]
        if result.status is not Status.OK:
            raise StfError(f"table {table.name} refuses the entry: {result.status.name.lower()}")

    def _set_default(self, rest: str) -> None:
        head, call = _split_call(rest)
        table = self._table(head.strip())
        batch = self.pipeline.batch()
        batch.set_default(table.index, self._call(table, call))
        batch.commit()

    def _call(self, table: Table, text: str) -> ActionCall:
        match = re.fullmatch(r"\s*([\w.$]+)\s*\((.*)\)\s*(?:=\s*\S+)?\s*", text)
        if match is None:
            raise StfError(f"cannot read the action '{text}'")
        listed = [self.ir.actions[a.action] for a in table.actions]
        action = _by_suffix(listed, match.group(1), "action")
        arguments: dict[str, str] = {}
        for part in match.group(2).split(","):
            if part.strip():
                name, _, value = part.partition(":")
                arguments[name.strip()] = value.strip()
        values: list[int] = []
        for p in action.parameters:
            value = arguments.get(p.name)
            if value is None:
                raise StfError(f"action {action.name} needs {p.name}")
            values.append(int(value, 0) & ((1 << width_of(p.type)) - 1))
        return ActionCall(action.index, tuple(values))

    # ---------------------------------------------------------------- replication

    def _multicast(self, word: str, words: list[str]) -> None:
        numbers = [int(w) for w in words]
        if word == "mc_mgrp_create":
            self.groups[numbers[0]] = []
        elif word == "mc_node_create":
            self.nodes.append((numbers[0], numbers[1:]))
            return
        elif word == "mc_node_associate":
            self.groups[numbers[0]].append(numbers[1])
        else:
            raise StfError(f"command {word} is not known")
        self._write_group(numbers[0])

    def _replicas(self, group: int) -> list[Replica]:
        return [
            Replica(port, rid) for node in self.groups[group] for rid, ports in [self.nodes[node]] for port in ports
        ]

    def _write_group(self, group: int) -> None:
        batch = self.pipeline.batch()
        batch.set_multicast_group(group, self._replicas(group))
        batch.commit()

    def _mirroring(self, word: str, words: list[str]) -> None:
        session = int(words[0])
        batch = self.pipeline.batch()
        if word == "mirroring_add":
            batch.set_clone_session(session, [Replica(int(words[1]))])
        elif word == "mirroring_add_mc":
            batch.set_clone_session(session, self._replicas(int(words[1])))
        else:
            batch.delete_clone_session(session)
        batch.commit()

    # ---------------------------------------------------------------- registers and meters

    def _register(self, word: str, words: list[str]) -> None:
        register = _by_suffix(self.ir.registers, words[0], "register")
        batch = self.pipeline.batch()
        if word == "register_write":
            batch.set_registers(register.index, int(words[1]), [int(words[2], 0)])
        else:
            batch.fill_register(register.index, 0)
        batch.commit()

    def _meter(self, word: str, rest: str) -> None:
        name, _, tail = rest.partition(" ")
        meter = _by_suffix(self.ir.meters, name, "meter")
        rates = [(float(r), int(b)) for r, b in _RATE.findall(tail)]
        if len(rates) != 2:
            raise StfError("a meter takes two rates")
        (cir, cburst), (pir, pburst) = rates
        config = MeterConfig(int(cir * 1_000_000), cburst, int(pir * 1_000_000), pburst)
        batch = self.pipeline.batch()
        if meter.direct:
            batch.set_entry_meter(meter.table if meter.table is not None else 0, None, config)
        else:
            position = len([m for m in self.ir.meters[: meter.index] if not m.direct])
            if word == "meter_array_set_rates":
                batch.set_meters(position, 0, [config] * meter.size)
            else:
                batch.set_meters(position, int(tail.split()[0]), [config])
        batch.commit()

    # ---------------------------------------------------------------- comparison

    def compare(self) -> Report:
        """Every port against its expectations, in order."""
        report = Report()
        for port in sorted(set(self.expected) | set(self.received)):
            wanted = self.expected.get(port, [])
            frames = self.received.get(port, [])
            if any(e.pattern is None for e in wanted):
                continue
            for i, e in enumerate(wanted):
                if i >= len(frames):
                    report.failures.append(
                        f"line {e.line}: port {port} sent {len(frames)} packets, {len(wanted)} expected"
                    )
                    break
                problem = _difference(e, frames[i])
                if problem:
                    report.failures.append(f"line {e.line}: port {port}: {problem}")
            if len(frames) > len(wanted):
                shown = frames[len(wanted)].hex().upper()
                report.failures.append(
                    f"port {port} sent {len(frames)} packets, {len(wanted)} expected; first not expected: {shown}"
                )
        return report


def _difference(e: Expectation, frame: bytes) -> str:
    assert e.pattern is not None
    digits = frame.hex().upper()
    short = len(digits) < len(e.pattern)
    different = any(w not in ("*", d) for w, d in zip(e.pattern, digits, strict=False))
    if short or different or (e.whole and len(digits) != len(e.pattern)):
        return f"expected {e.pattern}{'$' if e.whole else ''}, got {digits}"
    return ""


class _Named(Protocol):
    @property
    def name(self) -> str: ...


_N = TypeVar("_N", bound=_Named)


def _by_suffix(objects: Sequence[_N], name: str, what: str) -> _N:
    """The object of that name, or the only one whose name ends in it."""
    exact = [o for o in objects if o.name == name]
    ending = [o for o in objects if o.name.endswith(name)]
    found = exact or ending
    if len(found) != 1:
        raise StfError(f"{what} {name} is {'ambiguous' if found else 'not known'}")
    return found[0]


def _split_call(rest: str) -> tuple[str, str]:
    """Everything before the action's name, and the action with its arguments."""
    match = re.search(r"([\w.$]+)\s*\(", rest)
    if match is None:
        raise StfError("an action call is missing")
    return rest[: match.start()], rest[match.start() :]


def _key_and_value(word: str) -> tuple[str, str]:
    name, _, value = word.partition(":")
    if not value:
        raise StfError(f"cannot read the key '{word}'")
    return name, value


def _names(key: str, given: str) -> bool:
    """Whether a case's name of a key field means this one."""
    given = re.sub(r"\$(\d+)", r"[\1]", given).strip('"')
    if given in (key, key + "$") or key == given + ".$valid$":
        return True
    if given.endswith(".valid") and key == given.removesuffix("valid") + "$valid$":
        return True
    return key.endswith("." + given) or (given == "valid" and key.endswith("$valid$"))


def _match(key: TableKey, text: str | None) -> Match:
    bits = width_of(key.type)
    ones = (1 << bits) - 1
    if text is None:
        return {MatchKind.RANGE: (0, ones)}.get(key.match, (0, 0))
    if key.match is MatchKind.RANGE:
        low, high = text.split("->") if "->" in text else text.split("..") if ".." in text else (text, text)
        return int(low, 0), int(high, 0)
    if key.match is MatchKind.LPM:
        if "/" in text:
            address, prefix = text.split("/")
            return int(address, 0) & ones, int(prefix)
        value, mask = _wildcards(text, bits)
        return value, bin(mask).count("1")
    if "&&&" in text:
        left, right = text.split("&&&")
        return int(left, 0) & int(right, 0) & ones, int(right, 0) & ones
    value, mask = _wildcards(text, bits)
    if key.match is MatchKind.TERNARY:
        return value, mask
    return (value, 1) if key.match is MatchKind.OPTIONAL else (value, 0)


def _wildcards(text: str, bits: int) -> tuple[int, int]:
    """Value and mask of a number in which `*` stands for any digit."""
    ones = (1 << bits) - 1
    if "*" not in text:
        return int(text, 0) & ones, ones
    prefix, digits = text[:2].lower(), text[2:]
    base, full = {"0x": (16, "f"), "0b": (2, "1"), "0o": (8, "7")}[prefix]
    value = int(digits.replace("*", "0"), base)
    mask = int("".join("0" if d == "*" else full for d in digits), base)
    return value & ones, mask & ones


def run_stf(
    program: Path, case: Path, defines: Mapping[str, str] | None = None, include_dirs: Sequence[Path] = ()
) -> int:
    """Compile a program, run a case, say on stderr what failed; gives the exit status."""
    try:
        compiled = compile_program(program, defines, include_dirs)
    except CompileError as problem:
        print(problem, file=sys.stderr)
        return UNSUPPORTED if problem.unsupported else FAILED
    except BuildError as problem:
        print(problem, file=sys.stderr)
        return FAILED
    runner = StfRunner(compiled.ir, Program.load(compiled.shared_object_path))
    try:
        report = runner.run(case.read_text())
    except StfError as problem:
        print(f"{case}: {problem}", file=sys.stderr)
        return UNSUPPORTED
    finally:
        runner.close()
    for failure in report.failures:
        print(f"{case}: {failure}", file=sys.stderr)
    return FAILED if report.failures else PASSED
