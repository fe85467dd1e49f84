"""What does not work for a minute has a name: in the log once, in the metric, and in /readyz where engines need it."""

from __future__ import annotations

import asyncio
import dataclasses
import logging
import os
import shutil
import subprocess
import sys
import textwrap

import pytest

from hostagent import limits
from hostagent.data_network import joined_groups, network_fault
from hostagent.outage_watch import OutageWatch
from hostagent.outages import NEEDED, Outages, Part, Unanswered
from tests.unit.hostagent.agent_harness import MIB, cluster


def test_a_part_that_is_back_before_a_minute_is_nobodys_business() -> None:
    outages = Outages(60)
    assert outages.looked({Part.COLD: "it is away"}, 100) == []
    assert outages.looked({Part.COLD: "it is away"}, 159) == []
    assert outages.seconds(159)[Part.COLD] == 59
    assert outages.looked({Part.COLD: None}, 160) == []
    assert list(outages.lasting()) == []
    assert outages.looked({Part.COLD: "it is away"}, 161) == []
    assert outages.looked({Part.COLD: "it is away"}, 180) == [], "another outage begins anew"


def test_a_lasting_outage_is_one_line_and_its_end_another() -> None:
    outages = Outages(60)
    outages.looked({Part.CASTS: "no group"}, 0)
    assert outages.looked({Part.CASTS: "no answer"}, 60) == ["casts: does not work, for 60 s: no answer"]
    assert outages.looked({Part.CASTS: "no group"}, 65) == []
    assert [(one.part, one.reason, one.since_s) for one in outages.lasting()] == [(Part.CASTS, "no group", 0)]
    assert outages.looked({Part.CASTS: None}, 95) == ["casts: works again, after 95 s"]
    assert outages.seconds(95) == dict.fromkeys(Part, 0.0)


@pytest.mark.parametrize("part", Part)
def test_only_what_engines_need_makes_the_node_unready(part: Part) -> None:
    outages = Outages(60)
    for now_s in (0, 30):
        outages.looked({part: "gone"}, now_s)
        assert outages.missing(now_s) == []
    outages.looked({part: "gone"}, 70)
    assert outages.missing(71) == ([f"{part.value}: gone (for 71 s)"] if part in NEEDED else [])


def test_what_nobody_answers_is_counted_since_the_last_answer() -> None:
    joins = Unanswered(10)
    assert [joins.count(asked, 0) for asked in (0, 9, 10, 25)] == [0, 0, 10, 25]
    assert joins.count(26, 1) == 0
    assert [joins.count(asked, 1) for asked in (35, 36)] == [0, 10]


def test_groups_of_an_interface() -> None:
    big = sys.byteorder == "big"
    table = textwrap.dedent(f"""\
        Idx\tDevice    : Count Querier\tGroup    Users Timer\tReporter
        1\tlo        :     1      V3
        \t\t\t\t{"E0000001" if big else "010000E0"}     1 0:00000000\t\t0
        22\teth1      :     2      V3
        \t\t\t\t{"EF4B6401" if big else "01644BEF"}     2 0:00000000\t\t0
        \t\t\t\t{"E0000001" if big else "010000E0"}     1 0:00000000\t\t0
        """)
    assert joined_groups(table, "eth1") == {"239.75.100.1", "224.0.0.1"}
    assert joined_groups(table, "lo") == {"224.0.0.1"}
    assert joined_groups(table, "eth2") == set()


