"""What an agent takes of its machine besides memory and network: ports, the engines' socket, the disk; and whether a
controller answers. Each is tried as the agent would take it, and given back.

The agent's cold store, tried out: a small object put, read, compared and deleted.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Final

import grpc

from hostagent.cold.cold_opening import open_store
from hostagent.cold.cold_options import ColdConfig
from hostagent.cold.stores import ColdStoreError
from hostagent.cold.tier import Trial, try_out, within
from hostagent.config import AgentConfig
from hostagent.disk.disk_options import DiskConfig
from hostagent.transport.base import TransportError
from hostagent.transport.endpoints import endpoint_of, family_of
from hostagent.transport.interfaces import interface_address
from kvcast.doctor.findings import Finding, Level, judged
from kvclient.attach import who_may
from kvdaemon.errors import CannotRunError
from kvdaemon.identity import Role
from kvdaemon.tls import Certificates, TlsError
from kvdaemon.what_answers import what_answers
from kvproto.rpc import control_pb2 as rpc
from kvproto.rpc import control_pb2_grpc
from kvproto.units import format_bytes

TRIAL_BYTES: Final = 64 << 10
_WANTED: Final = "an object put, read and deleted"


def cold_store(config: ColdConfig) -> Finding:
    """Whether the store takes an object and gives it back."""
    try:
        found = asyncio.run(_try_out(config))
    except CannotRunError as error:
        return Finding("cold store", str(error), _WANTED, Level.MISSING, "the section cold of the configuration")
    except ColdStoreError as error:
        remedy = "start the service, or correct cold.options and cold.secrets; the agent runs without it until then"
        return Finding("cold store", f"{config.scheme}: {error}", _WANTED, Level.SLOW, remedy + _permissions(config))
    if isinstance(found, ColdStoreError):
        remedy = "room in the store, and permission to write: until then the agent only reads it"
        words = f"{config.scheme} takes nothing: {found}"
        return Finding("cold store", words, _WANTED, Level.SLOW, remedy + _permissions(config))
    times = f"put {found.put_s * 1e3:.1f} ms, get {found.get_s * 1e3:.1f} ms"
    if found.undeletable:
        words = f"{config.scheme}: {times}; it deletes nothing: {found.undeletable}"
        remedy = "permission to delete, or a rule of the store that deletes old objects"
        return Finding("cold store", words, _WANTED, Level.NOTE, remedy + _permissions(config))
    return Finding("cold store", f"{config.scheme}: {times}", _WANTED)


def _permissions(config: ColdConfig) -> str:
    """What S3 must allow; it says of no request which of these it misses."""
    if config.scheme != "s3":
        return ""
    return "; S3 must allow s3:GetObject, s3:PutObject, s3:DeleteObject on the objects, s3:ListBucket on the bucket"


async def _try_out(config: ColdConfig) -> Trial | ColdStoreError:
    store = open_store(config)
    try:
        return await try_out(store, f"kvcast/doctor-{os.getpid()}", TRIAL_BYTES, partial(within, config.timeout_s))
    finally:
        await store.close()


_ANSWER_S = 3.0


def ports(config: AgentConfig) -> Finding:
    """Whether the agent can have the ports of its configuration. It must not run: it has them itself."""
    taken = []
    for name, kind, address, port in _wanted(config):
        with socket.socket(family_of(address), kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, int(kind is socket.SOCK_STREAM))
            try:
                probe.bind((address, port))
            except OSError as error:
                if error.errno == errno.EADDRNOTAVAIL:
                    continue  # the finding on the address says it
                taken.append(f"{name} {endpoint_of(address, port)}: {error.strerror}")
    remedy = "end what uses them (ss -lnptu shows it), or set other ports in agent.yaml"
    return judged("ports", "; ".join(taken) or "free", "free", not taken, Level.MISSING, remedy)


def _wanted(config: AgentConfig) -> Iterator[tuple[str, socket.SocketKind, str, int]]:
    data = config.data
    try:
        address = interface_address(data)
    except TransportError:
        return
    yield "data.cast_port", socket.SOCK_DGRAM, address, data.cast_port
    yield "data.control_port", socket.SOCK_DGRAM, address, data.control_port
    yield "data.read_port", socket.SOCK_STREAM, address, data.read_port
    yield "http.port", socket.SOCK_STREAM, *config.http


def api_place(path: str) -> Finding:
    """Whether the engines' socket can be made."""
    place = Path(path).absolute()
    folder = next(one for one in place.parents if one.exists())
    wanted = f"{place} can be made"
    remedy = "set api.socket to another path, or run the agent as a user that may write there"
    if place.exists() and not place.is_socket():
        return Finding("api.socket", "a file that is no socket is there", wanted, Level.MISSING, remedy)
    good = folder.is_dir() and os.access(folder, os.W_OK)
    found = str(place) if good else f"{folder}: not writable"
    return judged("api.socket", found, wanted, good, Level.MISSING, remedy)


