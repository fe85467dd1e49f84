"""`kvcast init`: what it finds, what it asks, and files that the daemons take."""

from __future__ import annotations

import io
from pathlib import Path
from types import ModuleType

import pytest

import controlplane.daemon
import hostagent.daemon
from kvcast.cli import main
from kvcast.commands import init
from kvcast.setup.files import pool_for, segment_for
from kvcast.setup.machine import Interface, Machine, data_interface, look
from kvproto.wire.data import FILL_OVERHEAD_BYTES

MANAGEMENT = Interface("eth0", True, 1500, 1_000_000_000, ("192.0.2.5", "192.0.2.6"), default_route=True)
DATA = Interface("eth1", True, 9000, 100_000_000_000, ("198.51.100.1",), default_route=False)
DOWN = Interface("eth2", False, 9000, None, (), default_route=False)
FLAGS = ("--controller", "192.0.2.9:4800", "--switch", "192.0.2.8:9559", "--nodes", "n1=1,n2=2", "--node", "n1")


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    """One with a management and a data network."""
    made = Machine("n1", (MANAGEMENT, DATA, DOWN), 20 << 30)
    monkeypatch.setattr(init, "look", lambda: made)
    return made


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize("more", [(), ("--switch", "none"), ("--interface", "eth0", "--pool", "1GiB")])
def test_the_daemons_take_the_files(tmp_path: Path, more: tuple[str, ...]) -> None:
    assert main(["init", "--dir", str(tmp_path), *FLAGS, *more]) == 0
    assert controlplane.daemon.main(["--config", str(tmp_path / "controller.yaml"), "--check"]) == 0
    assert hostagent.daemon.main(["--config", str(tmp_path / "agent.yaml"), "--check"]) == 0


@pytest.mark.usefixtures("machine")
def test_what_the_machine_has_goes_into_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["init", "--dir", str(tmp_path), *FLAGS]) == 0
    config = hostagent.config.load(tmp_path / "agent.yaml")
    assert (config.node, config.data.interface, config.data.segment_bytes) == ("n1", "eth1", 4096)
    assert (config.pool.size_bytes, config.controllers) == (10 << 30, ("192.0.2.9:4800",))
    assert controlplane.config.load(tmp_path / "controller.yaml").core.ports == {"n1": 1, "n2": 2}
    said = capsys.readouterr().out
    assert "100 Gbit/s" in said or "100gbit" in said.lower()
    assert main(["init", "--dir", str(tmp_path), "--only", "agent", "--interface", "eth0", *FLAGS, "--force"]) == 0
    assert hostagent.config.load(tmp_path / "agent.yaml").data.segment_bytes == 1024
    assert "MTU 9000 on eth0" in capsys.readouterr().out


@pytest.mark.usefixtures("machine")
def test_nothing_is_overwritten_without_force(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "agent.yaml").write_text("mine")
    assert main(["init", "--dir", str(tmp_path), *FLAGS]) == 2
    assert "agent.yaml already there: --force" in capsys.readouterr().err
    assert (tmp_path / "agent.yaml").read_text() == "mine"
    assert not (tmp_path / "controller.yaml").exists()


@pytest.mark.usefixtures("machine")
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--interface", "eth9"), "there is no interface eth9: eth0, eth1, eth2"),
        (("--interface", "eth2"), "eth2 has no IPv4 address"),
        (("--pool", "5MB"), "pool.size"),
        (("--node", "a b"), "'a b' is not a name"),
    ],
)
def test_what_cannot_be(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], said: str) -> None:
    assert main(["init", "--dir", str(tmp_path), *FLAGS, *words]) == 2
    assert said in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.usefixtures("machine")
