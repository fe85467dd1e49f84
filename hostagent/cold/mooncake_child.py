"""Mooncake's client in a process of its own: `python -m hostagent.cold.mooncake_child SOCKET MEMORY PARENT SETUP`.

Its calls block, its start holds the interpreter's lock (for 92 s where there is no master), and neither can be
cancelled. The agent cancels them by ending the process. SOCKET is a SOCK_SEQPACKET with a JSON object in each message:

    {"number": 7, "do": "get", "name": "kvcast/00/0011", "at": 4096, "size": 160}   a request
    {"number": 7, "status": 160}                                                    its answer, Mooncake's own status

MEMORY is shared with the agent: a put reads from it, a get writes into it. The first message is
{"number": 0, "status": 0} once the client has started, or has an "error" in place of the status.
"""

from __future__ import annotations

import ctypes
import importlib
import json
import mmap
import os
import signal
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

MESSAGE_BYTES_MAX: Final = 4096
PR_SET_PDEATHSIG: Final = 1
"""prctl(2)."""
CALLS_AT_ONCE: Final = 8


class Client:
    """Calls of Mooncake's client by name; each returns its status."""

    def __init__(self, memory: mmap.mmap, setup: dict[str, Any]) -> None:
        """Starts it; blocks. Raises ImportError, RuntimeError."""
        module = importlib.import_module("mooncake.store")
        self._base = ctypes.addressof(ctypes.c_char.from_buffer(memory))
        self._store = module.MooncakeDistributedStore()
        self._replicas = module.ReplicateConfig()
        self._replicas.replica_num = setup["replicas"]
        status = self._store.setup(
            setup["address"], setup["metadata_server"], 0, 0, setup["protocol"], setup["devices"], setup["master"]
        )
        if status == 0:
            status = self._store.register_buffer(self._base, len(memory))
        if status != 0:
            raise RuntimeError(f"Mooncake's client does not start: status {status}")
        self.calls: dict[str, Callable[[str, int, int], int]] = {
            "put": self._put,
            "get": self._get,
            "size": lambda name, at, size: int(self._store.get_size(name)),
            "exists": lambda name, at, size: int(self._store.is_exist(name)),
            "delete": lambda name, at, size: int(self._store.remove(name, True)),
        }

    def _put(self, name: str, at: int, size: int) -> int:
        # `put_from` keeps the old object where there is one of this name.
        return int(self._store.upsert_from(name, self._base + at, size, self._replicas))

    def _get(self, name: str, at: int, size: int) -> int:
        """The beginning of an object."""
        found = self._store.get_into_ranges([self._base + at], [[name]], [[[0]]], [[[0]]], [[[size]]])
        return int(found[0][0][0])


def main() -> int:
    """Entry point; ends with the agent, and when the agent closes the socket."""
    connection = socket.socket(fileno=int(sys.argv[1]))
    _end_with(parent=int(sys.argv[3]))
    memory = mmap.mmap(int(sys.argv[2]), 0)

    def answer(number: int, **found: object) -> None:
        connection.send(json.dumps({"number": number, **found}).encode())

    try:
        client = Client(memory, json.loads(sys.argv[4]))
    except (ImportError, RuntimeError) as error:
        answer(0, error=str(error))
        return 1
    answer(0, status=0)

    def carry_out(request: dict[str, Any]) -> None:
        status = client.calls[request["do"]](request["name"], request["at"], request["size"])
        answer(request["number"], status=status)

    with ThreadPoolExecutor(CALLS_AT_ONCE) as threads:
        while message := connection.recv(MESSAGE_BYTES_MAX):
            threads.submit(carry_out, json.loads(message)).add_done_callback(_stop_at_a_defect)
        # The client lends no memory, so nothing has to be handed back, and its own end can take many seconds.
        os._exit(0)


def _end_with(parent: int) -> None:
    """This process ends when its parent's thread does, or has ended already."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def _stop_at_a_defect(call: Any) -> None:
    """A call that raised has no answer: the agent learns it from this process's end."""
    if call.exception() is not None:
        print(f"a call of Mooncake's client raised {call.exception()!r}", file=sys.stderr, flush=True)
        os._exit(1)


if __name__ == "__main__":
    raise SystemExit(main())
