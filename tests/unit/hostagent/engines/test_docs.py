"""The pages about engines list every setting with the default that the code has, and every metric label."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from kvclient.engines.core.requests import Miss
from kvclient.engines.settings import Settings, StoreSettings

REFERENCE = Path(__file__).parents[4] / "docs" / "reference"
DOCS = (REFERENCE / "vllm.md").read_text()


@pytest.mark.parametrize(("page", "settings"), [("vllm.md", Settings), ("engines.md", StoreSettings)])
def test_every_setting_is_documented_with_its_default(
    page: str, settings: type[Settings] | type[StoreSettings]
) -> None:
    without = {"weights_digest": "of the files", "weights_version_file": "none", "tenant_secret_file": "none"}
    without["cache_layout"] = "vLLM's"
    rows = dict(re.findall(r"^\| `(\w+)` \| (.+?) \|", (REFERENCE / page).read_text(), re.MULTILINE))
    for field in dataclasses.fields(settings):
        default = field.default
        if isinstance(default, bool):
            expected = str(default).lower()
        elif isinstance(default, float):
            expected = f"{default:g}"
        else:
            expected = str(default) or without[field.name]
        assert expected in rows[field.name], field.name


def test_every_reason_of_a_miss_is_explained() -> None:
    for miss in Miss:
        assert miss.value in DOCS
