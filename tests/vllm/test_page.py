"""The options that the page on vLLM gives are options of vLLM's own command line, and name connectors that it finds."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "how-to" / "vllm.md").read_text()
OPTIONS = re.findall(r"--kv-transfer-config '(\{.*?\})'", PAGE, re.DOTALL)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("option", OPTIONS, ids=range(len(OPTIONS)))
def test_what_the_page_gives_vllm_takes(option: str) -> None:
    from vllm.config import KVTransferConfig
    from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    config = KVTransferConfig(**json.loads(option))
    inner = config.kv_connector_extra_config.get("connectors", [])
    assert inner or config.kv_connector == "KvcastConnector"
    for one in (config, *(KVTransferConfig(**connector) for connector in inner)):
        assert KVConnectorFactory.get_connector_class(one).__name__ == one.kv_connector


def test_the_page_has_them() -> None:
    assert len(OPTIONS) >= 2
    assert "kv_both" in OPTIONS[0]
