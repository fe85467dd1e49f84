"""LMCache's formats and kvcast's layouts name the same numbers: conversions against torch's own permutations."""

from __future__ import annotations

import itertools
import math

import pytest

pytest.importorskip("lmcache")

import torch
from lmcache.v1.memory_management import MemoryFormat

from kvchunk.kv_layout import KvLayout, parse_layout
from kvclient.engines.kv_conversion import convert
from kvclient.engines.lmcache.formats import FORMATS, layout_of

LAYERS, TOKENS, HEADS, HEAD = 3, 64, 4, 8
ELEMENTS = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}


def kv(element: str, *sizes: int) -> torch.Tensor:
    """Numbers that are all different words."""
    words = torch.arange(math.prod(sizes), dtype=torch.int32)
    return (
        words.view(torch.float32).reshape(sizes)
        if element == "fp32"
        else words.to(torch.int16).view(ELEMENTS[element]).reshape(sizes)
    )


def octets(tensor: torch.Tensor) -> memoryview:
    return memoryview(bytearray(tensor.contiguous().view(torch.uint8).numpy().tobytes()))


def as_layout(canonical: torch.Tensor, axes: str, block: int) -> torch.Tensor:
    """By torch: (l, p, tokens, h, d) in the order of `axes`, its tokens in blocks where it has an axis of them."""
    layers, parts, tokens, heads, head = canonical.shape
    whole = canonical.reshape(layers, parts, tokens // block, block, heads, head) if "b" in axes else canonical
    order = "lpbthd" if "b" in axes else "lpthd"
    kept = [order.index(axis) for axis in axes]
    dropped = [place for place in range(len(order)) if place not in kept]
    assert all(whole.shape[place] == 1 for place in dropped)
    return whole.permute(*kept, *dropped).reshape([whole.shape[place] for place in kept])


@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.parametrize("name", FORMATS)
def test_a_format_becomes_every_engines_layout_and_back(name: str, element: str) -> None:
    assert name in MemoryFormat.__members__, "LMCache still has it"
    one_layer, latent = name in ("KV_T2D", "KV_2TD"), name == "KV_MLA_FMT"
    canonical = kv(element, 1 if one_layer else LAYERS, 1 if latent else 2, TOKENS, 1 if latent else HEADS, HEAD)
    lmcache = as_layout(canonical, FORMATS[name], TOKENS)
    shape = [1, *lmcache.shape] if latent else list(lmcache.flatten(-2).shape)
    given = layout_of(name, shape, element, 1 if latent else HEADS)
    assert given.size_bytes == len(octets(lmcache))
    for axes, block in [("lbpthd", 16), ("lpbthd", 16), ("lbhtpd", 32), ("bltphd", 8), ("lpthd", TOKENS)]:
        expected = as_layout(canonical, axes, block)
        wanted = KvLayout(element, tuple(zip(axes, expected.shape, strict=True)))
        into = memoryview(bytearray(wanted.size_bytes))
        convert(octets(lmcache), given, into, wanted)
        assert into == octets(expected), (name, wanted.text)
        back = memoryview(bytearray(given.size_bytes))
        convert(into, wanted, back, given)
        assert back == octets(lmcache)


def test_blocks_of_one_size_become_blocks_of_another() -> None:
    canonical = kv("bf16", LAYERS, 2, TOKENS, HEADS, HEAD)
    for one, other in itertools.permutations([(8, "lbpthd"), (32, "lpbthd"), (16, "lbhtpd")], 2):
        given, wanted = (
            KvLayout("bf16", tuple(zip(axes, as_layout(canonical, axes, block).shape, strict=True)))
            for block, axes in (one, other)
        )
        into = memoryview(bytearray(wanted.size_bytes))
        convert(octets(as_layout(canonical, one[1], one[0])), given, into, wanted)
        assert into == octets(as_layout(canonical, other[1], other[0]))


@pytest.mark.parametrize(
    ("given", "wanted", "message"),
    [
        ("bf16.l2.t16.d8", "fp16.l2.t16.d8", "have not the same numbers"),
        ("bf16.l2.t16.d8", "bf16.l4.t8.d8", "have not the same numbers"),
        ("bf16.b3.t16.d8", "bf16.b2.t24.d8", "blocks of 24 tokens are not whole blocks of 16"),
    ],
)
def test_what_is_not_the_same_is_refused(given: str, wanted: str, message: str) -> None:
    one, other = parse_layout(given), parse_layout(wanted)
    with pytest.raises(ValueError, match=message):
        convert(memoryview(bytes(one.size_bytes)), one, memoryview(bytearray(other.size_bytes)), other)
    with pytest.raises(ValueError, match="bytes are no chunk of"):
        convert(memoryview(bytes(7)), one, memoryview(bytearray(other.size_bytes)), other)


@pytest.mark.parametrize(
    ("name", "shape", "heads", "message"),
    [
        ("BINARY", (9,), 1, "BINARY is no format of KV"),
        ("KV_2LTD", (1, 3, 64, 32), 4, "is no shape of KV_2LTD"),
        ("KV_2LTD", (2, 3, 64, 32), 5, "is no shape of KV_2LTD with 5 heads"),
        ("KV_T2D", (64, 2), 1, "is no shape of KV_T2D"),
    ],
)
def test_what_is_no_format_is_refused(name: str, shape: tuple[int, ...], heads: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        layout_of(name, shape, "bf16", heads)
