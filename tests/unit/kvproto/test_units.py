"""Sizes and rates, as people write them and as they are shown."""

from __future__ import annotations

import pytest

from kvproto.units import format_bytes, format_rate, parse_rate_bit_s, parse_size_bytes


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("100mbit", 10**8),
        ("1.5gbit", 1_500_000_000),
        ("64kbit/s", 64_000),
        ("9600bit", 9600),
        ("100g", 10**11),
        ("100 Gbit/s", 10**11),
        ("1.6Tbps", 1_600_000_000_000),
    ],
)
def test_rates(text: str, rate: int) -> None:
    assert parse_rate_bit_s(text) == rate


@pytest.mark.parametrize("text", ["", "100", "fast", "-1mbit", "0mbit", "100MB", "mbit", "1qbit"])
def test_bad_rates_name_themselves(text: str) -> None:
    with pytest.raises(ValueError, match=text or "''"):
        parse_rate_bit_s(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("16MiB", 2**24),
        ("16mib", 2**24),
        ("16m", 2**24),
        ("16 MB", 16 * 10**6),
        ("4096", 4096),
        ("4096B", 4096),
        ("1kB", 1000),
        ("1.5KiB", 1536),
        ("2TiB", 2**41),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "MiB", "0B", "-1", "16 parsecs", "1e6", "16MiBit", "0.1"])
def test_bad_sizes_name_themselves(text: str) -> None:
    with pytest.raises(ValueError, match=f"size '{text}'"):
        parse_size_bytes(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (100, "100 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (1536, "1.5 KiB"),
        (2**24, "16 MiB"),
        (1023 * 2**20, "1023 MiB"),
        (2.5e12, "2.27 TiB"),
        (2**60, "1024 PiB"),
    ],
)
def test_sizes_have_three_digits(size: float, text: str) -> None:
    assert format_bytes(size) == text


@pytest.mark.parametrize(
    ("rate", "text"), [(300, "300 bit/s"), (64_000, "64 kbit/s"), (10**8, "100 Mbit/s"), (12.5e9 * 8, "100 Gbit/s")]
)
def test_rates_have_three_digits(rate: float, text: str) -> None:
    assert format_rate(rate) == text
