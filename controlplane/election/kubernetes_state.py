"""Operators' state in a ConfigMap beside the Lease. The epoch stands in it: no deposed leader writes it."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any, Final

# By name: the client loads 258 modules when it is first asked for one of them, two seconds that a lease would not wait.
from kubernetes.aio.client import ApiException, CoreV1Api, V1ConfigMap, V1ObjectMeta

from controlplane.core.election import Hold
from controlplane.election.contract import VALUE_BYTES_MAX, StoreUnavailableError
from controlplane.election.kubernetes_client import answering, connected
from controlplane.election.kubernetes_store import EPOCH, epoch_of

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
