"""What the operator's commands share: finding the controller, asking it with the operator's certificate or without TLS,
and showing keys and sizes.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import grpc
from google.protobuf.message import Message
from rich.console import RenderableType
from rich.segment import Segment, Segments

from controlplane.core.locations import ip_text
from kvcast.arguments import between
from kvcast.errors import UsageError
from kvcast.terminal import Terminal
from kvchunk.ids import ChunkKey
from kvcodec.forms import Form
from kvdaemon.errors import CannotRunError, ConfigError
from kvdaemon.tls_settings import TlsSettings, take_tls
from kvdaemon.what_answers import in_words, what_answers
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc
from kvproto.twins import twin_code

NAMES: Final = ("cert", "key", "ca")
"""Of the files; a variable is KVCAST_TLS_ and the name, an option --tls- and the name."""
_HELP: Final = {
    "cert": "the operator's certificate (PEM), for a controller with TLS",
    "key": "its key",
    "ca": "the authority that signed the controller's",
}


def add_tls(parser: argparse.ArgumentParser) -> None:
    """Options for the three files."""
    for name in NAMES:
        parser.add_argument(
            f"--tls-{name}",
            type=Path,
            metavar="FILE",
            help=f"{_HELP[name]} (default: $KVCAST_TLS_{name.upper()}, else `tls` in ~/.config/kvcast/config.yaml)",
        )


def tls_given(args: argparse.Namespace, path: Path) -> TlsSettings | None:
    """The files that the options, the environment or the user's file at `path` name, in this order; None: no TLS.

    Raises UsageError.
    """
    options = {name: getattr(args, f"tls_{name}", None) for name in NAMES}
    if any(options.values()):
        return _three(options, "--tls-cert, --tls-key and --tls-ca go together")
    variables = {name: Path(text) for name in NAMES if (text := os.environ.get(f"KVCAST_TLS_{name.upper()}"))}
    if variables:
        return _three(variables, "KVCAST_TLS_CERT, KVCAST_TLS_KEY and KVCAST_TLS_CA go together")
    return from_file(path)[1]


def from_file(path: Path) -> tuple[str, TlsSettings | None]:
    """What the user's own file says: the controller's address (empty: nothing), and the certificates. Raises
    UsageError."""
    from kvdaemon import checks, settings  # and YAML: only where no option or variable says it

    if not path.exists():
        return "", None

    def parse(values: object) -> tuple[str, TlsSettings | None]:
        section = settings.Section(values)
        found = section.take("controller", checks.text, ""), take_tls(section.section("tls"), path.parent)
        section.done()
        return found

    try:
        return settings.load(path, parse)
    except ConfigError as error:
        raise UsageError(str(error)) from error


class Channels:
    """Makes channels to the controller. `tls` None: plain ones."""

    def __init__(self, tls: TlsSettings | None) -> None:
        """Raises UsageError when the files are no good."""
        self._certificates = None
        if tls is None:
            return
        from kvdaemon.identity import Role  # and cryptography: only where there is TLS
        from kvdaemon.tls import Certificates

        try:
            self._certificates = Certificates(tls, Role.OPERATOR)
        except CannotRunError as error:
            raise UsageError(str(error)) from error

    def channel(self, address: str) -> grpc.Channel:
        """To HOST:PORT."""
        if self._certificates is None:
            return grpc.insecure_channel(address)
        credentials, options = self._certificates.for_channel()
        return grpc.secure_channel(address, credentials, options)

    def why_not(self, address: str) -> str:
        """What is wrong with TLS to HOST:PORT; empty: nothing, or there is none."""
        return "" if self._certificates is None else self._certificates.why_not(address)


def _three(files: Mapping[str, Path | None], words: str) -> TlsSettings:
    cert, key, ca = (files.get(name) for name in NAMES)
    if cert is None or key is None or ca is None:
        raise UsageError(f"{words} (kvcast pki makes all three)")
    return TlsSettings(cert, key, ca)


ADDRESS_VARIABLE = "KVCAST_CONTROLLER"
ADDRESS_DEFAULT = "127.0.0.1:4800"
CONNECT_TIMEOUT_S = 5.0
_TLS_REMEDY = "name the operator's certificate with --tls-cert, --tls-key and --tls-ca"
KEY_DIGITS = 12
"""Of a key in a table: two of a million keys share them once in 500 pools."""
_PIPED = 100
"""Columns, where there is no terminal."""
_WIDEST = 10_000
"""Columns, of a table that is not fitted to a terminal."""
_TWIN_FORMS = {Form.PLANES: "lossless", Form.LOSSY: "lossy"}


class UnreachableError(UsageError):
    """There is no controller where it was looked for."""


@dataclass(frozen=True, slots=True)
class Location:
    """Where the controller is looked for, and who said so."""

    addresses: str
    """HOST:PORT, several with commas."""
    said_by: str

    @property
    def shown(self) -> str:
        """For a message."""
        return f"{self.addresses} ({self.said_by})"

    def each(self) -> list[str]:
        """HOST:PORT of every controller. A name may stand for several, of which one leads."""
        found = [_behind(address) or [address] for address in self.addresses.split(",")]
        return list(dict.fromkeys(address for several in found for address in several))


def _behind(address: str) -> list[str]:
    """The addresses of a name that has several; else none."""
    host, _, port = address.rpartition(":")
    try:
        answers = socket.getaddrinfo(host.strip("[]"), None, socket.AF_INET, socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return [f"{where[0]}:{port}" for *_, where in answers] if len(answers) > 1 else []


def find_controller(given: str | None) -> Location:
    """The first of --controller, the environment, the user's file and loopback that names one. Raises UsageError."""
    if given:
        return Location(given, "--controller")
    if address := os.environ.get(ADDRESS_VARIABLE):
        return Location(address, f"${ADDRESS_VARIABLE}")
    path = config_path()
    if address := from_file(path)[0]:
        return Location(address, str(path))
    return Location(ADDRESS_DEFAULT, f"the default: no --controller, ${ADDRESS_VARIABLE} or {path}")


