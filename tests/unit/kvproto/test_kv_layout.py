"""What a label says of KV: layouts in words, and what nobody believes."""

from __future__ import annotations

import pytest

from kvchunk.kv_layout import KvLayout, KvTerms, parse_layout, terms_of, with_terms

TEXT = "bf16.l28.b16.p2.t16.h8.d128"


def test_words_and_layouts_are_the_same() -> None:
    layout = parse_layout(TEXT)
    assert layout.text == TEXT
    assert (layout.size("l"), layout.size("h"), layout.size("d")) == (28, 8, 128)
    assert layout.size_bytes == 28 * 16 * 2 * 16 * 8 * 128 * 2
    assert parse_layout("fp32.l2.t3.d4").size("p") == 1
    assert parse_layout("fp32.p2.t3.d4.kdt").text == "fp32.p2.t3.d4.kdt"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "bf16",
        "int8.l2.d4",
        "bf16.l2.d4.t3",
        "bf16.l2.l2.d4",
        "bf16.x2.d4",
        "bf16.l0.d4",
        "bf16.l02.d4",
        "bf16.l.d4",
        "bf16.l2000000.d4",
        "bf16.l1000000.t1000000.d4",
        "bf16.l٣.d4",
        "bf16.l2.d4" + "." * 90,
        "bf16.p2.t3.h2.d4.kdt",
        "bf16.t3.d4.kdt",
        "bf16.p2.t3.d4.kdt.kdt",
    ],
)
def test_other_words_are_refused(text: str) -> None:
    with pytest.raises(ValueError):
        parse_layout(text)


@pytest.mark.parametrize("may_lose", [True, False])
def test_a_label_says_terms_of_a_chunk_of_the_right_size(may_lose: bool) -> None:
    terms = KvTerms(parse_layout(TEXT), may_lose)
    label = with_terms("some/model kv@12345678", terms)
    assert label.startswith("some/model kv@12345678 kv=")
    assert terms_of(label, terms.layout.size_bytes) == terms
    assert terms_of(label, terms.layout.size_bytes - 2) is None


@pytest.mark.parametrize(
    "label",
    ["", "model@1", "model kv=", f"model kv=other:{TEXT}", f"kv=lossy:{TEXT}", "model kv=lossy:bf16", "kv=lossy"],
)
def test_a_label_without_terms_says_nothing(label: str) -> None:
    assert terms_of(label, parse_layout(TEXT).size_bytes) is None


def test_a_layout_is_checked_when_it_is_made() -> None:
    with pytest.raises(ValueError, match="numbers of type 'fp8'"):
        KvLayout("fp8", (("d", 1),))
