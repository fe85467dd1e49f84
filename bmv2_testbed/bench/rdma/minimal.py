"""The least that a program has to do on the same ports: `ib_read_bw`, and loops of pyverbs. Runs in the guest."""

from __future__ import annotations

import importlib
import subprocess
import sys
import time
from typing import Any

from bmv2_testbed.bench.rdma.slices import Slice
from bmv2_testbed.guests.pair import ADDRESSES
from hostagent.transport.verbs.device import gid_of
from kvproto.wire.layouts import KV_DATA_BYTES

PIECE_BYTES = 256 * 1024
READS_IN_FLIGHT = 15
WINDOW_MESSAGES = 256
"""Messages sent ahead of the arrived ones: well below every queue on the way."""
SETTLE_S = 0.5
"""Messages still missing this long after the last arrival are lost. A window keeps the one core busy for 0.1 s."""
_RECEIVES = 1024
_DEADLINE_S = 30.0
_GRH_BYTES = 40
_DEBIAN_PACKAGES = "/usr/lib/python3/dist-packages"


def ib_read_bw(seconds: float) -> Slice:
    """perftest's READs over one queue pair, for about `seconds`. Its CPU time is not known."""
    count = max(16, int(seconds * 80))
    common = ["ib_read_bw", "-x", "1", "-s", str(PIECE_BYTES), "-n", str(count), "-F"]
    deadline_s = time.monotonic() + _DEADLINE_S
    said = ""
    while time.monotonic() < deadline_s:
        server = subprocess.Popen([*common, "-d", "rxe0"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            said = _ib_read_bw_client(common, deadline_s)
        finally:
            server.kill()
            server.wait()
        line = next(line for line in said.splitlines() if line.split()[:1] == [str(PIECE_BYTES)])
        rate = float(line.split()[3]) * 2**20
        # Once in a while it says 0.00, under emulation.
        if rate > 0:
            return Slice(count * PIECE_BYTES, count * PIECE_BYTES / rate)
    raise RuntimeError(f"ib_read_bw: {said.strip()[-300:]}")


def _ib_read_bw_client(common: list[str], deadline_s: float) -> str:
    """Try until the server listens. Only the data that the two exchange beforehand goes over loopback."""
    words = [*common, "-d", "rxe1", "127.0.0.1"]
    while True:
        client = subprocess.run(words, capture_output=True, text=True, check=False)
        if client.returncode == 0:
            return client.stdout
        if time.monotonic() >= deadline_s:
            raise RuntimeError(f"ib_read_bw: {(client.stderr or client.stdout).strip()[-300:]}")


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

    def gid(self, address: str) -> Any:
        """Of an IPv4 address."""
        gid = gid_of(address).hex()
        return self.modules["addr"].GID(":".join(gid[place : place + 4] for place in range(0, 32, 4)))

    def route(self, address: str) -> Any:
        addr = self.modules["addr"]
        path = addr.GlobalRoute(dgid=self.gid(address), sgid_index=self.index, hop_limit=64)
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

    def datagrams(self, depth: int, qkey: int) -> tuple[Any, Any]:
        """A queue pair for UD messages and its completion queue."""
        qp = self.modules["qp"]
        queue = self.modules["cq"].CQ(self.context, 2 * depth)
        attributes = qp.QPAttr(qp_state=self.enums.IBV_QPS_INIT, port_num=1)
        attributes.qkey = qkey
        init = qp.QPInitAttr(
            qp_type=self.enums.IBV_QPT_UD,
            scq=queue,
            rcq=queue,
            cap=qp.QPCap(max_send_wr=depth, max_recv_wr=depth),
        )
        return qp.QP(self.domain, init, attributes), queue


class PyverbsReads:
    """READs of one piece each, posted and polled one by one."""

    def __init__(self, modules: dict[str, Any]) -> None:
        self._ports = [PyverbsPort(modules, name) for name in ("rxe0", "rxe1")]
        (self._answer, self._idle), (self._ask, self._queue) = (port.reliable() for port in self._ports)
        self._ports[0].connect(self._answer, ADDRESSES[1], self._ask.qp_num)
        self._ports[1].connect(self._ask, ADDRESSES[0], self._answer.qp_num)
        size_bytes = READS_IN_FLIGHT * PIECE_BYTES
        self._source, self._target = (port.memory(size_bytes) for port in self._ports)
        wr = modules["wr"]
        self._success = modules["enums"].IBV_WC_SUCCESS
        self._requests = []
        for index in range(READS_IN_FLIGHT):
            offset = index * PIECE_BYTES
            element = wr.SGE(self._target.buf + offset, PIECE_BYTES, self._target.lkey)
            request = wr.SendWR(wr_id=index, opcode=modules["enums"].IBV_WR_RDMA_READ, num_sge=1, sg=[element])
            request.set_wr_rdma(self._source.rkey, self._source.buf + offset)
            self._requests.append(request)

    def run(self, seconds: float) -> Slice:
        """Ends with nothing in flight."""
        for request in self._requests:
            self._ask.post_send(request)
        done, in_flight, start_s, cpu_s = 0, READS_IN_FLIGHT, time.monotonic(), time.process_time()
        while in_flight:
            for work in self._poll():
                done += 1
                if time.monotonic() - start_s < seconds:
                    self._ask.post_send(self._requests[work])
                else:
                    in_flight -= 1
        return Slice(done * PIECE_BYTES, time.monotonic() - start_s, time.process_time() - cpu_s)

    def _poll(self) -> list[int]:
        _, completions = self._queue.poll(16)
        for completion in completions:
            if completion.status != self._success:
                raise RuntimeError(f"pyverbs READ: status {completion.status}")
        return [completion.wr_id for completion in completions]


class PyverbsDatagrams:
    """UD messages as large as a cast's, received, counted and reposted, none looked at."""

    def __init__(self, modules: dict[str, Any], segment_bytes: int) -> None:
        message_bytes = KV_DATA_BYTES + segment_bytes
        wr = modules["wr"]
        self._segment_bytes = segment_bytes
        self._ports = [PyverbsPort(modules, name) for name in ("rxe0", "rxe1")]
        (self._sends, self._sent_queue), (self._receives, self._queue) = (
            port.datagrams(_RECEIVES, 7) for port in self._ports
        )
        room = _GRH_BYTES + message_bytes
        self._out, self._rows = self._ports[0].memory(message_bytes), self._ports[1].memory(_RECEIVES * room)
        self._rooms = [
            wr.RecvWR(wr_id=row, num_sge=1, sg=[wr.SGE(self._rows.buf + row * room, room, self._rows.lkey)])
            for row in range(_RECEIVES)
        ]
        for each in self._rooms:
            self._receives.post_recv(each)
        handle = modules["addr"].AH(self._ports[0].domain, attr=self._ports[0].route(ADDRESSES[1]))
        self._request = wr.SendWR(num_sge=1, sg=[wr.SGE(self._out.buf, message_bytes, self._out.lkey)])
        self._request.set_wr_ud(handle, self._receives.qp_num, 7)

    def run(self, seconds: float) -> Slice:
        """Send for `seconds`, then wait until everything has arrived, or nothing has for a while."""
        sent = arrived = 0
        start_s, cpu_s = time.monotonic(), time.process_time()
        last_s = now_s = start_s
        while now_s - start_s < seconds or (arrived < sent and now_s - last_s < SETTLE_S):
            while sent - arrived < WINDOW_MESSAGES and now_s - start_s < seconds:
                self._sends.post_send(self._request)
                sent += 1
            count = self._receive()
            now_s = time.monotonic()
            if count:
                arrived, last_s = arrived + count, now_s
        return Slice(arrived * self._segment_bytes, last_s - start_s, time.process_time() - cpu_s, sent - arrived)

    def _receive(self) -> int:
        self._sent_queue.poll(64)
        count, completions = self._queue.poll(64)
        for completion in completions:
            self._receives.post_recv(self._rooms[completion.wr_id])
        return int(count)
