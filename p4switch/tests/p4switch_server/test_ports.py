"""Port specifications, port options and device configurations: what is written, and what is said when it is wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from p4switch.device_config import ProgramSource, parse_device_config
from p4switch.errors import SwitchError
from p4switch.ports import (
    Interface,
    Memory,
    PortOptions,
    PortSpec,
    UdpSocket,
    UnixSocket,
    parse_port,
    parse_port_options,
)
from p4switch.server.target import ConfigError


@pytest.mark.parametrize(
    ("text", "medium"),
    [
        ("3@eth1", Interface("eth1")),
        ("3@veth-a.100", Interface("veth-a.100")),
        ("3@udp:127.0.0.1:5001,127.0.0.1:5002", UdpSocket(("127.0.0.1", 5001), ("127.0.0.1", 5002))),
        ("3@udp:127.0.0.1:0", UdpSocket(("127.0.0.1", 0), None)),
        ("3@unix:/a/in,/a/out", UnixSocket(Path("/a/in"), Path("/a/out"))),
        ("3@memory", Memory()),
    ],
)
def test_port(text, medium):
    assert parse_port(text) == PortSpec(3, medium)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "eth1",
        "x@eth1",
        "511@eth1",
        "-1@eth1",
        "1@",
        "1@a/b",
        "1@a-name-that-is-too-long",
        "1@udp:host",
        "1@udp:h:99999",
        "1@unix:/a",
    ],
)
def test_port_that_is_wrong(text):
    with pytest.raises(SwitchError, match=r"^port "):
        parse_port(text)


def test_port_options():
    text = "3:loss=1%,duplicate=0.5,rate=100mbit,delay=2ms,jitter=10us,burst=64k,queue=1mib,seed=7,direction=both"
    assert parse_port_options(text) == (
        3,
        PortOptions(
            loss=0.01,
            duplicate=0.5,
            rate_bits=100_000_000,
            delay_us=2000,
            jitter_us=10,
            burst_bytes=65536,
            queue_bytes=1 << 20,
            seed=7,
            direction="both",
        ),
    )


@pytest.mark.parametrize(
    "text",
    [
        "loss=1",
        "3",
        "3:loss",
        "3:loss=2",
        "3:loss=-1",
        "3:loss=x",
        "3:rate=fast",
        "3:rate=1parsec",
        "3:direction=up",
        "3:colour=red",
    ],
)
def test_port_options_that_are_wrong(text):
    with pytest.raises(SwitchError, match=r"^(port option|unknown port option)"):
        parse_port_options(text)


def test_source_text_is_a_program_of_one_file():
    source = parse_device_config(b"#include <core.p4>\n")
    assert source.files == {"program.p4": "#include <core.p4>\n"}


@pytest.mark.parametrize("text", ["/srv/a.p4", "file:/srv/a.p4", "  /srv/a.p4\n"])
def test_one_line_is_a_path(text):
    assert parse_device_config(text.encode()).path == Path("/srv/a.p4")


def test_envelopes_mean_what_they_say():
    for source in (
        ProgramSource(path=Path("/srv/a.p4"), defines={"A": "1"}, include_dirs=(Path("/srv"),)),
        ProgramSource(main="a.p4", files={"a.p4": "x", "sub/b.p4": "y"}, defines={"A": "1"}),
    ):
        assert parse_device_config(source.envelope()) == source


@pytest.mark.parametrize(
    ("config", "said"),
    [
        (b"", "is empty"),
        (b"\xff\xfe\x00", "is binary"),
        (b'{"a": ', "is no JSON"),
        (b'{"pipelines": [], "parsers": []}', "output for bmv2"),
        (b'{"path": "/a", "flags": 1}', "unknown key 'flags'"),
        (b'{"path": 1}', "path must be"),
        (b'{"files": {"../../etc/passwd": "x"}}', "must be relative"),
        (b'{"files": {"/etc/passwd": "x"}}', "must be relative"),
        (b'{"files": {"a": "x", "b": "y"}}', "main must name"),
        (b'{"files": {"a": 1}}', "must map names to strings"),
        (json.dumps({"path": "/a", "defines": ["A"]}).encode(), "defines must map"),
        (json.dumps({"path": "/a", "include_dirs": "b"}).encode(), "include_dirs must be"),
    ],
)
def test_device_configurations_that_are_wrong(config, said):
    with pytest.raises(ConfigError, match=said):
        parse_device_config(config)
