"""A folder that only this user can put anything into: what lies in it may be run, and written to without a look."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from p4switch.errors import SwitchError

_OTHERS_WRITE = stat.S_IWGRP | stat.S_IWOTH


def own_folder(path: Path) -> Path:
    """The folder, made if need be; from then on its group and others have no access. Raises SwitchError where it is
    somebody else's, leads to something of theirs, or cannot be made."""
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        link, folder = path.lstat(), path.stat()
        for one in (link, folder):
            if one.st_uid != os.geteuid():
                raise SwitchError(f"{path} belongs to user {one.st_uid}: what lies there is not to be trusted")
        if folder.st_mode & 0o077:
            path.chmod(0o700)
    except OSError as error:
        raise SwitchError(f"cannot make the folder {path}: {error.strerror}") from error
    return path


def is_own_file(path: Path) -> bool:
    """Whether there is a file that this user made, and nobody else can have changed since."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.geteuid() and not found.st_mode & _OTHERS_WRITE
