"""Guests as far as nothing has to boot: archives, kernels, command lines, configurations, a machine without QEMU."""

from __future__ import annotations

import argparse
import lzma
import shutil
import subprocess
from pathlib import Path

import pytest

from bmv2_testbed import client
from bmv2_testbed.configs import GUEST_AGENT_SOCKET, Endpoints, agent_config
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.guests import image
from bmv2_testbed.guests.machine import GuestPort, GuestSpec
from bmv2_testbed.network.guests import host_script
from bmv2_testbed.spec import Target, TestbedSpec, Wiring
from hostagent.config import parse
from kvlab.commands import testbed as testbed_command
from kvproto.wire.rdma import rdma_segment_bytes_max

XZ = b"\xfd7zXZ\x00"
"""How xz files begin (the .xz file format, 2.1.1.1)."""
SPEC = TestbedSpec(wiring=Wiring.GUESTS, hosts=3, segment_bytes=2048, socket_hosts=(2,))


def test_cpio_reads_what_we_write(tmp_path: Path) -> None:
    if shutil.which("cpio") is None:
        pytest.skip("needs cpio")
    archive = image.cpio_entry("one", 0o40755, b"") + image.cpio_entry("one/two", 0o100644, b"abc")
    archive += image.cpio_entry("TRAILER!!!", 0, b"")
    subprocess.run(["cpio", "-i", "--quiet"], input=archive, cwd=tmp_path, check=True)
    assert (tmp_path / "one/two").read_bytes() == b"abc"


def test_a_kernel_is_unpacked_and_one_in_another_packing_left_alone() -> None:
    kernel = b"\x7fELF" + bytes(1000)
    assert image.unpack_kernel(b"setup" + XZ + b"junk" + lzma.compress(kernel) + b"tail") == kernel
    assert image.unpack_kernel(b"zstd or what") == b"zstd or what"


def test_cards_are_cabled_to_ports_or_to_each_other() -> None:
    udp = GuestPort("02:00:00:00:00:01", "127.0.0.1:1000", "127.0.0.1:2000")
    assert udp.cable() == (
        "dgram,local.type=inet,local.host=127.0.0.1,local.port=1000,remote.type=inet,remote.host=127.0.0.1,remote.port=2000"
    )
    assert GuestPort("m", "/a", "/b").cable() == "dgram,local.type=unix,local.path=/a,remote.type=unix,remote.path=/b"
    spec = GuestSpec("h0", image.GuestImage(Path("k"), Path("i")), Path("/run/x"), (udp,), {"127.0.0.1:7": 9475})
    words = spec.command()
    assert f"{udp.cable()},id=n0" in words
    assert any(word.startswith("virtio-net-pci,netdev=n0,mac=02:00:00:00:00:01") for word in words)
    assert "user,id=management,hostfwd=tcp:127.0.0.1:7-:9475" in words


def test_only_hosts_with_rdma_get_it() -> None:
    assert "rdma link add rxe0" in host_script(SPEC, 0)
    assert "rdma link add" not in host_script(SPEC, 2)
    assert "rmmod rdma_rxe" in host_script(SPEC, 2)


def test_agents_in_guests_reach_the_controller_through_qemu() -> None:
    endpoints = Endpoints("127.0.0.1:4800", "", "", {host: f"127.0.0.1:{9000 + host}" for host in range(3)}, {}, {})
    configs = [parse(agent_config(SPEC, host, endpoints, "/d")) for host in (0, 2)]
    assert [config.data.transport for config in configs] == ["verbs", "sockets"]
    assert {config.controllers for config in configs} == {("10.0.2.2:4800",)}
    assert {config.http for config in configs} == {("10.0.2.15", 9475)}
    assert {config.api_socket for config in configs} == {GUEST_AGENT_SOCKET}
    assert {config.data.segment_bytes for config in configs} == {2048}


def test_specs_of_guests_travel_and_impossible_ones_are_refused() -> None:
    assert TestbedSpec.from_json(SPEC.to_json()) == SPEC
    with pytest.raises(TestbedError, match="host 7 does not exist"):
        TestbedSpec(wiring=Wiring.GUESTS, hosts=3, socket_hosts=(7,))
    with pytest.raises(TestbedError, match="--target p4switch"):
        TestbedSpec(wiring=Wiring.GUESTS, hosts=3, target=Target.BRIDGE)


def test_a_machine_without_qemu_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert image.why_not_ready() == "guests need qemu-system-x86_64 (make roce)"
    monkeypatch.undo()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(shutil, "which", lambda tool, path=None: tool)
    assert image.why_not_ready() == "the guests' image is not built (make roce)"


def test_what_make_roce_built_is_found_without_its_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(image, "CHECKOUT_CACHE", tmp_path / "cache")
    assert image.cache_directory() == tmp_path / ".cache" / "kvcast" / "guests"
    (tmp_path / "cache").mkdir()
    assert image.cache_directory() == tmp_path / "cache" / "kvcast" / "guests"
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "mine"))
    assert image.cache_directory() == tmp_path / "mine" / "kvcast" / "guests"


def test_a_testbed_without_an_image_ends_in_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(TestbedError, match=r"\(make roce\)"):
        client.start(SPEC)


def spec_of(*words: str) -> TestbedSpec:
    parser = argparse.ArgumentParser()
    testbed_command.add_arguments(parser)
    return testbed_command.spec_of(parser.parse_args(["up", *words]))


def test_the_command_line_asks_for_guests() -> None:
    spec = spec_of("--roce", "--sockets-on", "2")
    assert (spec.wiring, spec.hosts, spec.socket_hosts) == (Wiring.GUESTS, 3, (2,))
    assert spec.segment_bytes == rdma_segment_bytes_max(4096)
    with pytest.raises(TestbedError, match="--sockets-on goes with --roce"):
        spec_of("--sockets-on", "1")
