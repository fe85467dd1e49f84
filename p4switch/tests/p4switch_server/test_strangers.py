"""What strangers try at a running switch: code in a program's names, P4Runtime as another user, silent connections."""

from __future__ import annotations

import ctypes
import logging
import os
import socket
import stat
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path

import grpc
import pytest

from p4switch.doorkeeper import SILENT_MAX, SILENT_PER_ADDRESS_MAX, Connection, too_many
from p4switch.logs import TextFormatter
from p4switch.native_target import NativeTarget
from p4switch.proto import p4runtime_pb2 as p4r
from p4switch.runtime import Switch as RuntimeSwitch
from p4switch.runtime import SwitchConfig
from p4switch.server.peers import socket_owner
from p4switch.server.tls import TlsFiles
from p4switch.switch import Switch, SwitchOptions
from p4switch.testing import memory_switch
from p4switch_server.test_tls import Authority, outcome

NOBODY = 65534
LEARNING = Path(__file__).with_name("learning.p4").read_text()


@contextmanager
def primary(channel: grpc.Channel) -> Iterator[None]:
    """The stream of the primary controller, while it is entered."""
    arbitration = p4r.MasterArbitrationUpdate(device_id=1, election_id=p4r.Uint128(low=1))
    call = channel.stream_stream(
        "/p4.v1.P4Runtime/StreamChannel",
        p4r.StreamMessageRequest.SerializeToString,
        p4r.StreamMessageResponse.FromString,
    )
    wait = threading.Event()

    def requests() -> Iterator[p4r.StreamMessageRequest]:
        yield p4r.StreamMessageRequest(arbitration=arbitration)
        wait.wait(60)

    answers = call(requests(), timeout=60)
    try:
        next(answers)
        yield
    finally:
        wait.set()
        answers.cancel()


def push(channel: grpc.Channel, program: str) -> None:
    """As the primary controller does."""
    request = p4r.SetForwardingPipelineConfigRequest(device_id=1, election_id=p4r.Uint128(low=1))
    request.action = p4r.SetForwardingPipelineConfigRequest.VERIFY_AND_COMMIT
    request.config.p4_device_config = program.encode()
    function = channel.unary_unary(
        "/p4.v1.P4Runtime/SetForwardingPipelineConfig", lambda m: m.SerializeToString(), lambda raw: raw
    )
    function(request, timeout=60)


ESCAPES = ("x */\n{}\n/*", 'x"; \n{}\n//', "x\\\n{}\n", "%n%s{}", "\n{}")


def test_a_name_that_is_code_is_a_name(tmp_path: Path) -> None:
    owned = tmp_path / "owned"
    declared = "extern int creat(const char *, unsigned);"
    code = f'{declared} __attribute__((constructor)) void own(void) {{ creat("{owned}", 0600); }}'
    with memory_switch() as switch, grpc.insecure_channel(switch.address) as channel, primary(channel):
        for escape in ESCAPES:
            name = escape.replace("{}", code)
            quoted = name.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
            program = LEARNING
            for kind in ("table", "action"):
                program = program.replace(f"{kind} ", f'@name("{quoted}") {kind} ', 1)
            push(channel, program)
            assert any(table.preamble.name.endswith(name) for table in switch.switch.p4info.tables)
    assert not owned.exists()


def test_names_and_messages_do_nothing_to_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    name = r"\x1b]0;owned\x07"
    program = LEARNING.replace("table ", f'@name("{name.encode().decode("unicode_escape")}\\n") table ', 1)
    with RuntimeSwitch(SwitchConfig(virtual_clock=True, trace=True)) as switch:
        switch.add_memory(1)
        target = NativeTarget(switch, has_cpu_port=False, traces=True)
        target.commit(target.prepare(target.compile(program.encode(), pushed=True)))
        switch.inject(1, bytes(64))
        target.events(0)
    said = capsys.readouterr().out
    assert name + r"\n" in said
    assert said.replace("\n", "").isprintable()
    record = logging.LogRecord("n", logging.INFO, "", 1, "%s", ("a\nb\x1b[1m",), None)
    assert TextFormatter("%(message)s").format(record) == r"a\nb\x1b[1m"


@contextmanager
def relay_of(user: int, address: str) -> Iterator[str]:
    """An address at which connections go on to `address` from sockets of that user."""
    libc = ctypes.CDLL(None)
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:

        def pump(source: socket.socket, sink: socket.socket) -> None:
            with suppress(OSError):  # either end may be gone
                while chunk := source.recv(1 << 16):
                    sink.sendall(chunk)
                sink.shutdown(socket.SHUT_WR)

        def serve() -> None:
            host, _, port = address.rpartition(":")
            inside, _ = listener.accept()
            libc.setfsuid(user)  # of this thread alone
            outside = socket.socket()
            libc.setfsuid(0)
            with inside, outside:
                outside.connect((host, int(port)))
                back = threading.Thread(target=pump, args=(outside, inside))
                back.start()
                pump(inside, outside)
                back.join()

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        thread.join()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root has sockets of other users")
@pytest.mark.parametrize("insecure", [False, True])
def test_another_user_of_the_machine_gets_nothing(insecure: bool) -> None:
    with Switch(SwitchOptions(grpc="127.0.0.1:0", insecure=insecure)) as switch:
        with grpc.insecure_channel(switch.address) as own:
            assert outcome(own, "Capabilities", p4r.CapabilitiesRequest()) is grpc.StatusCode.OK
        with relay_of(NOBODY, switch.address) as address, grpc.insecure_channel(address) as other:
            expected = grpc.StatusCode.OK if insecure else grpc.StatusCode.PERMISSION_DENIED
            assert outcome(other, "Capabilities", p4r.CapabilitiesRequest()) is expected
            if not insecure:
                with pytest.raises(grpc.RpcError, match=rf"user {NOBODY}'s: .* unless it runs with --insecure"):
                    push(other, LEARNING)


