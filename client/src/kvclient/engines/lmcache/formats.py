"""LMCache's formats of KV in memory, in the terms of `kvchunk.kv_layout`. Pure.

Heads and the numbers of a head are one axis of LMCache's (`hidden_dim`); a layout has both.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvchunk.kv_layout import KvLayout

FORMATS = {"KV_2LTD": "plthd", "KV_T2D": "tphd", "KV_2TD": "pthd", "KV_MLA_FMT": "ltd"}
"""Axes by the name of `MemoryFormat`. KV_T2D and KV_2TD are one layer's; latent attention has neither parts nor heads,
though LMCache writes an axis of size 1."""


def layout_of(name: str, shape: Sequence[int], element: str, heads: int = 1) -> KvLayout:
    """Of a memory object of this format and shape; `element`: as in `kvchunk.kv_layout`.

    Raises ValueError for formats without KV, and for a shape that is not the format's or has no such heads.
    """
    if name not in FORMATS:
        raise ValueError(f"{name} is no format of KV; {', '.join(FORMATS)} are known")
    axes = FORMATS[name].replace("hd", "d")
    sizes = list(shape)
    if name == "KV_MLA_FMT" and sizes[:1] == [1]:
        del sizes[0]
    named = dict(zip(axes, sizes, strict=False))
    if len(sizes) != len(axes) or named.get("p", 2) != 2 or named["d"] % heads:
        raise ValueError(f"{tuple(shape)} is no shape of {name} with {heads} heads")
    named |= {"h": heads, "d": named["d"] // heads}
    return KvLayout(element, tuple((axis, named[axis]) for axis in FORMATS[name]))
