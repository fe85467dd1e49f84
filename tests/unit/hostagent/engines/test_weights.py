"""Digests of weights: every byte counts, nothing is read twice, and nothing is known before it is."""

from __future__ import annotations

import hashlib
import json
import os
import struct
import threading
from pathlib import Path

import pytest

from kvclient.engines import weights
from kvclient.engines.weights import (
    ADAPTER_SUFFIXES,
    WeightsDigest,
    WeightsError,
    digest_of,
    digest_of_files,
    files_read,
    signature_of,
    version_in,
)


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "kvcast" / "weights.json"


def write_safetensors(path: Path, tensors: dict[str, bytes]) -> None:
    header, start = {}, 0
    for name, content in tensors.items():
        header[name] = {"dtype": "U8", "shape": [len(content)], "data_offsets": [start, start + len(content)]}
        start += len(content)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(tensors.values()))


def model(folder: Path, tensors: dict[str, bytes]) -> Path:
    folder.mkdir()
    write_safetensors(folder / "model.safetensors", tensors)
    return folder


def test_every_byte_counts_and_the_folder_does_not(tmp_path: Path) -> None:
    big = bytes(3_000_000)
    first = digest_of(model(tmp_path / "a", {"x": big, "y": b"1" * 5000}))
    assert first == digest_of(model(tmp_path / "b", {"x": big, "y": b"1" * 5000}))
    places = range(0, len(big), len(big) // 20)
    others = {
        digest_of(model(tmp_path / f"c{place}", {"x": big[:place] + b"1" + big[place + 1 :], "y": b"1" * 5000}))
        for place in places
    }
    others.add(digest_of(model(tmp_path / "d", {"x": big, "z": b"1" * 5000})))
    assert len(others) == len(places) + 1
    assert first not in others


def test_names_of_files_count(tmp_path: Path) -> None:
    for name, files in (("a", ("1.bin", "2.bin")), ("b", ("2.bin", "1.bin"))):
        (tmp_path / name).mkdir()
        for file, content in zip(files, (b"x", b"y"), strict=True):
            (tmp_path / name / file).write_bytes(content)
    assert digest_of(tmp_path / "a") != digest_of(tmp_path / "b")


def test_an_adapters_configuration_counts(tmp_path: Path) -> None:
    (tmp_path / "adapter_model.safetensors").write_bytes(b"x")
    (tmp_path / "adapter_config.json").write_text('{"lora_alpha": 8}')
    first = digest_of(tmp_path, ADAPTER_SUFFIXES)
    (tmp_path / "adapter_config.json").write_text('{"lora_alpha": 16}')
    assert digest_of(tmp_path, ADAPTER_SUFFIXES) != first


def test_a_file_is_read_once(tmp_path: Path, own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model(tmp_path / "m", {"x": b"1" * 5000})
    first = digest_of(folder)
    assert len(json.loads(own_cache.read_text())) == 1
    monkeypatch.setattr(weights, "sha256_of", lambda file: pytest.fail(f"{file} was read again"))
    assert digest_of(folder) == first


def test_a_file_that_was_written_again_is_read_again(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", {"x": b"1" * 5000})
    first, signature = digest_of(folder), signature_of(folder)
    write_safetensors(folder / "model.safetensors", {"x": b"2" * 5000})
    assert signature_of(folder) != signature
    assert digest_of(folder) != first


def test_a_broken_cache_costs_reading_again(tmp_path: Path, own_cache: Path) -> None:
    folder = model(tmp_path / "m", {"x": b"1" * 5000})
    first = digest_of(folder)
    own_cache.write_text("nonsense")
    assert digest_of(folder) == first


def test_blobs_of_a_hub_have_their_digest_as_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = model(tmp_path / "plain", {"x": b"1" * 5000})
    content = (plain / "model.safetensors").read_bytes()
    blob = tmp_path / "blobs" / hashlib.sha256(content).hexdigest()
    blob.parent.mkdir()
    blob.write_bytes(content)
    snapshot = tmp_path / "snapshots"
    snapshot.mkdir()
    os.symlink(f"../blobs/{blob.name}", snapshot / "model.safetensors")
    expected = digest_of(plain)
    monkeypatch.setattr(weights, "sha256_of", lambda file: pytest.fail(f"{file} was read"))
    assert digest_of(snapshot) == expected


def test_no_weights_is_one_clear_line(tmp_path: Path) -> None:
    with pytest.raises(WeightsError, match="set weights_digest"):
        digest_of(tmp_path)
    with pytest.raises(WeightsError, match="set weights_digest"):
        signature_of(tmp_path / "nowhere")


def test_a_file_that_changes_while_it_is_read_has_no_digest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = model(tmp_path / "m", {"x": b"1" * 5000})

    def rewritten(file: Path) -> str:
        write_safetensors(file, {"x": b"2" * 6000})
        return "0" * 64

    monkeypatch.setattr(weights, "sha256_of", rewritten)
    with pytest.raises(WeightsError, match="changed while it was read"):
        digest_of(folder)


def test_nothing_is_known_before_it_is() -> None:
    go = threading.Event()

    def compute() -> str:
        go.wait()
        return "digest"

    digest = WeightsDigest(compute)
    assert digest.get() is None
    assert digest.get(0.001) is None
    go.set()
    assert digest.get(60) == "digest"


@pytest.mark.parametrize("error", [WeightsError("no such thing"), RuntimeError("a bug")])
def test_what_goes_wrong_in_the_background_is_raised_where_it_can_be_said(error: Exception) -> None:
    def compute() -> str:
        raise error

    digest = WeightsDigest(compute)
    with pytest.raises(WeightsError, match=r"no such thing|a bug"):
        digest.get(60)


def test_only_files_that_were_read_count(tmp_path: Path) -> None:
    folder = model(tmp_path / "m", {"x": b"1" * 5000})
    (folder / "other.pt").write_bytes(b"1")
    patterns = ("*.pt", "*.safetensors")
    assert [file.name for file in files_read(folder, patterns)] == ["other.pt"]
    first = digest_of_files(files_read(folder, patterns))
    write_safetensors(folder / "model.safetensors", {"x": b"2" * 5000})
    assert digest_of_files(files_read(folder, patterns)) == first
    (folder / "other.pt").write_bytes(b"2")
    assert digest_of_files(files_read(folder, patterns)) != first
    with pytest.raises(WeightsError, match=r"no weight files \*\.gguf found"):
        files_read(folder, ("*.gguf",))


@pytest.mark.parametrize(
    ("content", "version"),
    [(b" step 12\n", "step 12"), (b"", ""), (b"\xff", ""), (None, ""), (b"1" * 256, "1" * 256), (b"1" * 257, "")],
)
def test_a_callers_version_of_the_weights(tmp_path: Path, content: bytes | None, version: str) -> None:
    if content is not None:
        (tmp_path / "version").write_bytes(content)
    assert version_in(str(tmp_path / "version")) == version
