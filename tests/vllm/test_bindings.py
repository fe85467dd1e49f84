"""What a vLLM request adds to its keys, from vLLM's own request objects.

No engine sees images here: their processors need torchvision, which has no build for this torch (one hears, in
test_models). The connector sees nothing of an image but what these requests carry.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvclient.engines.core.identity import EngineIdentity, Shard

CHUNK = 16
TOKENS = list(range(100, 196))
IDENTITY = EngineIdentity(
    model="m",
    revision="",
    weights_digest="w",
    dtype="bfloat16",
    cache_dtype="auto",
    block_tokens=16,
    chunk_tokens=CHUNK,
    engine="vllm",
    extra="{}",
    shards=(Shard(0, 1, 0, 1, "layout", 1000),),
)


def keys_of(keys: Any, **more: Any) -> list[bytes] | None:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    found = keys.of(Request("r", TOKENS, SamplingParams(max_tokens=1), None, **more))
    if found is None:
        return None
    found.extend(TOKENS)
    return list(found.flat(0, found.chunks_count))


def request_keys() -> Any:
    from kvclient.engines.vllm.bindings import RequestKeys

    return RequestKeys(IDENTITY)


def image(offset: int, length: int, digest: str) -> Any:
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    return MultiModalFeatureSpec(None, "image", digest, PlaceholderRange(offset, length), digest)


def test_images_count_from_where_they_begin() -> None:
    keys = request_keys()
    text = keys_of(keys)
    cat, dog = (keys_of(keys, mm_features=[image(40, 10, digest)]) for digest in ("cat", "dog"))
    both = keys_of(keys, mm_features=[image(40, 10, "cat"), image(70, 10, "dog")])
    assert text is not None
    assert cat is not None
    assert dog is not None
    assert both is not None
    begins = 40 // CHUNK
    assert text[:begins] == cat[:begins] == dog[:begins]
    assert not set(text[begins:]) & set(cat[begins:])
    assert not set(cat[begins:]) & set(dog[begins:])
    second = 70 // CHUNK
    assert both[:second] == cat[:second]
    assert not set(both[second:]) & set(cat[second:])
    assert keys_of(keys, mm_features=[image(40, 10, "cat")]) == cat


def test_salts_and_adapters_count(tmp_path: Path) -> None:
    from vllm.lora.request import LoRARequest

    keys = request_keys()
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "adapter_model.bin").write_bytes(name.encode() * 100)
    found = [
        keys_of(keys),
        keys_of(keys, cache_salt="s"),
        keys_of(keys, lora_request=LoRARequest("one", 1, str(tmp_path / "a"))),
        keys_of(keys, lora_request=LoRARequest("one", 2, str(tmp_path / "b"))),
        keys_of(keys, lora_request=LoRARequest("two", 3, str(tmp_path / "a"))),
        keys_of(keys, lora_request=LoRARequest("one", 1, str(tmp_path / "a")), cache_salt="s"),
    ]
    flat = [key for each in found if each is not None for key in each]
    assert len(set(flat)) == len(flat) == len(found) * len(TOKENS) // CHUNK


def test_an_adapter_without_readable_files_has_no_keys(tmp_path: Path) -> None:
    from vllm.lora.request import LoRARequest

    keys = request_keys()
    nowhere = LoRARequest("gone", 1, str(tmp_path / "gone"))
    assert keys_of(keys, lora_request=nowhere) is None
    assert keys_of(keys, lora_request=nowhere) is None


def adapter(folder: Path, content: str) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "adapter_model.bin").write_text(content)
    return folder


def request_of(lora: Any, name: str = "r") -> Any:
    from vllm import SamplingParams
    from vllm.v1.request import Request

    return Request(name, TOKENS, SamplingParams(max_tokens=1), None, lora_request=lora)


def test_an_adapter_loaded_again_in_place_has_other_keys(tmp_path: Path) -> None:
    from vllm.lora.request import LoRARequest

    keys, folder = request_keys(), adapter(tmp_path / "a", "step 1")
    lora = LoRARequest("policy", 1, str(folder), load_inplace=True)
    before = keys_of(keys, lora_request=lora)
    under_way = request_of(lora, "under way")
    assert keys.of(under_way) is not None
    assert keys.are_true(under_way)
    adapter(folder, "step 2 ")
    assert not keys.are_true(under_way), "it computes with the new adapter under the old one's keys"
    after = keys_of(keys, lora_request=lora)
    assert before is not None
    assert after is not None
    assert not set(before) & set(after)
    adapter(folder, "step 1")
    assert keys_of(keys, lora_request=lora) == before
    assert not keys.are_true(under_way), "some of its KV may be of step 2"


def test_an_adapter_written_to_but_not_loaded_again_has_no_keys(tmp_path: Path) -> None:
    from vllm.lora.request import LoRARequest

    keys, folder = request_keys(), adapter(tmp_path / "a", "1")
    lora = LoRARequest("policy", 1, str(folder))
    under_way = request_of(lora)
    assert keys.of(under_way) is not None
    adapter(folder, "2 ")
    assert not keys.are_true(under_way)
    assert keys_of(keys, lora_request=lora) is None, "nobody knows which of both is loaded"
    keys.request_ended(under_way.request_id)
    assert keys_of(keys, lora_request=LoRARequest("policy", 1, str(folder), load_inplace=True)) is not None
    assert keys_of(keys, lora_request=LoRARequest("other", 2, str(folder))) is not None


def test_forgotten_keys_never_come_back() -> None:
    keys = request_keys()
    seen = set()
    for _ in range(3):
        found = keys_of(keys)
        assert found is not None
        assert not seen & set(found)
        seen |= set(found)
        keys.forget()


def test_the_trace_context_of_a_request_is_carried_on() -> None:
    """Where vLLM keeps the headers of a request that it was told to trace."""
    from vllm import SamplingParams
    from vllm.v1.request import Request

    from kvclient.engines.vllm.bindings import traceparent_of

    traced = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    headers = {"traceparent": traced, "tracestate": "a=b"}
    request = Request("r", TOKENS, SamplingParams(max_tokens=1), None, trace_headers=headers)
    assert traceparent_of(request) == traced
    assert traceparent_of(Request("r", TOKENS, SamplingParams(max_tokens=1), None)) is None
    assert traceparent_of(Request("r", TOKENS, SamplingParams(max_tokens=1), None, trace_headers={})) is None
