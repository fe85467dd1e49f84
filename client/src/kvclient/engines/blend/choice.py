"""Which tokens of reused KV are computed again: those whose K and V differ most from what this prompt makes them. Pure.

On the first layer nothing differs: K and V are of the token and its place alone. So the first layer is computed for all
tokens, which gives K and V of the second layer as this prompt makes them. Tokens that deviate there deviate on the
layers behind it (the observation of CacheBlend, EuroSys 2025); they go on, and the others keep what was reused.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Places = npt.NDArray[np.int64]


def deviation(fresh: Floats, reused: Floats) -> Floats:
    """Of each token: the sum of squared differences of its K and V on one layer. Both (2, tokens, heads, numbers)."""
    if fresh.shape != reused.shape:
        raise ValueError(f"KV of shape {fresh.shape} beside one of {reused.shape}")
    difference = fresh - reused
    made: Floats = np.einsum("pthd,pthd->t", difference, difference)
    return made


def most_deviating(deviations: Floats, share: float) -> Places:
    """The places of the `share` (0 to 1) of tokens that deviate most, rounded up, rising; of equals the first."""
    if not 0 <= share <= 1:
        raise ValueError(f"share is {share}: it must be between 0 and 1")
    count = math.ceil(round(share * len(deviations), 9))
    order = np.argsort(-deviations, kind="stable")
    return np.sort(order[:count])
