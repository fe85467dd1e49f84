"""Prefill on one engine, decoding on others: the parameters of requests, and those of a prefill's answer. Pure.

A proxy asks one engine for the prompt (`do_remote_decode`) and passes the `kv_transfer_params` of its answer on to the
engines that decode (`do_remote_prefill`). The names are those of vLLM's NIXL connector, so that proxies made for it
work. Nothing in them says where the KV is: an engine derives the keys of its chunks from the prompt, and the pool finds
them. The answer names the last key, so that two engines that cannot share notice it at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from kvclient.engines.core.keys import PrefixKeys

NO_LOAD: Final = "kvcast.no_load"
NO_SAVE: Final = "kvcast.no_save"
SESSION_END: Final = "kvcast.session_end"
EXPECTED_S: Final = "kvcast.expected_s"
CHUNKS: Final = "kvcast.chunks"
LAST_KEY: Final = "kvcast.last_key"
GROUP: Final = "kvcast.group"
GROUP_PLACE: Final = "kvcast.group_place"
PARAMETERS: Final = frozenset({NO_LOAD, NO_SAVE, SESSION_END, EXPECTED_S, CHUNKS, LAST_KEY, GROUP, GROUP_PLACE})
"""What a request's `kv_transfer_params` may hold of ours; names of other connectors are ignored."""
PREFIX: Final = "kvcast."

REMOTE_DECODE: Final = "do_remote_decode"
REMOTE_PREFILL: Final = "do_remote_prefill"
REMOTE_BLOCKS: Final = "remote_block_ids"

ANNOUNCED_S: Final = 2.0
"""A producer answers after it has put its chunks. A chunk that the directory does not show after this time is lost."""
EXPECTED_S_MAX: Final = 600.0
"""The most that a request may ask for. How much of it an engine waits is its operator's choice (`expected_s_max`)."""
GROUP_MAX: Final = 4096
GROUP_DRAW_S: Final = 0.1
"""Members of a group without a place begin at random, spread over this time for each member. Every node knows a claim
after some 20 ms, so 1.2 members compute on average, and the first begins after less than 0.1 s."""
GROUP_STEP_S: Final = 0.5
"""How long a member with a place waits for the one before it to begin."""


@dataclass(frozen=True, slots=True)
class Wish:
    """What a request's `kv_transfer_params` ask for."""

    may_load: bool = True
    may_save: bool = True
    ends_session: bool = False
    prefills: bool = False
    """Other engines decode, so the answer waits until the prompt's chunks are in the pool."""
    expected_s: float = 0.0
    """Chunks that no node has yet will be announced within this time; 0: none are expected."""
    chunks: int | None = None
    """Leading chunks that another engine has put, according to its answer; None: there was no such answer."""
    last_key: str | None = None
    """Hexadecimal key of the last of them (of the first worker's part)."""
    unknown: tuple[str, ...] = ()
    """Names with our prefix that kvcast does not know."""
    wrong: tuple[str, ...] = ()
    """Our names with values that are not allowed."""


def wish_of(
    parameters: Mapping[str, Any] | None,
    expected_s: float,
    draw: float = 0.0,
    *,
    expected_s_max: float = EXPECTED_S_MAX,
) -> Wish:
    """Read a request's `kv_transfer_params`. `expected_s`: how long to wait for a prefill elsewhere; `draw`: a random
    number from 0 to 1, for when this member of a group begins; `expected_s_max`: no request waits longer, whatever it
    asks for."""
    if not parameters:
        return Wish()
    wrong = [name for name in (NO_LOAD, NO_SAVE, SESSION_END) if not isinstance(parameters.get(name, False), bool)]
    chunks, last_key, expected = parameters.get(CHUNKS), parameters.get(LAST_KEY), parameters.get(EXPECTED_S)
    if expected is not None and not (_is_number(expected) and 0 <= expected <= EXPECTED_S_MAX):
        wrong.append(EXPECTED_S)
        expected = None
    if not (chunks is None or (_is_whole(chunks) and chunks >= 0)):
        wrong.append(CHUNKS)
        chunks = None
    if not (last_key is None or isinstance(last_key, str)):
        wrong.append(LAST_KEY)
        last_key = None
    group_s = _group_s(parameters, draw, wrong)
    if expected is None:
        expected = _expected_s(parameters, chunks, expected_s) or group_s
    return Wish(
        may_load=not parameters.get(NO_LOAD),
        may_save=not parameters.get(NO_SAVE),
        ends_session=bool(parameters.get(SESSION_END)),
        prefills=bool(parameters.get(REMOTE_DECODE)),
        expected_s=min(float(expected), expected_s_max),
        chunks=chunks,
        last_key=last_key,
        unknown=tuple(sorted(name for name in parameters if name.startswith(PREFIX) and name not in PARAMETERS)),
        wrong=tuple(wrong),
    )


def _group_s(parameters: Mapping[str, Any], draw: float, wrong: list[str]) -> float:
    """How long a member of a group waits for another member before it computes the prompt for all."""
    group, place = parameters.get(GROUP), parameters.get(GROUP_PLACE)
    if group is None:
        wrong += [GROUP_PLACE] if place is not None else []
        return 0.0
    if not (_is_whole(group) and 1 <= group <= GROUP_MAX):
        wrong.append(GROUP)
        return 0.0
    if place is None:
        return draw * GROUP_DRAW_S * float(group) if group > 1 else 0.0
    if not (_is_whole(place) and 0 <= place < group):
        wrong.append(GROUP_PLACE)
        return 0.0
    return float(place) * GROUP_STEP_S


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _expected_s(parameters: Mapping[str, Any], chunks: int | None, expected_s: float) -> float:
    """How long a request waits whose prompt another engine computes or has computed."""
    if chunks is not None:
        return ANNOUNCED_S if chunks else 0.0
    # Blocks of another connector's engine: it brings them itself. Without any, a proxy has asked both engines at once.
    return expected_s if parameters.get(REMOTE_PREFILL) and not parameters.get(REMOTE_BLOCKS) else 0.0


def answer_of(keys: PrefixKeys, chunks: int, request: str, engine: str, tokens: int, *, nixl: bool) -> dict[str, Any]:
    """`kv_transfer_params` of a prefill's answer: `chunks` leading chunks of `keys` are in the pool.

    `nixl`: with the fields of vLLM's NIXL connector, which has no address here: `engine` is the id of the engine that
    computed `tokens` tokens for `request`. Without it nothing clashes with that connector beside ours.
    """
    said: dict[str, Any] = {CHUNKS: chunks}
    if chunks:
        said[LAST_KEY] = keys.keys[chunks - 1][0].hex()
    if nixl:
        said |= {
            REMOTE_PREFILL: True,
            REMOTE_DECODE: False,
            REMOTE_BLOCKS: None,
            "remote_engine_id": engine,
            "remote_request_id": request,
            "remote_host": None,
            "remote_port": None,
            "remote_num_tokens": tokens,
        }
    return said


def shares(wish: Wish, keys: PrefixKeys) -> bool:
    """Whether this engine gives the other one's last chunk the same key; also true while that is unknown."""
    if wish.last_key is None or not wish.chunks or wish.chunks > keys.chunks_count:
        return True
    return keys.keys[wish.chunks - 1][0].hex() == wish.last_key
