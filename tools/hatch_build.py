"""Hatchling's hook for kvcast's wheel: compiles what is in C, and says for which platform the wheel is."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class NativeBuildHook(BuildHookInterface[Any]):
    """A wheel carries objects that are built for it. An editable install uses the checkout's, built in place."""

    PLUGIN_NAME = "native"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Before the wheel is made."""
        # Hatchling runs this file by itself: what lies beside it is no package.
        sys.path.insert(0, str(Path(self.root, "tools")))
        import native_build

        build_data["pure_python"] = False
        if version == "editable":
            native_build.refresh(flags=())
            objects = [Path(self.root, made.path) for made in native_build.OBJECTS]
        else:
            self._scratch = tempfile.TemporaryDirectory(prefix="kvcast-build-")
            folder = Path(self._scratch.name)
            objects = native_build.refresh(flags=(), folder=folder)
            for path, made in zip(objects, native_build.OBJECTS, strict=True):
                build_data["force_include"][str(path)] = made.path
        build_data["tag"] = f"py3-none-{native_build.platform_of(objects)}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """After it is made."""
        if version != "editable":
            self._scratch.cleanup()
