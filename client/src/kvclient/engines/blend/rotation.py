"""K at other positions: a rotation by RoPE is undone and made again by one rotation by the difference. Pure."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]


def turned(keys: Floats, delta: int, base: float = 10_000.0) -> Floats:
    """`keys` (..., numbers of a head, even) as they are `delta` positions further on (or back, where negative).

    For RoPE in which numbers i and i + half turn together by `base` ** (-i / half) a position, as in Llama. The angle
    is made in float64: one rotation instead of two, and an error of float32 as in K that was computed there.
    """
    half, odd = divmod(keys.shape[-1], 2)
    if odd:
        raise ValueError(f"a head of {keys.shape[-1]} numbers: RoPE turns pairs")
    angles = delta * base ** (-np.arange(half, dtype=np.float64) / half)
    cosines, sines = np.cos(angles).astype(keys.dtype), np.sin(angles).astype(keys.dtype)
    first, second = keys[..., :half], keys[..., half:]
    made: Floats = np.concatenate((first * cosines - second * sines, second * cosines + first * sines), axis=-1)
    return made
