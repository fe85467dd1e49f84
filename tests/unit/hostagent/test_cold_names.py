"""Names of stores that docs/reference/stores.md lists: which of them the installed opendal knows."""

from __future__ import annotations

import pytest

from hostagent.cold.cold_opening import open_store
from hostagent.cold.cold_options import ColdConfig
from kvdaemon.errors import CannotRunError

pytest.importorskip("opendal", reason="no opendal here: pip install 'kvcast[cold]'")


@pytest.mark.parametrize(
    ("scheme", "options"),
    [
        ("hdfs_native", {"name_node": "hdfs://127.0.0.1:9", "root": "/kvcast"}),
        ("webhdfs", {"endpoint": "http://127.0.0.1:9", "root": "/kvcast"}),
    ],
)
def test_hdfs_by_its_two_names(scheme: str, options: dict[str, str]) -> None:
    assert open_store(ColdConfig(scheme, options, timeout_s=1)) is not None


@pytest.mark.parametrize("scheme", ["hdfs", "infinistore", "nixl", "gds"])
def test_a_store_that_opendal_does_not_know_is_one_line(scheme: str) -> None:
    with pytest.raises(CannotRunError, match=rf"the installed opendal does not know '{scheme}': fs, s3, redis") as said:
        open_store(ColdConfig(scheme, {}, timeout_s=1))
    assert "\n" not in str(said.value)
