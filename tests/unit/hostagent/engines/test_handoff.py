"""Prefill on one engine, decoding on others: what parameters of requests mean, and what an answer says."""

from __future__ import annotations

from typing import Any

import pytest

from kvclient.engines.core.handoff import (
    ANNOUNCED_S,
    GROUP_DRAW_S,
    GROUP_STEP_S,
    Wish,
    answer_of,
    shares,
    wish_of,
)
from kvclient.engines.core.keys import PrefixKeys
from kvclient.engines.core.prefill import expecting_terms
from kvclient.engines.settings import CONSUMER, PRODUCER, Settings, SettingsError, parse_settings
from kvclient.engines.vllm.version import check_version

EXPECTED_S = 7.0
DRAW = 0.25
NIXL_ASKS = {"do_remote_decode": True, "do_remote_prefill": False, "remote_engine_id": None, "remote_block_ids": None}


def keys_of(tokens: int, namespace: bytes = b"n" * 32) -> PrefixKeys:
    keys = PrefixKeys([namespace, b"m" * 32], 8)
    keys.extend(range(tokens))
    return keys


@pytest.mark.parametrize(
    ("parameters", "wish"),
    [
        (None, Wish()),
        ({}, Wish()),
        (NIXL_ASKS, Wish(prefills=True)),
        ({"do_remote_prefill": True}, Wish(expected_s=EXPECTED_S)),
        ({"do_remote_prefill": True, "remote_block_ids": [[1, 2]]}, Wish()),
        ({"do_remote_prefill": True, "kvcast.chunks": 3}, Wish(expected_s=ANNOUNCED_S, chunks=3)),
        ({"do_remote_prefill": True, "kvcast.chunks": 0}, Wish(chunks=0)),
        ({"kvcast.expected_s": 1.5}, Wish(expected_s=1.5)),
        ({"kvcast.group": 8, "kvcast.group_place": 0}, Wish()),
        ({"kvcast.group": 8, "kvcast.group_place": 3}, Wish(expected_s=3 * GROUP_STEP_S)),
        ({"kvcast.group": 8}, Wish(expected_s=8 * GROUP_DRAW_S * DRAW)),
        ({"kvcast.group": 1}, Wish()),
        ({"kvcast.group": 8, "kvcast.expected_s": 9}, Wish(expected_s=9)),
        ({"do_remote_prefill": True, "kvcast.group": 8}, Wish(expected_s=EXPECTED_S)),
        ({"kvcast.no_load": True, "kvcast.no_save": True}, Wish(may_load=False, may_save=False)),
        ({"kvcast.session_end": True}, Wish(ends_session=True)),
        ({"kvcast.no_laod": True, "other.thing": 1}, Wish(unknown=("kvcast.no_laod",))),
    ],
)
def test_what_a_request_asks_for(parameters: dict[str, Any] | None, wish: Wish) -> None:
    assert wish_of(parameters, EXPECTED_S, DRAW) == wish


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kvcast.no_load", "yes"),
        ("kvcast.expected_s", "soon"),
        ("kvcast.expected_s", -1),
        ("kvcast.expected_s", True),
        ("kvcast.chunks", "three"),
        ("kvcast.chunks", -3),
        ("kvcast.last_key", 5),
        ("kvcast.group", 0),
        ("kvcast.group", "all"),
        ("kvcast.group_place", 1),
    ],
)
def test_values_that_say_nothing(name: str, value: object) -> None:
    assert wish_of({name: value}, EXPECTED_S).wrong == (name,)


@pytest.mark.parametrize("place", [8, -1, True, "first"])
def test_a_place_is_one_of_the_group(place: object) -> None:
    assert wish_of({"kvcast.group": 8, "kvcast.group_place": place}, EXPECTED_S).wrong == ("kvcast.group_place",)


@pytest.mark.parametrize("nixl", [True, False])
def test_an_answer_is_understood_by_who_gets_it(nixl: bool) -> None:
    keys = keys_of(30)
    answer = answer_of(keys, 3, "r1", "e1", 30, nixl=nixl)
    assert ("do_remote_prefill" in answer) is nixl, "NIXL's own connector beside ours says it itself"
    wish = wish_of(answer, EXPECTED_S)
    assert (wish.chunks, wish.expected_s, wish.unknown, wish.wrong) == (3, ANNOUNCED_S, (), ())
    assert shares(wish, keys_of(24))
    assert not shares(wish, keys_of(24, b"o" * 32))
    assert shares(wish, keys_of(8, b"o" * 32)), "too short a prompt to tell"


def test_an_answer_without_chunks_lets_nobody_wait() -> None:
    wish = wish_of(answer_of(keys_of(7), 0, "r1", "e1", 7, nixl=True), EXPECTED_S)
    assert (wish.expected_s, wish.last_key) == (0.0, None)


def test_what_is_expected_is_waited_for_whatever_computing_costs() -> None:
    terms = expecting_terms(2.0, deadline_s_max=10.0)
    assert (terms.recompute_s, terms.deadline_s, terms.expected_s) == (None, 12.0, 2.0)


def test_roles_change_defaults_and_nothing_that_is_set() -> None:
    producer, consumer = parse_settings({}, {}, role=PRODUCER), parse_settings({}, {}, role=CONSUMER)
    assert (producer.load, producer.save, producer.save_blocks_share) == ("off", "prompt", 0.9)
    assert (consumer.load, consumer.save) == (Settings().load, "off")
    assert parse_settings({"load": "async"}, {}, role=PRODUCER).load == "async"
    assert parse_settings({"save": "all"}, {}, role=CONSUMER).save == "all"
    with pytest.raises(SettingsError, match="expected_s"):
        parse_settings({"expected_s": -1}, {})


@pytest.mark.parametrize("version", ["0.32.0", "0.32.4+cpu", "0.33.0", "0.33.1rc2.dev5+gabc"])
def test_versions_that_are_ours(version: str) -> None:
    check_version(version)


@pytest.mark.parametrize("version", ["0.31.9", "0.34.0", "1.0.0", "dev", ""])
def test_versions_that_are_not(version: str) -> None:
    with pytest.raises(SettingsError, match=r"works with vLLM 0\.32 and 0\.33, and this is") as error:
        check_version(version)
    assert "\n" not in str(error.value)
    check_version(version, untested=True)


@pytest.mark.parametrize(
    "parameters",
    [
        {"kvcast.expected_s": 600},
        {"kvcast.group": 4096, "kvcast.group_place": 4095},
        {"kvcast.group": 4096},
        {"do_remote_prefill": True},
        {"do_remote_prefill": True, "kvcast.chunks": 3},
    ],
)
def test_the_operator_bounds_how_long_a_request_may_wait(parameters: dict[str, Any]) -> None:
    assert wish_of(parameters, EXPECTED_S, DRAW).expected_s > 1
    assert wish_of(parameters, EXPECTED_S, DRAW, expected_s_max=1).expected_s == 1
    assert wish_of(parameters, EXPECTED_S, DRAW, expected_s_max=0).expected_s == 0
