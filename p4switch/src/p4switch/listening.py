"""Why an address cannot be listened on, and what to change."""

from __future__ import annotations

import errno
import ipaddress
import socket

from p4switch.errors import SwitchError

PORT_NUMBER_MAX = 65535


def host_and_port(address: str, flag: str) -> tuple[str, int]:
    """HOST:PORT ([HOST]:PORT for IPv6), port 0 allowed. Raises SwitchError, which names `flag`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > PORT_NUMBER_MAX:
        raise SwitchError(f"cannot listen on {address!r}: write HOST:PORT (port 0 picks one) after {flag}")
    return host.removeprefix("[").removesuffix("]"), int(port)


def is_local(address: str) -> bool:
    """Whether only this machine reaches it: unix:PATH, or HOST:PORT of the loopback interface."""
    if address.startswith("unix:"):
        return True
    host = address.rpartition(":")[0].removeprefix("[").removesuffix("]")
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refusal(address: str, error: OSError, flag: str) -> SwitchError:
    """The error for a person: what is wrong with `address`, and the remedy with `flag`."""
    match error.errno:
        case errno.EADDRINUSE:
            reason = f"address in use: end the process that listens there, or choose another port with {flag}"
        case errno.EACCES | errno.EPERM:
            reason = (
                "Permission denied: ports below 1024 need root or CAP_NET_BIND_SERVICE;"
                f" choose a port from 1024 on with {flag}"
            )
        case errno.EADDRNOTAVAIL:
            reason = f"no address of this machine: choose one that `ip address` shows with {flag}"
        case _:
            reason = f"{error.strerror or error}; choose another with {flag}"
    return SwitchError(f"cannot listen on {address}: {reason}")


def why_not(address: str, flag: str) -> SwitchError:
    """For a library that only says that it cannot listen: the reason is found by trying."""
    host, port = host_and_port(address, flag)
    try:
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind) as trial:
            trial.bind(where)
            trial.listen()
    except OSError as error:
        return refusal(address, error, flag)
    return SwitchError(f"cannot listen on {address}: choose another with {flag}")
