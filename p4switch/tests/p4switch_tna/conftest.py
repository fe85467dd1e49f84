"""Makes benches and closes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from p4switch.runtime import SwitchConfig
from p4switch_tna.tna_bench import ROUND, TnaBench, compiled


@pytest.fixture
def tna(tmp_path: Path) -> Iterator[Callable[..., TnaBench]]:
    """A TnaBench from the text of a program; `rate_bits` and `queue_bytes` are the recirculation port's."""
    made: list[TnaBench] = []

    def make(text: str, *, rate_bits: int = 0, queue_bytes: int = 1 << 20, trace: bool = False) -> TnaBench:
        config = SwitchConfig(
            virtual_clock=True,
            trace=trace,
            recirculation_ports=(ROUND,),
            recirculation_rate_bits=rate_bits,
            recirculation_queue_bytes=queue_bytes,
        )
        made.append(TnaBench(compiled(tmp_path, text), config))
        return made[-1]

    yield make
    for bench in made:
        bench.switch.close()