def config_path() -> Path:
    """The user's own settings of this command line."""
    base = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(base).expanduser() / "kvcast" / "config.yaml"


def add_common(parser: argparse.ArgumentParser) -> None:
    """Options of every operator's command."""
    parser.add_argument(
        "--controller",
        metavar="HOST:PORT[,...]",
        help="where the controller and those on standby listen"
        f" (default: ${ADDRESS_VARIABLE}, else `controller` in ~/.config/kvcast/config.yaml, else {ADDRESS_DEFAULT})",
    )
    add_tls(parser)
    parser.add_argument("--json", action="store_true", help="for programs: JSON on standard output")


def add_timeout(parser: argparse.ArgumentParser) -> None:
    """How long a job of the controller may take."""
    parser.add_argument(
        "--timeout",
        type=between(0, 86_400),
        default=0.0,
        metavar="S",
        help="give up after this time (default 0: the controller decides)",
    )


def channels_given(args: argparse.Namespace) -> Channels:
    """With the certificates that the options of `add_common`, the environment or the user's file name. Raises
    UsageError."""
    return Channels(tls_given(args, config_path()))


@contextlib.contextmanager
def controller(args: argparse.Namespace) -> Iterator[control_pb2_grpc.OperatorStub]:
    """The Operator service of the controller that the options of `add_common` name; of several the one that leads. What
    it refuses, and a controller that is not there, become UsageError."""
    location = find_controller(args.controller)
    channels = channels_given(args)
    with contextlib.ExitStack() as stack:
        addresses = location.each()
        several = len(addresses) > 1
        stub = _leading(location, addresses, channels, stack) if several else _only(location, channels, stack)
        try:
            yield stub
        except grpc.RpcError as error:
            if not isinstance(error, grpc.Call):
                raise
            if error.code() is grpc.StatusCode.UNIMPLEMENTED:
                raise UsageError(
                    f"at {location.shown} answers a gRPC server that is no kvcast-controller:"
                    " is it the P4Runtime port of the switch? Correct it with --controller"
                ) from error
            is_away = error.code() is grpc.StatusCode.UNAVAILABLE
            problem = channels.why_not(location.addresses) if is_away and not several else ""
            raise UsageError(problem or in_words(error.details() or error.code().name)) from error


