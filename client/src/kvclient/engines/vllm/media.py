"""What images, sounds and the like are: digests of their data, as the engine computes with them.

vLLM names a medium by a hash of its data, by a name that the client gave, or by a counter, and does not say by which.
A name may stand for other data on another engine, or have been given on purpose to stand for somebody else's. So a
medium has the digest of the data that came with it. vLLM also leaves data out that it has seen, and keeps what encoders
made of data by its name: then the digest is that of the data that the name came with before. A name that came with
different data has none.
"""

from __future__ import annotations

import hashlib
import weakref
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import torch

MEDIA_MAX: Final = 1 << 16
"""Names remembered; more than vLLM keeps encoded media of."""


@dataclass(slots=True)
class _Seen:
    digest: str | None
    """None: the name came with different data."""
    data: weakref.ref[Any]
    """The object that was read: vLLM often brings the same one again."""


class MediaDigests:
    """One engine's."""

    def __init__(self, *, trusted: bool = True) -> None:
        """`trusted`: the engine encodes media itself. Another one's encoder is asked by name, so no data says what it
        made."""
        self._trusted = trusted
        self._seen: OrderedDict[str, _Seen] = OrderedDict()

    def of(self, name: str, data: Any) -> str | None:
        """The digest of a medium that vLLM calls `name`; None: it has none. `data`: vLLM's item, or None."""
        if not self._trusted:
            return None
        seen = self._seen.get(name)
        if seen is not None:
            self._seen.move_to_end(name)
            if data is None or seen.data() is data:
                return seen.digest
        digest = data_digest(data) if data is not None else None
        if digest is None:
            return None
        if seen is not None and seen.digest != digest:
            digest = None
        self._seen[name] = _Seen(digest, weakref.ref(data))
        if len(self._seen) > MEDIA_MAX:
            self._seen.popitem(last=False)
        return digest

    def weights_changed(self) -> None:
        """What encoders made of media so far, they made with other weights, and vLLM may go on with it."""
        for seen in self._seen.values():
            seen.digest = None


def data_digest(item: Mapping[str, Any]) -> str | None:
    """64 hex digits for all processed data of a medium; None: some are not here, or kvcast does not know their kind.

    Where vLLM shares memory with its workers, the item says no more than the address of its data.
    """
    state = hashlib.sha256()
    try:
        tensors_count = sum(_update(state, name, item[name].data) for name in sorted(item))
    except TypeError:
        return None
    return state.hexdigest() if tensors_count else None


def _update(state: Any, name: str, value: Any) -> int:
    """Add a value with its name, type and shape; returns how many tensors are in it. Raises TypeError for a value of
    another kind."""
    if isinstance(value, torch.Tensor):
        content = value.detach().cpu().contiguous()
        state.update(f"{name} {content.dtype} {tuple(content.shape)} ".encode())
        state.update(memoryview(content.reshape(-1).view(torch.uint8).numpy()))
        return 1
    if isinstance(value, list | tuple):
        state.update(f"{name} {len(value)} ".encode())
        return sum(_update(state, f"{name}.{place}", part) for place, part in enumerate(value))
    if not isinstance(value, bool | int | float | str):
        raise TypeError(type(value).__name__)
    state.update(f"{name} {value!r} ".encode())
    return 0
