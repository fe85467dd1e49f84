"""A vLLM engine with LMCache's connector, forked by `bmv2_testbed.engines.launcher` as a `vllm_process`.

vLLM looks through the objects of all modules that are imported for kernels, by `vars`. Among what LMCache imports are
objects whose `__dict__` is no mapping; here `vars` gives nothing for them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bmv2_testbed.engines import vllm_process


def attributes(of: Any) -> Mapping[str, Any]:
    """As `vars`, of anything."""
    found = of.__dict__
    return found if isinstance(found, Mapping) else {}


def main(argv: Sequence[str] | None = None) -> int:
    """Run an engine until it is asked to stop."""
    from vllm.triton_utils import dispatcher

    dispatcher.vars = attributes
    return vllm_process.main(argv)
