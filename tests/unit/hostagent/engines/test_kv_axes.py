"""Axes of paged caches by their sizes and strides, and identities whose KV may be rounded."""

from __future__ import annotations

import dataclasses
import math

import pytest

from kvclient.engines.core.identity import RequestBinding
from kvclient.engines.core.kv_axes import CachePage, chunk_layout
from kvclient.engines.settings import SettingsError, parse_settings
from tests.unit.hostagent.engines.test_keys_and_identity import IDENTITY, keys_of

BF16 = "torch.bfloat16"


def page(order: str, element: str = BF16, **sizes: int) -> CachePage:
    """A page whose axes are named in the order of its shape, laid out in the order of `sizes`."""
    strides = {}
    below = 1
    for name, size in reversed(sizes.items()):
        strides[name] = below
        below *= size
    return CachePage(element, tuple(sizes[name] for name in order), tuple(strides[name] for name in order))


@pytest.mark.parametrize(
    ("one", "text"),
    [
        (page("pthd", p=2, t=16, h=8, d=128), "bf16.l3.b4.p2.t16.h8.d128"),
        (page("pthd", p=2, h=8, t=16, d=128), "bf16.l3.b4.p2.h8.t16.d128"),
        (page("htd", h=8, t=16, d=256), "bf16.l3.b4.h8.t16.d256"),
        (page("td", t=16, d=576), None),
        (page("pthd", "torch.float16", p=2, t=16, h=8, d=128), "fp16.l3.b4.p2.t16.h8.d128"),
        (page("pthd", "torch.uint8", p=2, t=16, h=8, d=128), None),
        (page("pthd", p=2, t=8, h=8, d=128), None),
        (page("pthdx", p=2, t=16, h=8, d=16, x=8), None),
    ],
)
def test_sizes_tell_axes_apart_or_nothing_is_said(one: CachePage, text: str | None) -> None:
    found = chunk_layout([one] * 3, 4, 16, 8)
    assert (None if found is None else found.text) == text
    assert found is None or found.numbers == 12 * math.prod(one.shape)


def test_one_head_has_no_axis() -> None:
    found = chunk_layout([page("td", t=16, d=576)] * 2, 4, 16, 1)
    assert found is not None
    assert found.text == "bf16.l2.b4.t16.d576"


def test_heads_and_tokens_of_one_size_are_not_guessed() -> None:
    assert chunk_layout([page("pthd", p=2, t=16, h=16, d=128)], 4, 16, 16) is None
    assert chunk_layout([page("pthd", p=2, t=16, h=2, d=128)], 4, 16, 2) is None


def test_layers_that_differ_say_nothing() -> None:
    assert chunk_layout([page("pthd", p=2, t=16, h=8, d=128), page("pthd", p=2, h=8, t=16, d=128)], 4, 16, 8) is None
    assert chunk_layout([], 4, 16, 8) is None


def test_kv_that_may_be_rounded_has_other_keys() -> None:
    lossy = dataclasses.replace(IDENTITY, may_lose=True)
    tokens = list(range(64))
    assert lossy.digests(RequestBinding()) != IDENTITY.digests(RequestBinding())
    assert keys_of(lossy, tokens).keys != keys_of(IDENTITY, tokens).keys


def test_the_setting_is_exact_unless_it_says_otherwise() -> None:
    assert parse_settings({}).kv_form == "exact"
    assert parse_settings({"kv_form": "lossy"}).kv_form == "lossy"
    with pytest.raises(SettingsError, match="kv_form is 'small'; it must be one of exact, lossy"):
        parse_settings({"kv_form": "small"})
