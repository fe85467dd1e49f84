"""bmv2's options, translated into p4switch's. Pure.

Source: `simple_switch_grpc --help` (bmv2's options parser and simple_switch's target options).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NoReturn

from p4switch.errors import SwitchError

LEVELS: Final = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warn": "warning",
    "warning": "warning",
    "error": "error",
    "off": "off",
}
TRACED: Final = ("trace", "debug")
"""Levels at which bmv2 writes what happens to each packet; it does so without -L."""

THRIFT_PORT: Final = 9090
GRPC_ADDRESS: Final = "127.0.0.1:9559"
DEVICE_ID: Final = 0

_SAME: Final = {
    "-i": "-i",
    "--interface": "-i",
    "--device-id": "--device-id",
    "--cpu-port": "--cpu-port",
    "--port-option": "--port-option",
    "--http": "--http",
    "--admin": "--admin",
    "--ready-file": "--ready-file",
    "--priority-queues": "--priority-queues",
    "--grpc-server-cert": "--tls-cert",
    "--grpc-server-key": "--tls-key",
    "--grpc-server-cacert": "--tls-ca",
}
"""Options with a value that p4switch has, some by another name."""

_MEANINGLESS: Final = {
    "--nanolog": "nobody is told of packets by nanomsg",
    "--notifications-addr": "nobody is told of packets by nanomsg",
    "--dump-packet-data": "the trace names headers; --pcap records whole packets",
    "--drop-port": "511 drops",
    "--max-port-count": "ports are numbered 0 to 510",
    "--persistent": "state begins empty",
    "--restore-state": "state begins empty",
    "--state-file": "state begins empty",
}
"""Options with a value and no meaning here, and why."""

_MEANINGLESS_FLAGS: Final = {
    "--debugger": "there is no debugger; --log-console traces packets",
    "--enable-swap": "P4Runtime replaces programs",
    "--disable-swap": "P4Runtime replaces programs",
}

_ALWAYS: Final = ("--log-flush", "--grpc-server-ssl", "--grpc-server-with-client-auth", "--no-grpc-server-ssl")
"""Flags that ask for what is so anyway: lines are written at once, a certificate brings TLS, a CA asks for theirs."""

_REFUSED: Final = {
    "--load-modules": "externs come with the program; modules of bmv2 cannot be loaded",
    "--dp-grpc-server-addr": "packets come by interfaces or sockets (see p4switch --help, ports)",
    "--packet-in": "packets come by interfaces or sockets (see p4switch --help, ports)",
    "--use-files": "p4switch PROGRAM.p4 --stf CASE.stf runs packets without interfaces",
}


@dataclass(frozen=True, slots=True)
class Translation:
    """`arguments`: for p4switch. `log_file`: where all output goes instead. `notes`: lines for the person."""

    arguments: tuple[str, ...]
    log_file: str | None = None
    notes: tuple[str, ...] = ()


class _Translator:
    def __init__(self, name: str, arguments: Sequence[str]) -> None:
        self.name = name
        self.words = _words(arguments)
        self.at = 0
        self.passed: list[str] = []
        self.notes: dict[str, str] = {}
        self.program: str | None = None
        self.values: dict[str, str] = {}
        self.flags: set[str] = set()

    def fail(self, message: str) -> NoReturn:
        raise SwitchError(f"{self.name}: {message}")

    def value(self, option: str) -> str:
        if self.at == len(self.words):
            self.fail(f"{option} needs a value")
        self.at += 1
        return self.words[self.at - 1]

    def run(self) -> None:
        while self.at < len(self.words):
            word = self.words[self.at]
            self.at += 1
            if word.startswith("-") and word != "-":
                self.option(word)
            elif word.partition("@")[0].isdecimal() and "@" in word:
                self.passed += ["-i", word]  # one -i may have several
            elif self.program is None:
                self.program = word
            else:
                self.fail(f"one program, not {self.program} and {word}")

    def option(self, word: str) -> None:
        if word in _SAME:
            self.passed += [_SAME[word], self.value(word)]
        elif word in ("-L", "--log-level", "--log-file", "--thrift-port", "--grpc-server-addr"):
            self.values["-L" if word == "--log-level" else word] = self.value(word)
        elif word == "--pcap":
            follows = self.at < len(self.words) and not self.words[self.at].startswith("-")
            self.passed += ["--pcap", self.value(word) if follows else ".", "--pcap-by-interface"]
        elif word in ("--no-p4", "--insecure", "--stats"):
            self.passed.append(word)
        elif word == "--log-console":
            self.flags.add(word)
        elif word in _MEANINGLESS:
            self.value(word)
            self.notes[word] = _MEANINGLESS[word]
        elif word in _MEANINGLESS_FLAGS:
            self.notes[word] = _MEANINGLESS_FLAGS[word]
        elif word in _REFUSED:
            self.fail(f"{word}: {_REFUSED[word]}")
        elif word not in _ALWAYS:
            self.fail(f"{word}: neither bmv2's option nor one of p4switch's (see p4switch --help)")

    def log_level(self) -> list[str]:
        given = self.values.get("-L")
        if given is not None and given not in LEVELS:
            self.fail(f"-L {given}: one of {', '.join(LEVELS)}")
        logs = "--log-console" in self.flags or "--log-file" in self.values
        traced = logs and (given is None or given in TRACED)
        return (["-L", LEVELS[given]] if given is not None else []) + (["--trace"] if traced else [])


def _words(arguments: Sequence[str]) -> list[str]:
    """Options and values apart: `--pcap=x` and `-Ltrace` are two words; `--` says nothing here."""
    words: list[str] = []
    for one in arguments:
        if one.startswith("--") and "=" in one:
            words += one.split("=", 1)
        elif one[:2] in ("-L", "-i") and len(one) > 2:
            words += [one[:2], one[2:]]
        elif one != "--":
            words.append(one)
    return words


def translate(name: str, arguments: Sequence[str], *, grpc: bool) -> Translation:
    """What `simple_switch_grpc` (without `grpc`: `simple_switch`) means by its arguments. Raises SwitchError."""
    it = _Translator(name, arguments)
    it.run()
    thrift = it.values.get("--thrift-port", None if grpc else str(THRIFT_PORT))
    if thrift is not None and not (thrift.isdecimal() and 0 < int(thrift) < 1 << 16):
        it.fail(f"--thrift-port {thrift}: from 1 to {(1 << 16) - 1}")
    passed = it.passed + it.log_level()
    if "--device-id" not in passed:
        passed += ["--device-id", str(DEVICE_ID)]
    if thrift is not None:
        it.notes["--thrift-port"] = "P4Runtime is served there, no Thrift: use p4switch's simple_switch_CLI"
    if grpc:
        passed += ["--grpc", it.values.get("--grpc-server-addr", GRPC_ADDRESS)]
        passed += [] if thrift is None else ["--also-grpc", f"127.0.0.1:{thrift}"]
    else:
        passed += ["--grpc", f"127.0.0.1:{thrift}"]
    if it.program is not None:
        passed.append(it.program)
    notes = tuple(
        f"{name}: {option} has no effect: {why}" if option != "--thrift-port" else f"{name}: {option}: {why}"
        for option, why in it.notes.items()
    )
    return Translation(tuple(passed), it.values.get("--log-file"), notes)
