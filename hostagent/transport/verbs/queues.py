"""Completion queues and queue pairs, as thin as they can be: made, moved through their states, posted to, destroyed.

Owns the C objects and their order of destruction; others decide what to send through them.
"""

from __future__ import annotations

import ctypes
import os
from ctypes import byref
from typing import Any

import numpy as np
import numpy.typing as npt

from hostagent.transport.verbs import abi
from hostagent.transport.verbs.device import Domain, RdmaPort, VerbsError, check_pointer, check_status

Completions = npt.NDArray[np.void]
"""Records of `abi.WC`, shape (n,)."""


class CompletionChannel:
    """A file descriptor that becomes readable when an armed completion queue gets something."""

    def __init__(self, port: RdmaPort) -> None:
        self._library = port.library
        self._channel: Any = check_pointer(
            "ibv_create_comp_channel", port.library.ibv_create_comp_channel(port.context)
        )
        self.fd: int = self._channel.contents.fd
        os.set_blocking(self.fd, False)

    @property
    def pointer(self) -> Any:
        """The `ibv_comp_channel`, for calls of the library."""
        return self._channel

    def close(self) -> None:
        """Call after closing all queues on it."""
        check_status("ibv_destroy_comp_channel", self._library.ibv_destroy_comp_channel(self._channel))


class CompletionQueue:
    """Completions of one or more queue pairs, taken in batches of up to `batch_count`."""

    def __init__(self, port: RdmaPort, channel: CompletionChannel, entries: int, batch_count: int) -> None:
        self._port = port
        self.batch_count = batch_count
        self._completions = np.zeros(batch_count, abi.WC)
        self._words = self._completions.view(np.uint64).data
        self._address = self._completions.ctypes.data
        self.pointer: int = check_pointer(
            "ibv_create_cq",
            port.library.ibv_create_cq(
                port.context, min(entries, port.facts.completions_max), None, channel.pointer, 0
            ),
        )

    def poll(self) -> Completions:
        """What has completed; valid until the next call. Raises VerbsError when the queue is broken (overrun)."""
        count = self._port.poll_cq(self.pointer, self.batch_count, self._address)
        if count < 0:
            raise VerbsError("ibv_poll_cq failed: the completion queue is broken")
        return self._completions[:count]

    def close(self) -> None:
        """Call after destroying all queue pairs on it."""
        check_status("ibv_destroy_cq", self._port.library.ibv_destroy_cq(self.pointer))


class QueuePair:
    """A queue pair of type RC or UD."""

    def __init__(
        self,
        port: RdmaPort,
        kind: int,
        send: tuple[CompletionQueue, int, int],
        receive: tuple[CompletionQueue, int],
        domain: Domain | None = None,
    ) -> None:
        """`send`: queue, work requests, pieces of memory in each; `receive`: queue, work requests; `domain`: whose
        memory it may touch, None: the port's."""
        self._port = port
        self._groups: list[bytes] = []
        capacity = abi.QpCap(send[1], receive[1], send[2], 1, 0)
        attr = abi.QpInitAttr(None, send[0].pointer, receive[0].pointer, None, capacity, kind, 0)
        self._pointer: Any = check_pointer(
            "ibv_create_qp", port.library.ibv_create_qp((domain or port.domain).pointer, byref(attr))
        )
        self.address: int = ctypes.addressof(self._pointer.contents)
        """Of the `ibv_qp`, for whoever posts by himself."""
        self.number: int = self._pointer.contents.qp_num
        self._bad = ctypes.c_void_p()

    def modify(self, state: int, mask: int = 0, **attributes: Any) -> None:
        """Move to a state, with the attributes that `mask` names."""
        attr = abi.QpAttr(qp_state=state, **attributes)
        result = self._port.library.ibv_modify_qp(self._pointer, byref(attr), abi.QP_STATE | mask)
        check_status("ibv_modify_qp", result)

    def post_send(self, first: int) -> None:
        """Post the chain of send work requests that begins at this address. Raises VerbsError."""
        check_status("ibv_post_send", self._port.post_send(self.address, first, byref(self._bad)))

    def post_recv(self, first: int) -> None:
        """Post the chain of receive work requests that begins at this address. Raises VerbsError."""
        check_status("ibv_post_recv", self._port.post_recv(self.address, first, byref(self._bad)))

    def attach(self, group_gid: bytes) -> None:
        """Receive messages to the group. Raises VerbsError."""
        check_status("ibv_attach_mcast", self._port.library.ibv_attach_mcast(self._pointer, group_gid, 0))
        self._groups.append(group_gid)

    def destroy(self) -> None:
        """Detach and destroy; when it returns, the NIC no longer touches memory on its behalf. Idempotent."""
        if self._pointer is None:
            return
        pointer, self._pointer = self._pointer, None
        try:
            for group_gid in self._groups:
                check_status("ibv_detach_mcast", self._port.library.ibv_detach_mcast(pointer, group_gid, 0))
        finally:
            check_status("ibv_destroy_qp", self._port.library.ibv_destroy_qp(pointer))


def route(port: RdmaPort, destination_gid: bytes, hop_limit: int) -> abi.AhAttr:
    """The address of a peer or a group, as seen from this port."""
    return abi.AhAttr(
        dgid=(ctypes.c_uint8 * 16)(*destination_gid),
        sgid_index=port.facts.gid_index,
        hop_limit=hop_limit,
        is_global=1,
        port_num=port.facts.port,
    )


class AddressHandle:
    """Where UD messages go."""

    def __init__(self, port: RdmaPort, destination_gid: bytes, hop_limit: int) -> None:
        self._library = port.library
        attr = route(port, destination_gid, hop_limit)
        self.pointer: int = check_pointer("ibv_create_ah", port.library.ibv_create_ah(port.domain.pointer, byref(attr)))

    def close(self) -> None:
        """Call after the last send with it has completed."""
        check_status("ibv_destroy_ah", self._library.ibv_destroy_ah(self.pointer))