def test_several_controllers(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Agents get the list; the controller's own file says where this one listens, on whichever of its addresses."""
    both = ("--controller", "192.0.2.6:4800,192.0.2.9:4801")
    assert main(["init", "--dir", str(tmp_path), *FLAGS, *both]) == 0
    assert hostagent.config.load(tmp_path / "agent.yaml").controllers == ("192.0.2.6:4800", "192.0.2.9:4801")
    assert controlplane.config.load(tmp_path / "controller.yaml").listen == "192.0.2.6:4800"
    elsewhere = ("--controller", "192.0.2.8:4800,192.0.2.9:4801", "--force")
    assert main(["init", "--dir", str(tmp_path), *FLAGS, *elsewhere]) == 2
    assert "0 of them on this machine" in capsys.readouterr().err
    assert main(["init", "--dir", str(tmp_path), *FLAGS, *elsewhere, "--only", "agent"]) == 0
    for wrong in ("192.0.2.6:4800,", "192.0.2.6:4800,192.0.2.6:4800", "a b:4800"):
        with pytest.raises(SystemExit):
            main(["init", "--dir", str(tmp_path), *FLAGS, "--controller", wrong])


@pytest.mark.parametrize("daemon", [controlplane.daemon, hostagent.daemon], ids=["controller", "agent"])
def test_check_takes_no_list_for_a_host(tmp_path: Path, daemon: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "config.yaml"
    if daemon is controlplane.daemon:
        config.write_text("listen: 'a:4800,b:4800'\ninsecure: true\nswitch: {target: none}\n")
    else:
        config.write_text(
            "node: n1\ndata: {address: 192.0.2.5}\ninsecure: true\npool: {size: 1GiB}\n"
            "controller: {address: 'a:4800,b:4800'}\n"
        )
    assert daemon.main(["--config", str(config), "--check"]) == 2
    said = capsys.readouterr().err
    assert "is not one HOST:PORT" in said or "write a list, [a:4800, b:4800]" in said


@pytest.mark.usefixtures("machine")
def test_nobody_to_ask_means_defaults(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["init", "--dir", str(tmp_path)]) == 0
    assert hostagent.config.load(tmp_path / "agent.yaml").controllers == ("192.0.2.5:4800",)
    assert controlplane.config.load(tmp_path / "controller.yaml").core.ports == {}


class Terminal(io.StringIO):
    """Somebody who types."""

    def isatty(self) -> bool:
        return True


@pytest.mark.usefixtures("machine")
def test_questions_on_a_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    typed = ["", "node7", "", "192.0.2.8", "192.0.2.8:9559", "512MiB"]
    monkeypatch.setattr("sys.stdin", Terminal("\n".join(typed) + "\n"))
    assert main(["init", "--dir", str(tmp_path)]) == 0
    asked = capsys.readouterr().err
    assert "Interface towards the switch [eth1]: " in asked
    assert "192.0.2.8" in asked
    assert hostagent.config.load(tmp_path / "agent.yaml").pool.size_bytes == 512 << 20


def test_sizes_that_fit() -> None:
    assert segment_for(9000) == 4096
    assert segment_for(1500) == 1024
    assert segment_for(4096 + FILL_OVERHEAD_BYTES - 1) == 2048
    with pytest.raises(ValueError, match="an MTU of 300 is too small"):
        segment_for(300)
    assert pool_for(1 << 30) == 512 << 20
    assert pool_for(0) == 64 << 20


def test_the_data_interface_is_the_fast_one_beside_the_default_route() -> None:
    assert data_interface(Machine("m", (MANAGEMENT, DATA, DOWN), 0)) is DATA
    assert data_interface(Machine("m", (MANAGEMENT, DOWN), 0)) is MANAGEMENT
    assert data_interface(Machine("m", (DOWN,), 0)) is None


def test_this_machine_is_looked_at() -> None:
    found = look()
    assert found.memory_bytes > 0
    assert "lo" not in {one.name for one in found.interfaces}


def test_a_machine_with_odd_memory_and_nobody_to_ask(
    tmp_path: Path, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = Machine("n1", machine.interfaces, 24_266_565_222)
    monkeypatch.setattr(init, "look", lambda: odd)
    monkeypatch.setattr("sys.stdin", io.StringIO())
    assert main(["init", "--dir", str(tmp_path), *FLAGS]) == 0
    assert hostagent.config.load(tmp_path / "agent.yaml").pool.size_bytes == pool_for(odd.memory_bytes)


def test_the_switch_and_controllers_machine_needs_no_data_interface(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cables = tuple(Interface(f"eth{port}", True, 9000, None, (), default_route=False) for port in (1, 2))
    monkeypatch.setattr(init, "look", lambda: Machine("sw", (MANAGEMENT, *cables), 20 << 30))
    monkeypatch.setattr("sys.stdin", io.StringIO())
    words = ("--only", "controller", "--switch", "192.0.2.5:9559")
    assert main(["init", "--dir", str(tmp_path), *words]) == 0
    config = controlplane.config.load(tmp_path / "controller.yaml")
    assert (config.listen, config.core.fabric.segment_bytes) == ("192.0.2.5:4800", 4096)
    assert "--segment-bytes" not in capsys.readouterr().out
    assert [path.name for path in tmp_path.iterdir()] == ["controller.yaml"]
