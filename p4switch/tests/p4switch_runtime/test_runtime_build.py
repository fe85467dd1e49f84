"""Building shared objects: once, and with one clear line when that cannot be."""

from __future__ import annotations

import ctypes
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from p4switch import build
from p4switch.build import CompilerMissingError, build_shared_object
from p4switch.errors import SwitchError
from p4switch.runtime import Program


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A cache of the test's own; what was found out about the machine is forgotten before and after."""
    known = (build.find_compiler, build.cache_dir)
    for function in known:
        function.cache_clear()
        monkeypatch.setattr(build, function.__name__, function.__wrapped__)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path


def source(folder: Path, text: str = "int answer(void) { return 42; }\n") -> Path:
    made = folder / "answer.c"
    made.write_text(text)
    return made


def test_the_same_content_is_compiled_once(fresh: Path) -> None:
    first = build_shared_object("answer", [source(fresh)])
    stamp = first.stat().st_mtime_ns
    assert build_shared_object("answer", [source(fresh)]) == first
    assert first.stat().st_mtime_ns == stamp
    assert build_shared_object("answer", [source(fresh, "int answer(void) { return 43; }\n")]) != first
    assert first.parent == fresh / "cache" / "p4switch"
    assert sorted(path.suffix for path in first.parent.iterdir()) == [".so", ".so"]


def test_an_empty_file_in_the_cache_is_compiled_again(fresh: Path) -> None:
    made = build_shared_object("answer", [source(fresh)])
    made.write_bytes(b"")
    assert build_shared_object("answer", [source(fresh)]).stat().st_size > 0


def test_a_compiler_that_writes_nothing_is_one_line(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    idle = fresh / "cc"
    idle.write_text("#!/bin/sh\nexit 0\n")
    idle.chmod(0o755)
    monkeypatch.setenv("CC", str(idle))
    with pytest.raises(SwitchError, match="wrote nothing for answer"):
        build_shared_object("answer", [source(fresh)])


def test_no_compiler_is_one_line(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.setenv("PATH", str(fresh))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(CompilerMissingError, match="install gcc or clang") as caught:
        build_shared_object("answer", [source(fresh)])
    assert "\n" not in str(caught.value)


def test_a_wrong_cc_names_the_variable(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CC", "/no/such/compiler --flag")
    with pytest.raises(CompilerMissingError, match=r"\$CC is '/no/such/compiler --flag'"):
        build_shared_object("answer", [source(fresh)])


def test_a_refused_source_gives_the_first_error(fresh: Path) -> None:
    with pytest.raises(SwitchError, match=r"the C compiler refused answer: .*error") as caught:
        build_shared_object("answer", [source(fresh, "int answer(void) { return nonsense; }\n")])
    assert "\n" not in str(caught.value)
    assert list((fresh / "cache" / "p4switch").iterdir()) == []


def test_a_cache_that_cannot_be_written_is_replaced(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (fresh / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(fresh / "file"))  # a file where a directory should be
    made = build.cache_dir()
    assert made.is_dir()
    assert fresh not in made.parents


ANSWER = '__attribute__((visibility("default"))) int answer(void) { return %d; }\n'


@pytest.mark.parametrize("plant", ["folder", "link", "object", "writable object"])
@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of other users")
def test_an_object_that_somebody_planted_is_not_run(fresh: Path, plant: str) -> None:
    honest = build_shared_object("answer", [source(fresh, ANSWER % 42)])
    cache = honest.parent
    planted = build_shared_object("planted", [source(fresh, ANSWER % 666)])
    planted.replace(honest)
    if plant == "folder":
        os.chown(cache, 65534, 65534)
    elif plant == "link":
        elsewhere = cache.rename(fresh / "elsewhere")
        cache.symlink_to(elsewhere)
        os.chown(cache, 65534, 65534, follow_symlinks=False)
    elif plant == "object":
        os.chown(honest, 65534, 65534)
    else:
        honest.chmod(0o777)
    made = build_shared_object("answer", [source(fresh, ANSWER % 42)])
    assert ctypes.CDLL(str(made)).answer() == 42


def test_the_cache_is_this_users_alone(fresh: Path) -> None:
    cache = fresh / "cache" / "p4switch"
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    made = build_shared_object("answer", [source(fresh)])
    assert made.parent == cache
    assert stat.S_IMODE(cache.stat().st_mode) == 0o700
    assert not made.stat().st_mode & 0o022


def test_a_shared_object_that_is_no_program_is_refused(fresh: Path) -> None:
    with pytest.raises(SwitchError, match="is no compiled P4 program"):
        Program.load(build_shared_object("answer", [source(fresh)]))
    with pytest.raises(SwitchError, match="is no compiled P4 program"):
        Program.load(fresh / "missing.so")


def test_processes_that_build_at_once_agree(fresh: Path) -> None:
    script = (
        "from pathlib import Path; from p4switch.build import build_shared_object; "
        f"print(build_shared_object('answer', [Path({str(source(fresh))!r})]))"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    builders = [
        subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, env=environment)
        for _ in range(3)
    ]
    answers = {builder.communicate(timeout=120)[0].strip() for builder in builders}
    assert len(answers) == 1
    assert Path(answers.pop()).exists()
