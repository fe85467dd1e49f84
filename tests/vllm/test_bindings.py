"""What a vLLM request adds to its keys, from vLLM's own request objects.

No engine sees images here: their processors need torchvision, which has no build for this torch (one hears, in
test_models). The connector sees nothing of an image but what these requests carry.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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
    from kvclient.engines.vllm.media import MediaDigests

    return RequestKeys(IDENTITY, MediaDigests())


def item(content: str) -> Any:
    """What vLLM's processor makes of an image."""
    import torch
    from vllm.multimodal.inputs import MultiModalFieldElem, MultiModalKwargsItem, MultiModalSharedField

    pixels = torch.frombuffer(bytearray(content.encode()), dtype=torch.uint8)
    return MultiModalKwargsItem({"pixels": MultiModalFieldElem(pixels, MultiModalSharedField(batch_size=1))})


def image(offset: int, length: int, content: str, *, name: str = "", data: Any = True) -> Any:
    """An image; `name`: what vLLM calls it, its content if empty; `data`: an item of its own, or this one."""
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    data = item(content) if data is True else data
    return MultiModalFeatureSpec(data, "image", name or content, PlaceholderRange(offset, length), name or content)


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


def with_image(keys: Any, **more: Any) -> tuple[list[bytes], list[bytes]]:
    """Keys before and from the chunk in which an image begins."""
    found = keys_of(keys, mm_features=[image(40, 10, **more)])
    assert found is not None
    return found[: 40 // CHUNK], found[40 // CHUNK :]


def test_images_are_what_their_data_are_whatever_they_are_called() -> None:
    """A counter of vLLM's process, a client's uuid, vLLM's own hash: on every engine the same data, the same keys."""
    _, cat = with_image(request_keys(), content="cat")
    _, dog = with_image(request_keys(), content="dog")
    assert with_image(request_keys(), content="cat", name="1")[1] == cat
    assert with_image(request_keys(), content="dog", name="1")[1] == dog


def test_a_name_without_data_has_the_keys_of_the_data_it_came_with_before_and_else_none() -> None:
    keys = request_keys()
    text = keys_of(keys)
    assert text is not None
    assert with_image(keys, content="", name="uuid", data=None) == (text[: 40 // CHUNK], [])
    _, cat = with_image(keys, content="cat", name="uuid")
    assert with_image(keys, content="", name="uuid", data=None)[1] == cat


def test_a_name_of_two_images_has_no_keys_any_more() -> None:
    """vLLM may go on with what its encoder made of the first one."""
    keys = request_keys()
    assert with_image(keys, content="cat", name="uuid")[1]
    assert not with_image(keys, content="dog", name="uuid")[1]
    assert not with_image(keys, content="cat", name="uuid")[1]
    assert not with_image(keys, content="", name="uuid", data=None)[1]


def test_where_data_are_is_not_what_they_are() -> None:
    """vLLM's cache in shared memory gives the engine addresses only."""
    from vllm.multimodal.inputs import MultiModalFieldElem, MultiModalKwargsItem, MultiModalSharedField

    def of(**values: Any) -> Any:
        field = MultiModalSharedField(batch_size=1)
        return MultiModalKwargsItem({name: MultiModalFieldElem(value, field) for name, value in values.items()})

    keys = request_keys()
    for data in (of(address=1, monotonic_id=2, signature=[3]), of(pixels=None), of(pixels=object()), of()):
        assert not with_image(keys, content="", name="uuid", data=data)[1]
    assert with_image(keys, content="cat", name="uuid")[1], "nothing was seen of it so far"


def test_what_encoders_made_with_other_weights_has_no_keys() -> None:
    from kvclient.engines.vllm.bindings import RequestKeys
    from kvclient.engines.vllm.media import MediaDigests

    media = MediaDigests()
    keys = RequestKeys(IDENTITY, media)
    assert with_image(keys, content="cat")[1]
    media.weights_changed()
    assert not with_image(keys, content="cat")[1]
    assert with_image(keys, content="dog")[1]


def test_another_engines_encoder_is_not_believed() -> None:
    from kvclient.engines.vllm.bindings import RequestKeys
    from kvclient.engines.vllm.media import MediaDigests

    assert not with_image(RequestKeys(IDENTITY, MediaDigests(trusted=False)), content="cat")[1]


def test_the_oldest_names_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvclient.engines.vllm import media

    monkeypatch.setattr(media, "MEDIA_MAX", 2)
    keys = request_keys()
    for name in ("a", "b", "a", "c"):
        assert with_image(keys, content=name)[1]
    assert with_image(keys, content="", name="a", data=None)[1]
    assert not with_image(keys, content="", name="b", data=None)[1]


def test_an_item_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from kvclient.engines.vllm import media

    keys, cat = request_keys(), item("cat")
    _, found = with_image(keys, content="cat", data=cat)
    monkeypatch.setattr(media, "data_digest", lambda item: pytest.fail("it was read again"))
    assert with_image(keys, content="cat", data=cat)[1] == found


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
