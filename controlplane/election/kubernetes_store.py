"""A Lease object of Kubernetes: its holder writes a renewal down, and every change names the version that it found.

Kubernetes forgets no holder: whoever watches an unchanged Lease for its whole duration takes it. The epoch is an
annotation of the object; `leaseTransitions` is for people.

The connection to Kubernetes' API server, by the official client: as a pod, or by a kubeconfig.

Operators' state in a ConfigMap beside the Lease. The epoch stands in it: no deposed leader writes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final

import aiohttp
from kubernetes.aio import config
from kubernetes.aio.client import (
    ApiClient,
    ApiException,
    Configuration,
    CoordinationV1Api,
    CoreV1Api,
    V1ConfigMap,
    V1Lease,
    V1LeaseSpec,
    V1ObjectMeta,
)

from controlplane.core.election import Hold
from controlplane.election.contract import VALUE_BYTES_MAX, StoreUnavailableError, epoch_after

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


EPOCH: Final = "kvcast/epoch"
"""The annotation."""


class KubernetesLeaseStore:
    """`LeaseStore` in one Lease."""

    def __init__(self, namespace: str, lease: str, name: str, lease_ms: int) -> None:
        """`lease`: name of the object; `name`: of this candidate."""
        self._namespace = namespace
        self._lease = lease
        self._name = name
        self._duration_s = math.ceil(lease_ms / 1000)
        self._api: Any = None
        self._found: Any = None
        """The object as it was seen last; None: there was none."""

    @property
    def place(self) -> str:
        """See `LeaseStore`."""
        return f"Lease {self._namespace}/{self._lease} of Kubernetes"

    @property
    def ends_by_itself(self) -> bool:
        """See `LeaseStore`."""
        return False

    async def look(self) -> Hold | None:
        """See `LeaseStore`."""
        api = await self._connected()
        try:
            with answering():
                self._found = await api.read_namespaced_lease(self._lease, self._namespace)
        except ApiException as refusal:
            if refusal.status != HTTPStatus.NOT_FOUND:
                raise
            self._found = None
        return _hold_of(self._found)

    async def take(self, epoch_above: int, instead_of: Hold | None) -> Hold | None:
        """See `LeaseStore`."""
        found = self._found
        if _hold_of(found) != instead_of:
            return None
        now = datetime.now(UTC)
        epoch = epoch_after(max(epoch_above, epoch_of(found)), int(now.timestamp() * 1000))
        before = 0 if found is None else found.spec.lease_transitions or 0
        spec = V1LeaseSpec(
            holder_identity=self._name,
            lease_duration_seconds=self._duration_s,
            acquire_time=now,
            renew_time=now,
            lease_transitions=before if found is None else before + 1,
        )
        return await self._write(found, spec, epoch)

    async def renew(self, hold: Hold) -> Hold | None:
        """See `LeaseStore`."""
        for _ in range(2):
            found, mine = self._found, _hold_of(self._found)
            if mine is None or (mine.holder, mine.epoch) != (hold.holder, hold.epoch):
                return None
            found.spec.renew_time = datetime.now(UTC)
            written = await self._write(found, found.spec, hold.epoch)
            if written is not None:
                return written
            # Somebody else's now, or a renewal of its own whose answer never came: a look tells.
            await self.look()
        return None

    async def release(self, hold: Hold) -> None:
        """See `LeaseStore`."""
        found = self._found
        if _hold_of(found) == hold:
            found.spec.holder_identity = ""
            await self._write(found, found.spec, hold.epoch)

    async def watch(self, tell: Callable[[], None]) -> None:
        """See `LeaseStore`: nothing is told, candidates look often enough."""
        await asyncio.Event().wait()

    async def close(self) -> None:
        """See `LeaseStore`."""
        api, self._api = self._api, None
        if api is not None:
            await api.api_client.close()

    # -- inside

    async def _connected(self) -> Any:
        if self._api is None:
            self._api = CoordinationV1Api(await connected())
        return self._api

    async def _write(self, found: Any, spec: Any, epoch: int) -> Hold | None:
        """The object in another state, if it is as it was found; None: it is not."""
        api = await self._connected()
        # Labels and annotations of others stay.
        metadata = V1ObjectMeta(name=self._lease) if found is None else found.metadata
        metadata.annotations = {**(metadata.annotations or {}), EPOCH: str(epoch)}
        body = V1Lease(metadata=metadata, spec=spec)
        try:
            with answering():
                if found is None:
                    self._found = await api.create_namespaced_lease(self._namespace, body)
                else:
                    self._found = await api.replace_namespaced_lease(self._lease, self._namespace, body)
        except ApiException as refusal:
            if refusal.status in (HTTPStatus.CONFLICT, HTTPStatus.NOT_FOUND):
                return None
            raise
        return _hold_of(self._found)


def _hold_of(found: Any) -> Hold | None:
    if found is None or found.spec is None or not found.spec.holder_identity:
        return None
    lasts_ns = (found.spec.lease_duration_seconds or 0) * 1_000_000_000
    return Hold(found.spec.holder_identity, epoch_of(found), found.metadata.resource_version, lasts_ns)


def epoch_of(found: Any) -> int:
    """The epoch in an object's annotations; 0: there is none. Raises StoreUnavailableError."""
    said = "0" if found is None else (found.metadata.annotations or {}).get(EPOCH, "0")
    if not said.isdigit() or len(said) > 20:
        raise StoreUnavailableError(f"the annotation {EPOCH} of the Lease is no number: it is not a controller's")
    return int(said)


_KEY: Final = "operator-state.json"


class KubernetesState:
    """`StatePlace` in one ConfigMap."""

    def __init__(self, namespace: str, name: str) -> None:
        self._namespace = namespace
        self._name = name
        self._api: Any = None

    @property
    def place(self) -> str:
        """See `StatePlace`."""
        return f"ConfigMap {self._namespace}/{self._name} of Kubernetes"

    async def load(self) -> bytes | None:
        """See `StatePlace`."""
        found = await self._find()
        content = None if found is None else (found.data or {}).get(_KEY)
        return None if content is None else content.encode()

    async def save(self, content: bytes, hold: Hold) -> None:
        """See `StatePlace`."""
        if len(content) > VALUE_BYTES_MAX:
            raise StoreUnavailableError(f"{len(content)} bytes are too many for it: unpin chunks from the switch")
        found = await self._find()
        if epoch_of(found) > hold.epoch:
            raise StoreUnavailableError("another controller leads")
        metadata = V1ObjectMeta(name=self._name, annotations={EPOCH: str(hold.epoch)})
        body = V1ConfigMap(metadata=metadata, data={_KEY: content.decode()})
        try:
            with answering():
                if found is None:
                    await self._api.create_namespaced_config_map(self._namespace, body)
                else:
                    metadata.resource_version = found.metadata.resource_version
                    await self._api.replace_namespaced_config_map(self._name, self._namespace, body)
        except ApiException as refusal:
            raise StoreUnavailableError("somebody else has changed it") from refusal

    async def close(self) -> None:
        """See `StatePlace`."""
        api, self._api = self._api, None
        if api is not None:
            await api.api_client.close()

    async def _find(self) -> Any:
        if self._api is None:
            self._api = CoreV1Api(await connected())
        try:
            with answering():
                return await self._api.read_namespaced_config_map(self._name, self._namespace)
        except ApiException as refusal:
            if refusal.status != HTTPStatus.NOT_FOUND:
                raise
            return None
