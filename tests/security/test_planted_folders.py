"""Another user of the machine plants folders where root's commands write and look."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bmv2_testbed import state
from bmv2_testbed.errors import TestbedError
from bmv2_testbed.guests import image

pytestmark = [
    pytest.mark.security,
    pytest.mark.skipif(os.geteuid() != 0, reason="only root makes folders of other users"),
]
STRANGER = 65534
TESTBED = state.Background("t", os.getpid(), state.start_ticks(os.getpid()) or 0, 1, "/")


def planted(path: Path, kind: str, elsewhere: Path) -> None:
    """As the stranger made it."""
    elsewhere.mkdir()
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == "link":
        path.symlink_to(elsewhere)
    else:
        path.mkdir(mode=0o777)
    os.chown(path, STRANGER, STRANGER, follow_symlinks=False)


@pytest.mark.parametrize("kind", ["link", "folder"])
def test_a_testbed_is_not_remembered_in_somebody_elses_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    planted(tmp_path / f"kvcast-testbeds-{os.geteuid()}", kind, tmp_path / "elsewhere")
    for use in (lambda: state.save(TESTBED), lambda: state.load("t"), state.names):
        with pytest.raises(TestbedError, match=f"belongs to user {STRANGER}.*XDG_RUNTIME_DIR"):
            use()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_root_remembers_testbeds_where_only_root_writes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("XDG_RUNTIME_DIR", raising=False)
    name = f"planted-{os.getpid()}"
    state.save(state.Background(name, *vars_of(TESTBED)))
    try:
        assert state.load(name) is not None
        assert (Path("/run") / f"kvcast-testbeds-{os.geteuid()}" / f"{name}.json").exists()
    finally:
        state.forget(name)


def vars_of(testbed: state.Background) -> tuple[int, int, int, str]:
    return testbed.supervisor_pid, testbed.supervisor_start_ticks, testbed.pid, testbed.directory


def test_guests_do_not_boot_what_a_stranger_planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    planted(image.cache_directory(), "folder", tmp_path / "elsewhere")
    with pytest.raises(TestbedError, match="name a folder of your own as XDG_CACHE_HOME"):
        image.find()
