"""Copies between paged caches and chunks in torch: on the CPU as vLLM lays caches out, on a GPU where there is one."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import torch

BLOCKS, BLOCK_TOKENS, HEADS, HEAD_BYTES = 24, 8, 2, 16


def caches(kind: str, device: str) -> list[torch.Tensor]:
    """Three layers of a cache, each a different random content, as engines lay them out."""
    import torch

    torch.manual_seed(3)
    shape = (BLOCKS, HEADS, BLOCK_TOKENS, HEAD_BYTES)
    if kind == "one region a layer":
        made = [torch.randn(shape, dtype=torch.bfloat16, device=device) for _ in range(3)]
    elif kind == "layers side by side in each block":
        whole = torch.randn((BLOCKS, 3, *shape[1:]), dtype=torch.bfloat16, device=device)
        made = [whole[:, layer] for layer in range(3)]
    elif kind == "heads outside blocks":
        made = [
            torch.randn((HEADS, BLOCKS, BLOCK_TOKENS, HEAD_BYTES), dtype=torch.bfloat16, device=device).transpose(0, 1)
            for _ in range(3)
        ]
    elif kind == "heads around layers in each block":
        whole = torch.randn((BLOCKS, HEADS, 3, BLOCK_TOKENS, HEAD_BYTES), dtype=torch.bfloat16, device=device)
        made = [whole[:, :, layer] for layer in range(3)]
    elif kind == "one of two heads of each token":
        shape = (BLOCKS, BLOCK_TOKENS, HEADS, HEAD_BYTES)
        wholes = [torch.randn(shape, device=device).to(torch.float8_e4m3fn).transpose(1, 2) for _ in range(3)]
        made = [whole[:, 1:] for whole in wholes]
    elif kind == "heads and tokens swapped":
        made = [
            torch.randn((BLOCKS, BLOCK_TOKENS, HEADS, HEAD_BYTES), dtype=torch.float32, device=device).transpose(1, 2)
            for _ in range(3)
        ]
    else:
        made = [torch.randint(0, 255, (BLOCKS, BLOCK_TOKENS, 37), dtype=torch.uint8, device=device) for _ in range(3)]
    return made


KINDS = [
    "one region a layer",
    "layers side by side in each block",
    "heads outside blocks",
    "heads around layers in each block",
    "one of two heads of each token",
    "heads and tokens swapped",
    "odd pages",
]
INTERPRETED = "TRITON_INTERPRET"


def copier(made: list[torch.Tensor], *, device_copies: bool) -> Any:
    from kvclient.engines.device import DeviceLayers
    from kvclient.engines.layout import page_view, paged_layers

    views = [page_view(cache, 1 << 20) for cache in made]
    return DeviceLayers(views) if device_copies else paged_layers(views)


def devices() -> list[Any]:
    try:
        import torch

        there = torch.cuda.is_available()
    except ImportError:
        there = False
    skip = pytest.mark.skipif(not there, reason="no GPU in this machine")
    return [pytest.param("cpu", False), pytest.param("cpu", True), pytest.param("cuda", True, marks=skip)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("device", "device_copies"), devices())
@pytest.mark.parametrize("skip", [0, 1, 3])
def test_what_is_gathered_is_scattered(kind: str, device: str, device_copies: bool, skip: int) -> None:
    import torch

    source = caches(kind, device)
    layers = copier(source, device_copies=device_copies)
    chunk = bytearray(layers.chunk_bytes(4))
    blocks = [5, 23, 0, 11]
    layers.gather(blocks, chunk, layers.mark())
    target = [cache.zero_() for cache in caches(kind, device)]
    into = copier(target, device_copies=device_copies)
    places = [2, 7, 1, 20][skip:]
    for layer in range(2):
        into.scatter(bytes(chunk), 4, skip, places, layer)
    for before, after in zip(source[:2], target[:2], strict=True):
        assert torch.equal(numbers(after)[places], numbers(before)[blocks[skip:]])
    assert not numbers(target[2]).any()
    into.scatter(bytes(chunk), 4, skip, places, after=into.mark())
    assert torch.equal(numbers(target[2])[places], numbers(source[2])[blocks[skip:]])
    others = [block for block in range(BLOCKS) if block not in places]
    assert not any(numbers(cache)[others].any() for cache in target)


def numbers(cache: torch.Tensor) -> torch.Tensor:
    """As integers: torch compares no eight-bit floats, and no copy may care what they are."""
    import torch

    return cache.view({1: torch.uint8, 2: torch.int16, 4: torch.int32}[cache.element_size()])


def test_the_kernel_does_the_same(pytestconfig: pytest.Config) -> None:
    """All of this file again, with Triton's interpreter, which has to be chosen before Triton is there."""
    if INTERPRETED in os.environ:
        return
    if importlib.util.find_spec("triton") is None:
        pytest.skip("no Triton in this environment")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", __file__]
    environment = os.environ | {INTERPRETED: "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=pytestconfig.rootpath)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.skipif(INTERPRETED not in os.environ, reason="run by the test of the kernel")
def test_the_interpreter_runs_the_kernel() -> None:
    assert copier(caches(KINDS[0], "cpu"), device_copies=True).by_kernel


@pytest.mark.parametrize(("device", "device_copies"), devices())
def test_a_chunk_is_layer_by_layer(device: str, device_copies: bool) -> None:
    import torch

    source = caches("odd pages", device)
    layers = copier(source, device_copies=device_copies)
    chunk = bytearray(layers.chunk_bytes(2))
    layers.gather([3, 4], chunk)
    expected = b"".join(bytes(cache[[3, 4]].cpu().numpy().tobytes()) for cache in source)
    assert bytes(chunk) == expected
    assert len(expected) == torch.tensor([cache[0].numel() for cache in source]).sum().item() * 2


def test_pages_with_holes_are_refused() -> None:
    import torch

    from kvclient.engines.layout import LayoutError, page_view

    cache = torch.zeros((4, 8, 32))[:, :, ::2]
    with pytest.raises(LayoutError, match="not contiguous"):
        page_view(cache, 1 << 20)
    with pytest.raises(LayoutError, match="more than its page"):
        page_view(torch.zeros((4, 8, 32)), 64)