def test_a_socket_file_is_the_owners_and_the_groups(tmp_path: Path) -> None:
    path = tmp_path / "p4runtime.sock"
    before = os.umask(0)
    try:
        with Switch(SwitchOptions(grpc=f"unix:{path}")), grpc.insecure_channel(f"unix:{path}") as channel:
            assert outcome(channel, "Capabilities", p4r.CapabilitiesRequest()) is grpc.StatusCode.OK
            assert stat.S_IMODE(path.stat().st_mode) == 0o770
    finally:
        os.umask(before)


@contextmanager
def silent(address: str, count: int) -> Iterator[list[socket.socket]]:
    """So many connections that say nothing."""
    host, _, port = address.rpartition(":")
    with ExitStack() as held:
        yield [held.enter_context(socket.create_connection((host, int(port)), timeout=20)) for _ in range(count)]


def test_who_is_silent_shuts_nobody_out() -> None:
    options = SwitchOptions(grpc="127.0.0.1:0", http="127.0.0.1:0")
    with Switch(options) as switch, grpc.insecure_channel(switch.address) as channel:
        assert switch.pages is not None
        with primary(channel), silent(switch.pages.address, 300), silent(switch.address, 600) as connections:
            for _ in range(20):
                with urllib.request.urlopen(f"http://{switch.pages.address}/livez", timeout=20) as page:
                    assert page.status == 200
            with grpc.insecure_channel(switch.address, [("grpc.use_local_subchannel_pool", 1)]) as another:
                assert outcome(another, "Capabilities", p4r.CapabilitiesRequest()) is grpc.StatusCode.OK
            for one in connections[:400]:
                while one.recv(1 << 10):  # gRPC's greeting, then the end
                    pass
            push(channel, LEARNING)


def test_the_oldest_silent_connections_make_room() -> None:
    many = [Connection(n, n, "10.0.0.1", f"10.0.0.1:{n}") for n in range(SILENT_PER_ADDRESS_MAX + 3)]
    few = [Connection(n + 1000, n, f"10.0.1.{n % 250}", "") for n in range(100)]
    assert {one.number for one in too_many([*few, *many])} == {0, 1, 2}
    all_over = [Connection(n, n, str(n), "") for n in range(SILENT_MAX + 2)]
    assert {one.number for one in too_many(all_over)} == {0, 1}


def test_whose_a_connection_is() -> None:
    def line(local: str, remote: str, state: str, user: int) -> str:
        return f"   0: {local} {remote} {state} 00000000:00000000 00:00000000 00000000 {user:5} 0 4711"

    near, mapped = "0100007F:A13C", "0000000000000000FFFF00000100007F:A13C"
    listener = "0100007F:2557"
    assert socket_owner([line(near, listener, "01", 1000)], "127.0.0.1:41276", 9559) == 1000
    assert socket_owner([line(mapped, mapped[:33] + "2557", "01", 1000)], "127.0.0.1:41276", 9559) == 1000
    loopback = "00000000000000000000000001000000"
    assert socket_owner([line(f"{loopback}:A13C", f"{loopback}:2557", "01", 7)], "[::1]:41276", 9559) == 7
    for other in (
        line(near, listener, "06", 0),  # waits for its time to be over: root's, as the kernel shows it
        line(near, "0100007F:2558", "01", 0),
        line("0200007F:A13C", listener, "01", 0),
        line(listener, near, "01", 0),
    ):
        assert socket_owner([other], "127.0.0.1:41276", 9559) is None


def test_no_name_but_a_uri_makes_a_controller(tmp_path: Path) -> None:
    authority = Authority.make(tmp_path / "authority")
    name = "spiffe://example.org/controller"
    cert, key = authority.sign("switch", "DNS:localhost", "IP:127.0.0.1")
    with Switch(SwitchOptions(tls=TlsFiles(cert, key, authority.cert, frozenset({name, "controller"})))) as switch:
        for alternative in ("DNS:controller", "email:controller", f"email:{name}", "URI:spiffe://example.org/agent/h1"):
            pem, own = authority.sign("controller", alternative)
            credentials = grpc.ssl_channel_credentials(authority.cert.read_bytes(), own.read_bytes(), pem.read_bytes())
            with (
                grpc.secure_channel(switch.address, credentials) as channel,
                pytest.raises(grpc.RpcError, match="may read only: no --tls-controller"),
            ):
                push(channel, LEARNING)
