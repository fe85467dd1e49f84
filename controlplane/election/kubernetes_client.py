"""The connection to Kubernetes' API server, by the official client: as a pod, or by a kubeconfig."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import ApiClient, ApiException, Configuration

from controlplane.election.contract import StoreUnavailableError

_NAMESPACE_FILE: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")
_EXPECTED: Final = (HTTPStatus.NOT_FOUND, HTTPStatus.CONFLICT)
"""What tells how an object is, and not that something is wrong."""


async def connected() -> Any:
    """A client of the API server that this process belongs to. Raises StoreUnavailableError."""
    settings = Configuration()
    try:
        # The client itself looks at the variable once, when it is imported.
        if path := os.environ.get("KUBECONFIG"):
            await config.load_kube_config(config_file=path, client_configuration=settings)
        else:
            config.load_incluster_config(client_configuration=settings)
    except (config.ConfigException, OSError) as error:
        raise StoreUnavailableError(f"it is not known where its API server is: {_one_line(error)}") from error
    return ApiClient(settings)


def own_namespace() -> str:
    """Of this pod; `default` elsewhere."""
    try:
        return _NAMESPACE_FILE.read_text(encoding="utf-8").strip()
    except OSError:
        return "default"


@contextlib.contextmanager
def answering() -> Iterator[None]:
    """Failures become StoreUnavailableError; that an object is missing, or another than it was, stays ApiException."""
    try:
        yield
    except ApiException as refusal:
        if refusal.status in _EXPECTED:
            raise
        raise StoreUnavailableError(f"its API server refuses: {refusal.status} {refusal.reason}") from refusal
    except (aiohttp.ClientError, OSError, ValueError, asyncio.IncompleteReadError) as error:
        raise StoreUnavailableError(f"its API server does not answer: {_one_line(error)}") from error


def _one_line(error: BaseException) -> str:
    return " ".join((str(error) or type(error).__name__).split())
