"""An exact checksum of a model's tensors, taken on the device that they are on.

Every bit counts, and so do its place and its tensor's name, type, shape and strides. All of it is integer arithmetic
modulo 2**64, whose sums come out the same in any order: the same tensors have the same checksum on every device.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from typing import Final

import torch
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

PIECE_BYTES: Final = 1 << 24
"""Read at a time. The arithmetic needs three times as much memory beside the tensors."""
WORD_BYTES: Final = 8
# Odd numbers without structure, as signed words: a product with one of them loses no bit.
_PLACE: Final = -7046029254386353131
_MIX: Final = -4658895280553007687
_PIECE: Final = -7723592293110705685
_SHIFT: Final = 29


def tensors_checksum(tensors: Iterable[tuple[str, torch.Tensor]]) -> str:
    """32 hex digits for named tensors, in the order given. One pass, and one number a tensor leaves the device."""
    state = hashlib.blake2b(digest_size=16, person=b"kvcast-tensors")
    places: dict[torch.device, torch.Tensor] = {}
    sums = []
    with torch.no_grad():
        for name, tensor in _plain(tensors):
            strides = tensor.stride() if tensor.layout is torch.strided else tensor.layout
            state.update(f"{name} {tensor.dtype} {tuple(tensor.shape)} {strides}\n".encode())
            if tensor.is_meta or not tensor.numel():
                continue
            if tensor.device not in places:
                places[tensor.device] = torch.arange(PIECE_BYTES // WORD_BYTES, device=tensor.device) * _PLACE
            sums.append(_sum(tensor, places[tensor.device]))
    for one in sums:
        state.update(int(one).to_bytes(WORD_BYTES, "little", signed=True))
    return state.hexdigest()


def _plain(tensors: Iterable[tuple[str, torch.Tensor]]) -> Iterator[tuple[str, torch.Tensor]]:
    """Those that hold the bytes, for tensors that wrap others, as quantised ones do."""
    for name, tensor in tensors:
        if is_traceable_wrapper_subclass(tensor):
            inner, _ = tensor.__tensor_flatten__()
            yield from _plain((f"{name}.{part}", getattr(tensor, part)) for part in inner)
        else:
            yield name, tensor.detach()


def _sum(tensor: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.int64, device=tensor.device)
    for words in _words(tensor):
        mixed = (words ^ places[: len(words)]).mul_(_MIX)
        mixed ^= mixed >> _SHIFT
        total = total * _PIECE + mixed.sum()
    return total


def _words(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor's bytes as words, piece by piece; the last one of a piece is filled up with zeros."""
    for part in _dense(tensor):
        content = part.view(-1).view(torch.uint8)
        for start in range(0, len(content), PIECE_BYTES):
            piece = content[start : start + PIECE_BYTES]
            rest = -len(piece) % WORD_BYTES
            if rest or piece.storage_offset() % WORD_BYTES:
                piece = torch.nn.functional.pad(piece, (0, rest)) if rest else piece.clone()
            yield piece.view(torch.int64)


def _dense(tensor: torch.Tensor) -> Iterator[torch.Tensor]:
    """The tensor in contiguous parts: itself, or copies of some of its rows where its memory has gaps."""
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    # A transposed tensor is contiguous in another order of its dimensions: no copy is needed.
    tensor = tensor.permute(sorted(range(tensor.dim()), key=lambda dim: -tensor.stride(dim)))
    if tensor.is_contiguous():
        yield tensor
    else:
        row_bytes = tensor[0].numel() * tensor.element_size()
        for rows in tensor.split(max(1, PIECE_BYTES // row_bytes)):
            yield rows.contiguous()
