"""Settings of engines that use the pool as a store."""

from __future__ import annotations

from typing import Any

import pytest

from kvclient.engines.settings import SettingsError, StoreSettings, parse_store_settings


def test_defaults_and_choices() -> None:
    assert parse_store_settings({}, {}) == StoreSettings()
    assert parse_store_settings({}, {"KVCAST_AGENT_SOCKET": "/x"}).socket == "/x"
    made = parse_store_settings({"socket": "/y", "lock_s": 5, "weights_digest": "w"}, {"KVCAST_AGENT_SOCKET": "/x"})
    assert made == StoreSettings(socket="/y", lock_s=5, weights_digest="w")


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"sockets": "/x"}, "unknown setting 'sockets'"),
        ({"lock_s": 0}, "lock_s is 0; it must be from 0.1 to 600"),
        ({"load_deadline_s": True}, "load_deadline_s is True; it must be a number"),
        ({"socket": ""}, "socket is ''; it must be text"),
        ("/run/agent.sock", "must be an object"),
        (None, "must be an object"),
    ],
)
def test_bad_settings_are_named(extra: Any, said: str) -> None:
    with pytest.raises(SettingsError, match=said):
        parse_store_settings(extra, {})
