"""Saves under way, what routers are told, the engine's measured rate, settings, fingerprints."""

from __future__ import annotations

import json
import struct
from array import array
from pathlib import Path

import pytest

from hostagent.api.messages import Where
from hostagent.engines.core.announcements import Announcements, ChunkFacts, Medium, Removed, Stored
from hostagent.engines.core.prefill import DEADLINE_S_MIN, FetchTerms, PrefillRate, terms_of
from hostagent.engines.core.requests import SavableChunk
from hostagent.engines.core.saves import SaveLedger
from hostagent.engines.settings import Settings, SettingsError, parse_settings
from hostagent.engines.weights import WeightsError, fingerprint
from kvproto.ids import ChunkKey


def key(number: int) -> ChunkKey:
    return ChunkKey(number.to_bytes(16, "big"))


def savable(number: int, blocks: tuple[int, ...] = (1, 2)) -> SavableChunk:
    return SavableChunk(number, (key(number), key(1000 + number)), (None, None), blocks)


def test_a_save_is_over_when_all_workers_have_answered() -> None:
    ledger = SaveLedger(workers_count=3, blocks_max=10)
    save = ledger.offer(savable(1))
    assert save is not None
    assert ledger.offer(savable(1)) is None, "it is being saved already"
    assert ledger.answered(save.save, 1, 0) is None
    saved = ledger.answered(save.save, 2, 0)
    assert saved is not None
    assert saved.whole
    assert (ledger.pending_count, ledger.blocks_count) == (0, 0)
    again = ledger.offer(savable(1))
    assert again is not None
    assert ledger.answered(again.save, 2, 1) is None
    failed = ledger.answered(again.save, 1, 0)
    assert failed is not None
    assert not failed.whole
    with pytest.raises(KeyError):
        ledger.answered(again.save, 1, 0)


def test_saves_do_not_take_the_cache_from_the_engine() -> None:
    ledger = SaveLedger(workers_count=1, blocks_max=5)
    first = ledger.offer(savable(1))
    assert first is not None
    assert ledger.offer(savable(2)) is not None
    assert ledger.offer(savable(3)) is None
    assert ledger.dropped_count == 1
    ledger.answered(first.save, 1, 0)
    assert ledger.offer(savable(3)) is not None


FACTS = ChunkFacts((b"h0", b"h1"), None, array("I", [1, 2, 3]), None)


def test_routers_are_told_once_and_when_it_changes() -> None:
    told = Announcements(chunks_max=10)
    assert told.there((key(1),), Where.LOCAL, FACTS) == [Stored(Medium.POOL, FACTS)]
    assert told.there((key(1),), Where.REMOTE, FACTS) == []
    moved = [Stored(Medium.SWITCH, FACTS), Removed(Medium.POOL, FACTS.block_hashes)]
    assert told.there((key(1),), Where.SWITCH, FACTS) == moved
    assert told.keys() == [(key(1),)]
    assert told.swept([(key(1),)], [Where.SWITCH]) == []
    assert told.swept([(key(1),), (key(7),)], [Where.NOWHERE, Where.LOCAL]) == [
        Removed(Medium.SWITCH, FACTS.block_hashes)
    ]
    assert len(told) == 0


def test_what_is_forgotten_is_withdrawn() -> None:
    told = Announcements(chunks_max=2)
    for number in (1, 2):
        told.there((key(number),), Where.LOCAL, FACTS)
    told.there((key(1),), Where.LOCAL, FACTS)
    events = told.there((key(3),), Where.LOCAL, FACTS)
    assert events == [Stored(Medium.POOL, FACTS), Removed(Medium.POOL, FACTS.block_hashes)]
    assert key(2) not in told
    assert key(1) in told
    assert told.withdraw() == [Removed(Medium.POOL, FACTS.block_hashes)] * 2
    assert len(told) == 0


