"""The controller's gRPC server: its address, its certificates, who may call what."""

from __future__ import annotations

import grpc.aio

from controlplane.core.limits import GRPC_MESSAGE_BYTES_MAX
from controlplane.rpc.coordinator import AgentDesk, Coordinator
from controlplane.rpc.operator import Operator, OperatorDesk
from controlplane.rpc.peers import Admission
from kvdaemon.errors import CannotRunError
from kvdaemon.tls import Certificates
from kvproto.rpc import control_pb2_grpc
from p4switch.doorkeeper import OPTIONS, Doorkeeper

_OPTIONS = [
    # Two controllers on one port would each get some of the agents.
    ("grpc.so_reuseport", 0),
    *OPTIONS,
    ("grpc.max_receive_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", GRPC_MESSAGE_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.min_ping_interval_without_data_ms", 1_000),
]


async def serve(
    listen: str, agents: AgentDesk, operators: OperatorDesk, certificates: Certificates | None
) -> tuple[grpc.aio.Server, str, Doorkeeper]:
    """Start at HOST:PORT (port 0 takes any). `certificates` None: no TLS, and everybody may call everything.

    Returns the server, the address that it has, and who has to look after it. Raises CannotRunError.
    """
    admission = Admission(None if certificates is None else certificates.trust_domain)
    server = grpc.aio.server(interceptors=[admission], options=_OPTIONS)
    control_pb2_grpc.add_CoordinatorServicer_to_server(Coordinator(agents), server)
    control_pb2_grpc.add_OperatorServicer_to_server(Operator(operators), server)
    try:
        if certificates is None:
            port = server.add_insecure_port(listen)
        else:
            port = server.add_secure_port(listen, certificates.for_server())
    except RuntimeError:
        port = 0
    if port == 0:
        raise CannotRunError(f"cannot listen on {listen}: is another controller running, is it our address?")
    admission.door = Doorkeeper(port)
    await server.start()
    return server, f"{listen.rpartition(':')[0]}:{port}", admission.door
