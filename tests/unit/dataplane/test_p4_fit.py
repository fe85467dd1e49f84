"""The fit report: from the compiler's numbers to a table, and what is said when there is no compiler or no fit."""

from __future__ import annotations

import copy
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tools import p4_fit
from tools.p4_fit import REPOSITORY, FitError, FitReport, Resource


def stage(number: int, tables: int, srams: int, alus: int) -> dict[str, Any]:
    """What one stage of a Tofino says, in the form of p4c's resources.json."""
    grid = {"nRows": 8, "nUnits": 2}
    return {
        "stage_number": number,
        "rams": {"nRows": 8, "nColumns": 10, "srams": [{"row": 0, "column": 0}] * srams},
        "map_rams": {"nRows": 8, "nUnits": 6, "maprams": []},
        "tcams": {"nRows": 12, "nColumns": 2, "tcams": [{"row": 0, "column": 0}]},
        "meter_alus": {"nAlus": 4, "meters": [{"row": 1}] * alus},
        "statistic_alus": {"nAlus": 4, "stats": []},
        "gateways": {**grid, "gateways": []},
        "logical_tables": {"size": 16, "ids": [{"id": i, "table_name": f"t{i}"} for i in range(tables)]},
        "hash_bits": {"nBits": 52, "nFunctions": 8, "bits": []},
    }


RESOURCES: dict[str, Any] = {
    "resources": {"mau": {"nStages": 12, "mau_stages": [stage(0, 3, 20, 0), stage(1, 2, 34, 2), stage(2, 0, 0, 0)]}},
}
PHV: dict[str, Any] = {
    "target": "tofino",
    "resources": [
        {"group_type": "mau", "bit_width": 8, "addresses": [64, 65]},
        {"group_type": "mau", "bit_width": 32, "addresses": [0, 1]},
        {"group_type": "mau", "bit_width": 32, "addresses": [2, 3]},
        {"group_type": "tagalong", "bit_width": 32, "addresses": [256, 257]},
    ],
    "containers": [
        {"phv_number": 0, "slices": [{}]},
        {"phv_number": 3, "slices": [{}, {}]},
        {"phv_number": 65, "slices": []},
        {"phv_number": 256, "slices": [{}]},
    ],
}


def report() -> FitReport:
    return p4_fit.read_report(RESOURCES, PHV, "p4c-barefoot 1.2.3")


def used(name: str) -> tuple[int, int]:
    found = next(resource for resource in report().resources if resource.name == name)
    return found.used, found.available


def test_resources_are_summed_over_stages() -> None:
    assert (report().stages, report().stages_available) == (2, 12)  # the third has no table
    assert used("SRAM blocks") == (54, 960)
    assert used("TCAM blocks") == (3, 288)
    assert used("stateful ALUs") == (2, 48)
    assert used("logical tables") == (5, 192)


def test_containers_are_those_that_tables_can_reach() -> None:
    assert used("PHV containers of 32 bits") == (2, 4)
    assert used("PHV containers of 8 bits") == (0, 2)


def test_table_says_what_is_used_of_what() -> None:
    lines = p4_fit.table(report()).splitlines()
    assert lines[0] == "tofino, p4c-barefoot 1.2.3"
    assert lines[1].split() == ["stages", "2", "of", "12", "16.7%"]
    assert lines[2].split() == ["SRAM", "blocks", "54", "of", "960", "5.6%"]


def test_report_survives_json() -> None:
    assert p4_fit.from_json(p4_fit.to_json(report())) == report()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"resources": [{"name": 1}]}'])
def test_other_json_is_refused(text: str) -> None:
    with pytest.raises(FitError, match="no report of this tool"):
        p4_fit.from_json(text)


def test_changed_form_is_an_error_and_no_number() -> None:
    other = copy.deepcopy(RESOURCES)
    del other["resources"]["mau"]["mau_stages"][1]["rams"]
    with pytest.raises(FitError, match="another form"):
        p4_fit.read_report(other, PHV, "p4c")


def test_a_parser_that_matches_anything_is_seen() -> None:
    good = (
        "parser ingress:\n  states:\n    parse_udp:\n      match: [ half ]\n      0x12b9:\n        next: control\n"
        "      0x****:\n        next: end\ndeparser ingress:\n  dictionary:\n    0x0001: x\n"
    )
    assert p4_fit.parser_matches(good) == 1
    assert p4_fit.parser_matches(good.replace("0x12b9", "0x****")) == 0


def test_without_a_compiler_it_neither_fits_nor_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert p4_fit.main([]) == p4_fit.NOT_RUN
    assert capsys.readouterr().out.startswith("not run: none of p4c-barefoot, bf-p4c")


