"""The checksum of a model's tensors: every bit counts, and nothing else does."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest


def checksum(**tensors: Any) -> str:
    from kvclient.engines.checksum import tensors_checksum

    return tensors_checksum(tensors.items())


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces so small that a tensor has several."""
    from kvclient.engines import checksum

    monkeypatch.setattr(checksum, "PIECE_BYTES", 64)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float8_e4m3fn", "int64", "uint8", "bool"])
def test_every_bit_and_its_place_count(dtype: str) -> None:
    import torch

    whole = torch.frombuffer(bytearray(random.Random(1).randbytes(203 * 8)), dtype=torch.uint8)
    tensor = (whole & 1 if dtype == "bool" else whole).view(getattr(torch, dtype))
    first = checksum(x=tensor)
    assert checksum(x=tensor.clone()) == first
    found = {first}
    for place in range(0, len(whole), 7):
        changed = tensor.clone()
        changed.view(torch.uint8)[place] ^= 1
        found.add(checksum(x=changed))
    assert len(found) == 1 + len(range(0, len(whole), 7))


@pytest.mark.usefixtures("small_pieces")
def test_changes_that_would_cancel_in_a_plain_sum() -> None:
    import torch

    def of(*numbers: int) -> str:
        return checksum(x=torch.tensor([*numbers, *[0] * 20], dtype=torch.int64))

    # Swapped, moved to the next piece, and with differences whose weighted sum is zero.
    sums = {of(1, 2, 3), of(3, 2, 1), of(2, 1, 3), of(2, 0, 4), of(2, 2, 2), of(0, 3, 3), of(*[0] * 8, 1, 2, 3)}
    assert len(sums) == 7


def test_name_type_shape_and_strides_count() -> None:
    import torch

    square = torch.arange(16, dtype=torch.int32).view(4, 4)
    found = [
        checksum(x=square),
        checksum(y=square),
        checksum(x=square.view(2, 8)),
        checksum(x=square.view(torch.float32)),
        checksum(x=square.t()),
        checksum(x=square, y=square),
        checksum(x=square[:0]),
        checksum(),
    ]
    assert len(set(found)) == len(found)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("view", [lambda x: x[:, :30], lambda x: x[1:, 3:], lambda x: x[::2], lambda x: x[0, 5]])
def test_tensors_with_gaps_count_without_them(view: Callable[[Any], Any]) -> None:
    import torch

    whole = torch.frombuffer(bytearray(random.Random(2).randbytes(40 * 35)), dtype=torch.uint8).view(40, 35)
    first = checksum(x=view(whole))
    view(whole).add_(1)
    assert checksum(x=view(whole)) != first
    view(whole).sub_(1)
    outside = torch.ones_like(whole)
    view(outside).zero_()
    whole += outside
    assert checksum(x=view(whole)) == first


def test_a_tensor_of_several_pieces_is_all_of_them() -> None:
    import torch

    from kvclient.engines.checksum import PIECE_BYTES

    tensor = torch.zeros(PIECE_BYTES + 3, dtype=torch.uint8)
    first = checksum(x=tensor)
    for place in (0, PIECE_BYTES - 1, PIECE_BYTES, PIECE_BYTES + 2):
        changed = tensor.clone()
        changed[place] = 1
        assert checksum(x=changed) != first
