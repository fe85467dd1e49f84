"""What a controller may make a switch read. The compiler's messages quote lines: who names a file can read it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from p4switch.compiler import check
from p4switch.native_target import NativeTarget
from p4switch.runtime import Switch
from p4switch.server.target import ConfigError

SECRET = "the password is swordfish"
PROGRAM = Path(__file__).with_name("learning.p4").read_text()

Push = Callable[[object], object]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What the switch was given, beside what it was not."""
    (tmp_path / "secret").write_text(SECRET)
    given = tmp_path / "given"
    given.mkdir()
    (given / "good.p4").write_text(PROGRAM)
    (given / "part.p4").write_text("const bit<8> PART = 1;\n")
    (given / "outwards.p4").write_text('#include "../secret"\n')
    (given / "link.p4").symlink_to(tmp_path / "secret")
    return given


@pytest.fixture
def push(folder: Path) -> Iterator[Push]:
    with Switch() as switch:
        target = NativeTarget(switch, has_cpu_port=False, program_dirs=[folder])
        yield lambda config: target.compile(
            (config if isinstance(config, str) else json.dumps(config)).encode(), pushed=True
        )


@pytest.mark.parametrize(
    "include", ['"{outside}/secret"', "<{outside}/secret>", '"../secret"', '"../../../../../../..{outside}/secret"']
)
def test_source_that_is_pushed_includes_nothing_of_the_machine(push: Push, folder: Path, include: str) -> None:
    line = f"#include {include.format(outside=folder.parent)}\n"
    for config in (
        line,
        {"files": {"a.p4": line}},
        {"files": {"sub/a.p4": line}, "include_dirs": [str(folder.parent)]},
    ):
        with pytest.raises(ConfigError, match="not found") as refusal:
            push(config)
        assert "swordfish" not in str(refusal.value)


def test_source_that_is_pushed_includes_what_came_along_and_the_compilers_own(push: Push) -> None:
    files = {"a.p4": '#include "lib/b.p4"\n' + PROGRAM, "lib/b.p4": '#include "../c.p4"', "c.p4": ""}
    push({"files": files, "main": "a.p4"})


def test_programs_and_includes_may_come_from_the_given_folders_only(push: Push, folder: Path) -> None:
    push(str(folder / "good.p4"))
    push({"path": str(folder / "good.p4"), "include_dirs": [str(folder)]})
    for outside in (folder.parent / "secret", folder / "link.p4", folder / ".." / "secret"):
        with pytest.raises(ConfigError, match="not in a folder that a controller may name programs from") as refusal:
            push({"path": str(outside)})
        assert "swordfish" not in str(refusal.value)
    with pytest.raises(ConfigError, match=r"include file \.\./secret not found"):
        push(str(folder / "outwards.p4"))


def test_who_runs_the_switch_may_name_any_file(folder: Path) -> None:
    with Switch() as switch:
        target = NativeTarget(switch, has_cpu_port=False)
        target.compile(str(folder / "good.p4").encode(), pushed=False)
        with pytest.raises(ConfigError, match="not in a folder"):
            target.compile(str(folder / "good.p4").encode(), pushed=True)


@pytest.mark.parametrize("name", ["x" * 5000, "a\0b", "d/" * 3000])
def test_a_name_that_no_file_has_is_an_error_of_the_program(tmp_path: Path, name: str) -> None:
    program = tmp_path / "a.p4"
    program.write_text(f'#include "{name}"\n')
    (found,) = check(program)
    assert "not found" in found.message


def test_a_program_that_includes_itself_ends(tmp_path: Path) -> None:
    program = tmp_path / "a.p4"
    program.write_text('#include "a.p4"\n')
    (found,) = check(program)
    assert found.message == "includes nest deeper than 64"


def test_includes_that_multiply_end(tmp_path: Path) -> None:
    for level in range(20):
        (tmp_path / f"{level}.p4").write_text(f'#include "{level + 1}.p4"\n' * 8)
    (tmp_path / "20.p4").write_text("")
    (found,) = check(tmp_path / "0.p4")
    assert found.message == "more than 4096 includes"
