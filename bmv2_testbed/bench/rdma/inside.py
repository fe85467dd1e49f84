"""What `bench.rdma` runs in its guest: our transport and minimal programs, in turn, on the same two ports."""

from __future__ import annotations

import argparse
import asyncio
import importlib
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from bmv2_testbed.guests.pair import ADDRESSES
from hostagent.config import DataConfig
from hostagent.pool.memory import PoolMemory
from hostagent.transport.base import ChunkPlace, ControlArrival, Extent, ReadOutcome
from hostagent.transport.verbs.device import gid_of
from hostagent.transport.verbs.transport import VerbsTransport
from kvproto.ids import ChunkKey
from kvproto.wire.data import Fabric, SegmentGroup

KEY = ChunkKey(b"benchmark chunk!")
SEGMENT_BYTES = 3840
CHUNK_BYTES = 1024 * SEGMENT_BYTES
MESSAGE_BYTES = 32 + SEGMENT_BYTES
ROUNDS = 3
"""All programs in turn, so often: what else the machine does meets each of them. The median counts."""
WINDOW_SEGMENTS = 256
"""Cast ahead of what has arrived: well below every queue on the way."""
_DEBIAN_PACKAGES = "/usr/lib/python3/dist-packages"


class BenchSink:
    """Serves one chunk; places what arrives, as an agent does, and counts it."""

    def __init__(self, place: ChunkPlace, target: npt.NDArray[np.uint8]) -> None:
        self._place = place
        self._rows = target.reshape(-1, SEGMENT_BYTES)
        self.arrived = 0

    def controls_received(self, _arrivals: Sequence[ControlArrival]) -> None: ...
    def cast_patience_s(self) -> float:
        return 0.0

    def segments_sent(self, _key: ChunkKey, _count: int) -> None: ...
    def segments_failed(self, _key: ChunkKey, _count: int) -> None: ...
    def fill_sent(self, _key: ChunkKey, _count: int) -> None: ...
    def prepare(self, _key: ChunkKey, _then: Callable[[], None]) -> bool:
        return False

    def open_extent(self, _key: ChunkKey) -> Extent | None:
        return Extent(self._place.offset, self._place.size_bytes, None)

    def close_extent(self, _extent: Extent) -> None: ...
    def casts_received(self, group: SegmentGroup, payload: npt.NDArray[np.uint8]) -> None:
        self._rows[group.segments] = payload
        self.arrived += len(group.rows)


def rate(size_bytes: float, seconds: float) -> float:
    return size_bytes / seconds / 2**20


async def ours(seconds: float) -> dict[str, float]:
    """Reads and casts by two transports in this process; MiB/s and CPU milliseconds of this process a MiB."""
    fabric = Fabric(segment_bytes=SEGMENT_BYTES)
    place = ChunkPlace(KEY, 0, CHUNK_BYTES)
    nodes = []
    for address in ADDRESSES:
        memory = PoolMemory(2 * CHUNK_BYTES, prefault=True)
        transport = VerbsTransport(DataConfig(transport="verbs", address=address, read_port=0), memory)
        sink = BenchSink(place, memory.array(CHUNK_BYTES, CHUNK_BYTES))
        facts = await transport.start(sink, fabric)
        nodes.append((transport, sink, facts))
    (holder, _, holder_facts), (reader, sink, _) = nodes
    figures = await _read(reader, holder_facts.read_endpoint, seconds)
    figures |= await _cast(holder, sink, place, seconds)
    for transport, _, _ in nodes:
        await transport.close()
    return figures


async def _read(reader: VerbsTransport, endpoint: str, seconds: float) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    count, start_s, cpu_s = 0, 0.0, 0.0
    while not count or time.monotonic() - start_s < seconds:
        done: asyncio.Future[ReadOutcome] = loop.create_future()
        reader.read(endpoint, KEY, 0, CHUNK_BYTES, CHUNK_BYTES, done.set_result)
        if await done is not ReadOutcome.DONE:
            raise RuntimeError("a read failed")
        if not start_s:
            # The first one sets the connection up.
            start_s, cpu_s, count = time.monotonic(), time.process_time(), 0
        count += 1
    count -= 1
    spent_s = time.monotonic() - start_s
    return {
        "read, kvcast (MiB/s)": rate(count * CHUNK_BYTES, spent_s),
        "read, kvcast (process CPU ms/MiB)": (time.process_time() - cpu_s) * 1000 / max(1, count * CHUNK_BYTES >> 20),
    }


