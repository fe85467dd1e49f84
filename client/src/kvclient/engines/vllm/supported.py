"""Imported before anything of vLLM that others may lack. Raises SettingsError for a version that is not ours."""

from __future__ import annotations

import os

from vllm.version import __version__

from kvclient.engines.vllm.version import UNTESTED_VARIABLE, check_version

check_version(__version__, untested=os.environ.get(UNTESTED_VARIABLE) == "1")