def test_the_rate_is_learnt_from_prompts_only() -> None:
    rate = PrefillRate()
    assert rate.recompute_s(1000) is None
    rate.observe(prompt_tokens=10, decode_tokens=0, seconds=1.0)
    rate.observe(prompt_tokens=100, decode_tokens=200, seconds=1.0)
    rate.observe(prompt_tokens=1000, decode_tokens=0, seconds=0.0)
    assert rate.tokens_per_s is None
    rate.observe(prompt_tokens=1000, decode_tokens=0, seconds=0.5)
    assert rate.recompute_s(1000) == 0.5
    for _ in range(30):
        rate.observe(prompt_tokens=1000, decode_tokens=0, seconds=0.1)
    assert rate.recompute_s(1000) == pytest.approx(0.1, rel=1e-3)
    fixed = PrefillRate(100.0, fixed=True)
    fixed.observe(prompt_tokens=1000, decode_tokens=0, seconds=0.1)
    assert fixed.recompute_s(1000) == 10


def test_a_fetch_may_take_as_long_as_computing() -> None:
    assert terms_of(None, gated=True, deadline_s_max=10) == FetchTerms(None, 10)
    assert terms_of(0.7, gated=True, deadline_s_max=10) == FetchTerms(0.7, 0.7)
    assert terms_of(0.7, gated=False, deadline_s_max=10) == FetchTerms(None, 10)
    assert terms_of(0.001, gated=True, deadline_s_max=10) == FetchTerms(0.001, DEADLINE_S_MIN)
    assert terms_of(70, gated=True, deadline_s_max=10).deadline_s == 10


def test_settings() -> None:
    assert parse_settings({}, {}) == Settings()
    assert parse_settings({}, {"KVCAST_AGENT_SOCKET": "/x"}).socket == "/x"
    made = parse_settings({"socket": "/y", "chunk_tokens": 512, "events": False, "load_deadline_s": 3}, {})
    assert (made.socket, made.chunk_tokens, made.events, made.load_deadline_s) == ("/y", 512, False, 3)


@pytest.mark.parametrize(
    ("extra", "words"),
    [
        ({"chunk_token": 1}, "unknown setting 'chunk_token'"),
        ({"chunk_tokens": "256"}, "chunk_tokens is '256'; it must be a number"),
        ({"chunk_tokens": 1.5}, "must be a number"),
        ({"chunk_tokens": True}, "must be a number"),
        ({"chunk_tokens": 0}, "from 1 to 65536"),
        ({"load": "sometimes"}, "one of auto, async, layerwise, off"),
        ({"events": 1}, "true or false"),
        ({"socket": ""}, "must be text"),
    ],
)
def test_wrong_settings_are_named(extra: dict[str, object], words: str) -> None:
    with pytest.raises(SettingsError, match=words) as error:
        parse_settings(extra, {})
    assert "\n" not in str(error.value)


def write_safetensors(path: Path, tensors: dict[str, bytes]) -> None:
    header, start = {}, 0
    for name, content in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": [start, start + len(content)]}
        start += len(content)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))


def test_fingerprints_tell_weights_apart(tmp_path: Path) -> None:
    def model(name: str, tensors: dict[str, bytes]) -> str:
        folder = tmp_path / name
        folder.mkdir()
        write_safetensors(folder / "model.safetensors", tensors)
        return fingerprint(folder)

    big = bytes(100_000)
    first = model("a", {"x": big, "y": b"1" * 5000})
    assert first == model("b", {"x": big, "y": b"1" * 5000}), "the folder's name does not count"
    others = {
        model("c", {"x": big, "y": b"2" * 5000}),
        model("d", {"x": big, "z": b"1" * 5000}),
        model("e", {"x": big[:-1] + b"1", "y": b"1" * 5000}),
    }
    assert len(others) == 3
    assert first not in others


def test_no_weights_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="set weights_digest"):
        fingerprint(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"nonsense that is no header")
    with pytest.raises(WeightsError, match="cannot read the weights"):
        fingerprint(tmp_path)