def checked(tmp_path: Path, tools: dict[str, str], **environment: str) -> subprocess.CompletedProcess[str]:
    """`make p4` with these commands beside those that every machine has; `switch` and `python` stand for its own."""
    for name, text in tools.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{text}\n")
        (tmp_path / name).chmod(0o755)
    return subprocess.run(
        [REPOSITORY / "tools" / "check_p4.sh", tmp_path / "switch", tmp_path / "python"],
        env={"PATH": f"{tmp_path}:{os.defpath}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_what_was_not_run_is_in_the_last_line(tmp_path: Path) -> None:
    tools = {"switch": "exit 0", "python": f"exit {p4_fit.NOT_RUN}"}
    done = checked(tmp_path, tools)
    lacks = "p4c (no p4c-bm2-ss on PATH), Tofino (no p4c-barefoot or bf-p4c on PATH)"
    assert done.stdout.splitlines()[-1] == f"checked: p4switch; NOT RUN: {lacks}"
    assert done.returncode == 0
    assert checked(tmp_path, tools, P4_ALL="1").returncode == 1


def test_what_was_run_is_in_the_last_line(tmp_path: Path) -> None:
    tools = {"switch": "exit 0", "python": "exit 0", "p4c-bm2-ss": "exit 0"}
    done = checked(tmp_path, tools, P4_ALL="1")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "checked: p4switch, p4c, Tofino")


@pytest.mark.parametrize("tools", [{"python": "exit 1"}, {"switch": "exit 2"}, {"p4c-bm2-ss": "exit 1"}])
def test_what_fails_is_a_failure(tmp_path: Path, tools: dict[str, str]) -> None:
    done = checked(tmp_path, {"switch": "exit 0", "python": "exit 0", **tools})
    assert done.returncode != 0
    assert "checked:" not in done.stdout


def test_a_program_of_too_many_stages_fails(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    big = FitReport("tofino", "p4c", 12, 12, (Resource("SRAM blocks", 1, 960),))
    (tmp_path / "fit.json").write_text(p4_fit.to_json(big))
    assert p4_fit.main(["--report", str(tmp_path / "fit.json")]) == 1
    assert capsys.readouterr().err == "p4_fit: 12 stages are more than the 11 that the program may use\n"


ASSEMBLY = "parser ingress:\n  states:\n    start:\n      0x0800:\n        next: ip\n      0x****:\n        next: end\n"


def compiler_that_writes(folder: Path, resources: dict[str, Any], assembly: str) -> str:
    """A compiler that leaves these files where the real one leaves its own."""
    folder.mkdir()
    sample = {"resources.json": json.dumps(resources), "phv.json": json.dumps(PHV), "kvcast.bfa": assembly}
    for name, text in sample.items():
        (folder / name).write_text(text)
    compiler = folder / "p4c-barefoot"
    compiler.write_text(
        f"""#!/bin/sh
[ "$1" = --version ] && echo 'Version 1.2.3 (SHA: 0123)' && exit
while [ "$1" != -o ]; do shift; done
mkdir -p "$2/pipe/logs" && cp {folder}/*.bfa "$2/pipe" && cp {folder}/*.json "$2/pipe/logs"
"""
    )
    compiler.chmod(0o755)
    return str(compiler)


def test_what_the_compiler_wrote_is_found_and_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    compiler_that_writes(tmp_path / "bin", RESOURCES, ASSEMBLY)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.defpath}")
    monkeypatch.setattr(p4_fit, "BUILD", tmp_path / "build")
    assert p4_fit.main(["-DSLOTS=4096", "--json", str(tmp_path / "fit.json")]) == 0
    assert capsys.readouterr().out.startswith("tofino, p4c-barefoot 1.2.3 (SHA: 0123)\nstages")
    assert p4_fit.from_json((tmp_path / "fit.json").read_text()).stages == 2


def test_an_assembly_without_selects_is_refused(tmp_path: Path) -> None:
    compiler = compiler_that_writes(tmp_path / "bin", RESOURCES, ASSEMBLY.replace("0x0800", "0x****"))
    with pytest.raises(FitError, match="every select of the parser to match anything"):
        p4_fit.compile_program(compiler, [], tmp_path / "build")


def test_missing_report_is_named(tmp_path: Path) -> None:
    compiler = compiler_that_writes(tmp_path / "bin", RESOURCES, ASSEMBLY)
    (tmp_path / "bin" / "phv.json").unlink()
    with pytest.raises(FitError, match=r"the compiler has written no phv.json"):
        p4_fit.compile_program(compiler, [], tmp_path / "build")


def test_refused_program_is_one_line(tmp_path: Path) -> None:
    compiler = tmp_path / "p4c-barefoot"
    compiler.write_text("#!/bin/sh\necho 'kvcast.p4(3): error: no such thing' >&2\nexit 1\n")
    compiler.chmod(0o755)
    with pytest.raises(FitError, match=r"refuses kvcast.p4: kvcast.p4\(3\): error: no such thing"):
        p4_fit.compile_program(str(compiler), [], tmp_path / "build")