@pytest.mark.root
@pytest.mark.skipif(os.geteuid() != 0 or shutil.which("ip") is None, reason="needs root and iproute2")
def test_the_kernel_says_when_the_data_network_is_gone() -> None:
    space = f"kv{os.getpid()}o"
    look = textwrap.dedent(
        """
        import subprocess
        from hostagent.data_network import group_fault, network_fault
        from hostagent.transport.host import group_socket
        def ip(words): subprocess.run(["ip", *words.split()], check=True)
        def until(flag):  # the kernel looks at carriers when it has time
            while flag not in subprocess.check_output(["ip", "link", "show", "data0"], text=True): pass
        def said(): print(network_fault("192.168.77.1", "data0"), group_fault(0xEF4B6401, "data0"), sep=" | ")
        ip("link set lo up")  # without any address the kernel takes every one for its own
        said()
        ip("link add data0 type veth peer name far0"); ip("link set far0 up")
        said()
        ip("link set data0 up"); until("LOWER_UP"); said()
        ip("address add 192.168.77.1/24 dev data0"); said()
        held = group_socket("192.168.77.1", ("239.75.100.1",), 4793); said()
        ip("link set far0 down"); until("NO-CARRIER"); said()
        """
    )
    subprocess.run(["ip", "netns", "add", space], check=True)
    try:
        done = subprocess.run(
            ["ip", "netns", "exec", space, sys.executable, "-c", look], capture_output=True, text=True, check=False
        )
    finally:
        subprocess.run(["ip", "netns", "delete", space], check=True)
    assert done.returncode == 0, done.stderr
    alone = "no socket is in group 239.75.100.1 on data0; was the interface made anew?"
    assert done.stdout.splitlines() == [
        f"interface data0: No such device | {alone}",
        f"interface data0 is down | {alone}",
        f"no interface has the address 192.168.77.1 any more | {alone}",
        f"None | {alone}",
        "None | None",
        "interface data0 has no carrier | None",
    ]


def test_the_loopback_is_no_fault() -> None:
    assert network_fault("127.0.0.1", None) is None


@pytest.fixture
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "OUTAGE_S", 0.0)


def test_an_agent_says_what_does_not_work(at_once: None, caplog: pytest.LogCaptureFixture) -> None:
    with cluster(1, pool_bytes=MIB) as made, caplog.at_level(logging.WARNING, "hostagent.outage_watch"):
        (agent,) = made.agents
        assert (list(agent.health().missing), agent.health().facts["outages"]) == ([], {})
        counters = agent.transport.counters

        def vain_reads() -> None:
            counters.reads_failed += limits.OUTAGE_ASKED_MIN
            agent.outages.look()
            agent.outages.look()

        made.call(vain_reads)
        reason = f"{limits.OUTAGE_ASKED_MIN} reads from other nodes failed, and none ended well"
        facts = made.call(agent.health).facts
        assert facts["status"] == "degraded"
        assert facts["outages"]["reads"]["reason"] == reason
        assert not made.call(agent.health).missing, "it goes on without them"
        assert agent.metrics.flat()["outage_seconds{reads}"] > 0
        assert agent.metrics.flat()["outage_seconds{network}"] == 0
        (line,) = [line for line in caplog.messages if line.startswith("reads: ")]
        assert line.startswith("reads: does not work, for ")
        assert line.endswith(f" s: {reason}")


def test_an_agent_without_its_data_network_is_not_ready(at_once: None) -> None:
    with cluster(1, pool_bytes=MIB) as made:
        (agent,) = made.agents
        gone = dataclasses.replace(agent.outages.parts, place=lambda: ("127.0.0.1", "nosuch0"))
        watch = OutageWatch(gone, made.call(asyncio.get_running_loop))
        agent.outages.close()
        agent.outages = watch
        made.call(watch.look)
        (line,) = made.call(agent.health).missing
        assert line.startswith("network: interface nosuch0: No such device (for ")


def test_a_network_that_only_a_restart_brings_back_is_none(at_once: None) -> None:
    with cluster(1, pool_bytes=MIB) as made:
        (agent,) = made.agents
        watch = OutageWatch(
            dataclasses.replace(agent.outages.parts, network_trouble=lambda: "restart kvcast-agent"),
            made.call(asyncio.get_running_loop),
        )
        agent.outages.close()
        agent.outages = watch
        made.call(watch.look)
        (line,) = made.call(agent.health).missing
        assert line.startswith("network: restart kvcast-agent (for ")