def _only(location: Location, channels: Channels, stack: contextlib.ExitStack) -> control_pb2_grpc.OperatorStub:
    address = location.addresses
    channel = stack.enter_context(channels.channel(address))
    if not _answers(channel):
        problem = channels.why_not(address) or what_answers(address, _TLS_REMEDY)
        raise UnreachableError(
            f"no controller answers at {location.shown}: {problem};"
            " start kvcast-controller, or name another with --controller"
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


def _leading(
    location: Location, addresses: Sequence[str], channels: Channels, stack: contextlib.ExitStack
) -> control_pb2_grpc.OperatorStub:
    """Ask all controllers for their status. Those on standby report theirs and refuse everything else. One whose lease
    has run out serves what it knows, if nobody leads."""
    stubs = [control_pb2_grpc.OperatorStub(stack.enter_context(channels.channel(address))) for address in addresses]
    asked = [stub.Status.future(rpc.StatusRequest(), timeout=CONNECT_TIMEOUT_S) for stub in stubs]
    words: list[str] = []
    lapsed: control_pb2_grpc.OperatorStub | None = None
    for address, stub, answer in zip(addresses, stubs, asked, strict=True):
        try:
            status = answer.result()
            if status.switch_view.state == "standby":
                words.append(f"{address} is on standby")
            elif status.leadership != "lapsed":
                return stub
            else:
                lapsed = lapsed or stub
        except grpc.RpcError:
            problem = channels.why_not(address)
            words.append(f"{address} does not answer" + (f" ({problem})" if problem else ""))
    if lapsed is not None:
        return lapsed
    raise UnreachableError(
        f"no controller leads: {', '.join(words)} ({location.said_by});"
        " start kvcast-controller, or correct --controller"
    )


def console() -> Terminal:
    """Standard output; what operators see of a cluster has 100 columns where there is no terminal."""
    made = Terminal()
    if not made.is_terminal:
        made.width = _PIPED
    return made


def print_whole(table: RenderableType) -> None:
    """A table whose cells are for other programs, too: no cell is cut. Lines that are longer than a terminal end at
    its edge."""
    out = Terminal()
    most = out.width if out.is_terminal else _WIDEST
    for line in Terminal(width=_WIDEST).render_lines(table, pad=False):
        whole = Segment.adjust_line_length(line, most, pad=False)
        out.print(Segments([*whole, Segment.line()]), soft_wrap=True)


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


def twin_form(chunk: rpc.ChunkView) -> str | None:
    """Of a twin, how it has its parent's bytes in fewer ("lossless", "lossy"); None for any other chunk."""
    code = twin_code(ChunkKey(chunk.key), ChunkKey(chunk.parent) if chunk.parent else None)
    return _TWIN_FORMS[Form(code)] if code is not None else None


def fields_of(message: Message) -> dict[str, Any]:
    """All fields of a message, for --json; None: the message does not say it."""
    return {
        field.name: None
        if field.has_presence and not message.HasField(field.name)
        else _shown(getattr(message, field.name))
        for field in message.DESCRIPTOR.fields
    }


def _shown(value: Any) -> Any:
    if isinstance(value, Message):
        return fields_of(value)
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, Mapping):
        return dict(value)
    return [_shown(one) for one in value] if isinstance(value, Sequence) and not isinstance(value, str) else value


def chunk_object(chunk: rpc.ChunkView) -> Mapping[str, object]:
    """A chunk for --json."""
    said = fields_of(chunk)
    said["switch"] = said.pop("switch_state")
    optional = {"parent": said["parent"] or None, "switch_problem": chunk.switch_problem or None}
    return said | optional | {"twin": twin_form(chunk)}


def status_object(status: rpc.StatusReply) -> Mapping[str, object]:
    """The controller's state for --json."""
    said = fields_of(status)
    said["switch"] = said.pop("switch_view")
    for node in said["nodes"]:
        node["data_ip"] = ip_text(bytes.fromhex(node["data_ip"]))
        node["port_problem"] = node["port_problem"] or None
    return said
