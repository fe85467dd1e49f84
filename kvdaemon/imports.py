"""How a daemon imports what it is made of, and what gRPC reads from the environment when it is imported, which no
option of its Python API sets: called at the very start of a process; what the environment says already stays.
"""

from __future__ import annotations

import contextlib
import gc
import os
from collections.abc import Iterator
from typing import Final


@contextlib.contextmanager
def without_collections() -> Iterator[None]:
    """Import inside this context: nobody looks for garbage meanwhile.

    Modules and classes stay. Python would visit them again and again as they become more, for a fifth of all that a
    daemon computes until it is ready.
    """
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


CIPHERS_VARIABLE: Final = "GRPC_SSL_CIPHER_SUITES"
TLS13_ONLY: Final = "ECDHE-PSK-CHACHA20-POLY1305"
"""gRPC's Python API has no least version of TLS. The variable lists what TLS 1.2 may use; TLS 1.3 has a list of its own
(RFC 8446, B.4). With a suite that needs a key that both sides have beforehand, and none has, TLS 1.2 never works."""


def prepare_grpc() -> None:
    """TLS 1.3 and nothing before; no log lines of gRPC's own: their content becomes lines of ours."""
    os.environ.setdefault(CIPHERS_VARIABLE, TLS13_ONLY)
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