async def _cast(holder: VerbsTransport, sink: BenchSink, place: ChunkPlace, seconds: float) -> dict[str, float]:
    segments = CHUNK_BYTES // SEGMENT_BYTES
    start_s, cpu_s, asked = time.monotonic(), time.process_time(), 0
    while time.monotonic() - start_s < seconds:
        if asked - sink.arrived <= WINDOW_SEGMENTS // 2:
            holder.cast(place, asked % segments, WINDOW_SEGMENTS // 2)
            asked += WINDOW_SEGMENTS // 2
        await asyncio.sleep(0)
    spent_s = time.monotonic() - start_s
    arrived_bytes = sink.arrived * SEGMENT_BYTES
    return {
        "UD, kvcast (MiB/s)": rate(arrived_bytes, spent_s),
        "UD, kvcast (process CPU ms/MiB)": (time.process_time() - cpu_s) * 1000 / max(1, arrived_bytes >> 20),
    }


# ---------------------------------------------------------------------- minimal programs


def perftest(seconds: float) -> dict[str, float]:
    """ib_read_bw's average, one queue pair, pieces as ours."""
    common = ["ib_read_bw", "-x", "1", "-s", str(256 * 1024), "-n", str(max(64, int(seconds * 200))), "-F"]
    server = subprocess.Popen([*common, "-d", "rxe0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        for _ in range(20):
            client = subprocess.run(
                # Only what it exchanges beforehand goes over loopback.
                [*common, "-d", "rxe1", "127.0.0.1"],
                capture_output=True,
                text=True,
                check=False,
            )
            if client.returncode == 0:
                break
            time.sleep(0.2)
        else:
            raise RuntimeError(f"ib_read_bw: {(client.stderr or client.stdout).strip()[-300:]}")
    finally:
        server.kill()
        server.wait()
    line = next(line for line in client.stdout.splitlines() if line.split()[:1] == [str(256 * 1024)])
    return {"read, ib_read_bw (MiB/s)": float(line.split()[3])}


def load_pyverbs() -> dict[str, Any]:
    """Modules of pyverbs by name, from Debian's packages."""
    sys.path.append(_DEBIAN_PACKAGES)
    try:
        return {
            name: importlib.import_module(f"pyverbs.{name}")
            for name in ("addr", "cq", "device", "enums", "mr", "pd", "qp", "wr")
        }
    finally:
        sys.path.remove(_DEBIAN_PACKAGES)


class PyverbsPort:
    """A port with a domain, as pyverbs has them."""

    def __init__(self, modules: dict[str, Any], name: str) -> None:
        self.modules, self.enums = modules, modules["enums"]
        self.context = modules["device"].Context(name=name)
        self.domain = modules["pd"].PD(self.context)
        self.index = next(i for i in range(8) if "ffff" in str(self.context.query_gid(1, i)))

    def memory(self, size_bytes: int) -> Any:
        access = self.enums.IBV_ACCESS_LOCAL_WRITE | self.enums.IBV_ACCESS_REMOTE_READ
        return self.modules["mr"].MR(self.domain, size_bytes, access)

    def route(self, address: str) -> Any:
        gid = gid_of(address).hex()
        text = ":".join(gid[place : place + 4] for place in range(0, 32, 4))
        addr = self.modules["addr"]
        path = addr.GlobalRoute(dgid=addr.GID(text), sgid_index=self.index, hop_limit=64)
        return addr.AHAttr(port_num=1, is_global=1, gr=path)

    def reliable(self) -> tuple[Any, Any]:
        """A reliable queue pair and its completion queue."""
        queue = self.modules["cq"].CQ(self.context, 64)
        qp = self.modules["qp"]
        init = qp.QPInitAttr(
            qp_type=self.enums.IBV_QPT_RC, scq=queue, rcq=queue, cap=qp.QPCap(max_send_wr=32, max_recv_wr=1)
        )
        return qp.QP(self.domain, init), queue

    def connect(self, pair: Any, address: str, number: int) -> None:
        attributes = self.modules["qp"].QPAttr(port_num=1)
        attributes.qp_access_flags = self.enums.IBV_ACCESS_REMOTE_READ
        attributes.path_mtu = self.enums.IBV_MTU_4096
        attributes.dest_qp_num = number
        attributes.max_rd_atomic = attributes.max_dest_rd_atomic = 16
        attributes.min_rnr_timer, attributes.timeout = 12, 16
        attributes.retry_cnt = attributes.rnr_retry = 7
        attributes.ah_attr = self.route(address)
        pair.to_rts(attributes)


def pyverbs_read(modules: dict[str, Any], seconds: float) -> dict[str, float]:
    """READs of 256 KiB, 16 in flight, posted and polled one by one."""
    ports = [PyverbsPort(modules, name) for name in ("rxe0", "rxe1")]
    (answer, _), (ask, queue) = (port.reliable() for port in ports)
    ports[0].connect(answer, ADDRESSES[1], ask.qp_num)
    ports[1].connect(ask, ADDRESSES[0], answer.qp_num)
    source, target = (port.memory(CHUNK_BYTES) for port in ports)
    enums, wr, piece = modules["enums"], modules["wr"], 256 * 1024
    requests = []
    for offset in range(0, CHUNK_BYTES, piece):
        element = wr.SGE(target.buf + offset, piece, target.lkey)
        request = wr.SendWR(wr_id=offset, opcode=enums.IBV_WR_RDMA_READ, num_sge=1, sg=[element])
        request.set_wr_rdma(source.rkey, source.buf + offset)
        requests.append(request)
    for request in requests:
        ask.post_send(request)
    done, start_s = 0, time.monotonic()
    while time.monotonic() - start_s < seconds:
        count, completions = queue.poll(16)
        for completion in completions:
            if completion.status != enums.IBV_WC_SUCCESS:
                raise RuntimeError(f"pyverbs READ: status {completion.status}")
            ask.post_send(requests[completion.wr_id // piece])
        done += count
    return {"read, pyverbs loop (MiB/s)": rate(done * piece, time.monotonic() - start_s)}


def pyverbs_datagrams(modules: dict[str, Any], seconds: float) -> dict[str, float]:
    """UD messages of our size, received, counted and reposted, none looked at."""
    enums, wr, qp = modules["enums"], modules["wr"], modules["qp"]
    sender, receiver = (PyverbsPort(modules, name) for name in ("rxe0", "rxe1"))
    pairs, queues, depth = [], [], 1024
    for port in (sender, receiver):
        queue = modules["cq"].CQ(port.context, 2 * depth)
        attributes = qp.QPAttr(qp_state=enums.IBV_QPS_INIT, port_num=1)
        attributes.qkey = 7
        capacity = qp.QPCap(max_send_wr=depth, max_recv_wr=depth)
        init = qp.QPInitAttr(qp_type=enums.IBV_QPT_UD, scq=queue, rcq=queue, cap=capacity)
        pairs.append(qp.QP(port.domain, init, attributes))
        queues.append(queue)
    room = 40 + MESSAGE_BYTES
    out, rows = sender.memory(MESSAGE_BYTES), receiver.memory(depth * room)
    receives = [
        wr.RecvWR(wr_id=row, num_sge=1, sg=[wr.SGE(rows.buf + row * room, room, rows.lkey)]) for row in range(depth)
    ]
    for each in receives:
        pairs[1].post_recv(each)
    handle = modules["addr"].AH(sender.domain, attr=sender.route(ADDRESSES[1]))
    request = wr.SendWR(num_sge=1, sg=[wr.SGE(out.buf, MESSAGE_BYTES, out.lkey)])
    request.set_wr_ud(handle, pairs[1].qp_num, 7)
    sent = arrived = 0
    start_s = time.monotonic()
    while time.monotonic() - start_s < seconds:
        while sent - arrived < WINDOW_SEGMENTS:
            pairs[0].post_send(request)
            sent += 1
        queues[0].poll(64)
        count, completions = queues[1].poll(64)
        for completion in completions:
            pairs[1].post_recv(receives[completion.wr_id])
        arrived += count
    return {"UD, pyverbs loop (MiB/s)": rate(arrived * SEGMENT_BYTES, time.monotonic() - start_s)}


def main() -> int:
    """Entry point: the last line of the output is JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, required=True)
    args = parser.parse_args()
    modules = load_pyverbs()
    seconds = args.seconds / ROUNDS
    rounds = [
        asyncio.run(ours(seconds))
        | perftest(seconds)
        | pyverbs_read(modules, seconds)
        | pyverbs_datagrams(modules, seconds)
        for _ in range(ROUNDS)
    ]
    print(json.dumps({name: statistics.median(each[name] for each in rounds) for name in rounds[0]}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
