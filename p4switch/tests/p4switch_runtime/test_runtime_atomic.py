"""Batches and replacements happen between two packets: no packet sees half of one."""

from __future__ import annotations

import gc
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from p4switch.runtime import Pipeline, Program, Status, Switch
from p4switch.values import ActionCall
from p4switch_runtime.runtime_frames import Op, command, mac, reply

_DEADLINE_S = 20.0
_PACKETS = 6000
_VALUES = 250
_IN_FLIGHT = 500


def fill(pipeline: Pipeline, value: int) -> list[int]:
    batch = pipeline.batch()
    for number in (1, 2):
        batch.insert(0, [(int.from_bytes(mac(number), "big"), 0)], ActionCall(0, (value,)))
    batch.set_registers(0, 0, [value])
    results = batch.commit()
    assert {result.status for result in results} == {Status.OK}
    return [result.handle for result in results[:2]]


@contextmanager
def traffic(switch: Switch, folder: Path, seen: list[int]) -> Iterator[threading.Event]:
    """Frames go in and out through a socket on two threads; ``seen`` collects what each packet saw.

    The event is set when all have come back.
    """
    done = threading.Event()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as host:
        host.bind(str(folder / "host"))
        host.settimeout(_DEADLINE_S)
        switch.add_unix(1, folder / "port", folder / "host")
        switch.start()

        window = threading.Semaphore(_IN_FLIGHT)  # or the slower side's queue would overflow

        def send() -> None:
            for _ in range(_PACKETS):
                window.acquire(timeout=_DEADLINE_S)
                host.sendto(command(Op.SEE, 1), str(folder / "port"))

        def receive() -> None:
            try:
                for _ in range(_PACKETS):
                    seen.append(reply(host.recv(65536)).value)
                    window.release()
            finally:
                done.set()

        threads = [threading.Thread(target=target) for target in (send, receive)]
        for thread in threads:
            thread.start()
        yield done
        for thread in threads:
            thread.join()


def consistent(seen: list[int]) -> set[int]:
    for value in seen:
        parts = {value >> 32, value >> 16 & 0xFFFF, value & 0xFFFF}
        assert len(parts) == 1, f"a packet saw {value:#x}"
    return {value & 0xFFFF for value in seen}


def test_packets_see_whole_batches(exerciser: Program, tmp_path: Path) -> None:
    seen: list[int] = []
    with Switch() as switch:
        pipeline = switch.prepare(exerciser)
        handles = fill(pipeline, 1)
        switch.commit(pipeline)
        with traffic(switch, tmp_path, seen) as done:
            turn = 0
            while not done.is_set():
                turn += 1
                value = 1 + turn % _VALUES
                batch = pipeline.batch()
                if turn % 3 == 0:  # also by deleting and inserting, where a miss would show
                    for handle in handles:
                        batch.delete(0, handle)
                    for number in (1, 2):
                        batch.insert(0, [(int.from_bytes(mac(number), "big"), 0)], ActionCall(0, (value,)))
                else:
                    for handle in handles:
                        batch.modify(0, handle, ActionCall(0, (value,)))
                batch.set_registers(0, 0, [value])
                results = batch.commit()
                assert {result.status for result in results} == {Status.OK}
                if turn % 3 == 0:
                    handles = [result.handle for result in results[2:4]]
    assert len(seen) == _PACKETS
    assert len(consistent(seen)) > 5


def test_packets_see_whole_pipelines(exerciser: Program, tmp_path: Path) -> None:
    seen: list[int] = []
    with Switch() as switch:
        first = switch.prepare(exerciser)
        fill(first, 1)
        switch.commit(first)
        del first
        with traffic(switch, tmp_path, seen) as done:
            turn = 0
            while not done.is_set():
                turn += 1
                pipeline = switch.prepare(exerciser)
                fill(pipeline, 1 + turn % _VALUES)
                switch.commit(pipeline)
                gc.collect(0)
    assert len(seen) == _PACKETS
    assert len(consistent(seen)) > 2


def test_growing_tables_do_not_lose_entries_under_traffic(exerciser: Program, tmp_path: Path) -> None:
    seen: list[int] = []
    with Switch() as switch:
        pipeline = switch.prepare(exerciser)
        fill(pipeline, 7)
        switch.commit(pipeline)
        with traffic(switch, tmp_path, seen) as done:
            inserted = 0
            while not done.is_set() and inserted < 190_000:
                batch = pipeline.batch()
                for number in range(inserted, inserted + 1000):
                    batch.insert(0, [(number * 2, 0)], ActionCall(0, (1,)))
                batch.commit()
                inserted += 1000
        assert pipeline.entry_count(0) == inserted + 2
    assert consistent(seen) == {7}