def no_access(path: str) -> Finding:
    """Somebody has the engines' socket, and this user may not use it."""
    found, _, remedy = who_may(path).partition("; ")
    return Finding("api.socket", found, f"{path} for engines", Level.MISSING, remedy or "a user who may")


def disk(config: DiskConfig) -> Finding:
    """Whether the folder of the disk tier can be written to and has room; what lies there already counts."""
    folder = Path(config.path).absolute()
    existing = next(one for one in (folder, *folder.parents) if one.exists())
    wanted = f"{format_bytes(config.size_bytes)} at {folder}"
    if not existing.is_dir() or not os.access(existing, os.W_OK):
        remedy = "disk.path at a folder that the agent's user may write to"
        return Finding("disk", f"{existing}: not writable", wanted, Level.MISSING, remedy)
    held = sum(file.stat().st_blocks * 512 for file in folder.iterdir() if file.is_file()) if folder.is_dir() else 0
    facts = os.statvfs(existing)
    room = held + facts.f_bavail * facts.f_frsize
    found = f"{format_bytes(room)} free"
    return judged("disk", found, wanted, room >= config.size_bytes, Level.MISSING, "a smaller disk.size, or more room")


def controllers(config: AgentConfig) -> list[Finding]:
    """One line for each; asked for its status. One that does not answer matters less while another one does."""
    certificates = None
    if config.tls is not None:
        try:
            certificates = Certificates(config.tls, Role.AGENT, config.node)
        except TlsError as error:
            remedy = "kvcast pki makes certificates; see docs/how-to/certificates.md"
            return [Finding("certificate", str(error), "this node's own", Level.MISSING, remedy)]
    answers = {address: _status(address, certificates) for address in config.controllers}
    level = Level.SLOW if any(not problem for _, problem in answers.values()) else Level.MISSING
    remedy = "start kvcast-controller, or correct controller.address: without one only local chunks are known"
    return [
        judged("controller", f"{address}: {problem or state}", "answers", not problem, level, remedy)
        for address, (state, problem) in answers.items()
    ]


def _status(address: str, certificates: Certificates | None) -> tuple[str, str]:
    """What a controller says of itself, or why it does not."""
    with _channel(address, certificates) as channel:
        try:
            status = control_pb2_grpc.OperatorStub(channel).Status(rpc.StatusRequest(), timeout=_ANSWER_S)
        except grpc.RpcError as error:
            code = error.code() if isinstance(error, grpc.Call) else None
            if code is grpc.StatusCode.PERMISSION_DENIED:
                return "answers", ""  # operators only: it is one
            if code is grpc.StatusCode.UNIMPLEMENTED:
                return "", "answers, and is no kvcast-controller"
            return "", (certificates.why_not(address) if certificates is not None else "") or what_answers(address)
    if status.leadership == "lapsed":
        return "answers, but its lease has run out: it starts nothing", ""
    return "is on standby" if status.switch_view.state == "standby" else "answers", ""


def _channel(address: str, certificates: Certificates | None) -> grpc.Channel:
    direct = ("grpc.enable_http_proxy", 0)
    if certificates is None:
        return grpc.insecure_channel(address, options=[direct])
    credentials, options = certificates.for_channel()
    return grpc.secure_channel(address, credentials, [direct, *options])
