"""p4c's own samples, where P4C_SAMPLES names its folder testdata/p4_16_samples: behaviour, P4Info, diagnostics.

`pytest -m long tests/unit/p4switch_compiler/test_suite_of_p4c.py`
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from google.protobuf import text_format

from p4switch.compiler import CompileError, check, compile_to_ir
from p4switch.frontend.source import Severity
from p4switch.p4info import p4info_of
from p4switch.proto import p4info_pb2
from p4switch.stf import PASSED, run_stf

pytestmark = pytest.mark.long

STF_FAILS = {"extern-funcs-bmv2"}
"""Needs C++ code of its own in the switch; docs/research/p4switch.md lists the cases and why."""
ACCEPTED = {"issue2283_2-bmv2", "issue3299"}
"""Programs of p4_16_errors that are legal and that only p4c's bmv2 back end refuses."""


@pytest.fixture(scope="module")
def samples() -> Path:
    folder = os.environ.get("P4C_SAMPLES")
    if folder is None:
        pytest.skip("P4C_SAMPLES does not name p4c's testdata/p4_16_samples")
    return Path(folder)


def for_v1model(folder: Path) -> list[Path]:
    sources = (p for p in sorted(folder.rglob("*.p4")) if p.exists())
    return [p for p in sources if "v1model.p4" in p.read_text(errors="replace")]


def wrong(source: Path) -> list[str]:
    """Errors of a program; each has a place in a file."""
    found = [d for d in check(source) if d.severity is not Severity.WARNING]
    assert all(d.file and d.line > 0 and d.column > 0 for d in found), source
    return [d.render() for d in found]


def test_packets(samples: Path) -> None:
    cases = [s.with_suffix(".stf") for s in for_v1model(samples)]
    results = {c.stem: run_stf(c.with_suffix(".p4"), c) for c in cases if c.exists()}
    assert len(results) > 180
    assert {name for name, status in results.items() if status != PASSED} <= STF_FAILS


def test_every_sample_compiles_or_is_diagnosed(samples: Path) -> None:
    sources = for_v1model(samples)
    refused = [s.name for s in sources if wrong(s)]
    assert len(refused) < 0.07 * len(sources), refused
    for source in sorted(samples.rglob("*.p4")):
        if source.exists():
            wrong(source)


def test_negative_samples_are_rejected(samples: Path) -> None:
    sources = [s for s in sorted((samples.parent / "p4_16_errors").rglob("*.p4")) if s.exists()]
    assert len(sources) > 500
    assert {s.stem for s in sources if not wrong(s)} <= ACCEPTED


def test_p4info(samples: Path) -> None:
    outputs = samples.parent / "p4_16_samples_outputs"
    different, compared = set(), 0
    for source in for_v1model(samples):
        expected = outputs / source.relative_to(samples).with_suffix(".p4.p4info.txtpb")
        if not expected.exists():
            continue
        try:
            ours = p4info_of(compile_to_ir(source)[0])
        except CompileError:
            continue
        compared += 1
        theirs = text_format.Parse(expected.read_text(), p4info_pb2.P4Info())
        if ours != theirs:
            different.add(source.stem)
    assert compared > 430
    assert different == set()
