"""What the benchmarks put into the pool: bytes that anybody who knows a chunk's key can make again."""

from __future__ import annotations

import argparse
import ctypes
import functools
import hashlib
from dataclasses import dataclass

import numpy as np

from bmv2_testbed.errors import TestbedError
from kvchunk.ids import ChunkKey
from kvcodec.forms import Form
from kvproto.twins import twin_key

KEY_BYTES = 16

_memcmp = ctypes.CDLL(None).memcmp
_memcmp.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_size_t)


def content_of(key: bytes, size_bytes: int) -> bytes:
    """The content of a chunk: the Philox stream seeded with its key. Same bytes on every machine and numpy."""
    words = np.random.Philox(key=int.from_bytes(key, "big")).random_raw((size_bytes + 7) // 8)
    return np.asarray(words, dtype="<u8").tobytes()[:size_bytes]


def kv_content_of(key: bytes, size_bytes: int) -> bytes:
    """Content that KV could be: normal numbers of 16 bits (bf16), by a stream seeded with the chunk's key."""
    count = -(-size_bytes // 2)
    numbers = np.random.Generator(np.random.Philox(key=int.from_bytes(key, "big"))).standard_normal(count, np.float32)
    return (numbers.view(np.uint32) >> 16).astype("<u2").tobytes()[:size_bytes]


def same_content(found: memoryview | bytes, expected: bytes) -> bool:
    """Compare every byte, in place. (`==` compares memoryviews item by item, 20 times slower than memcmp.)"""
    if len(found) != len(expected):
        return False
    address = np.frombuffer(found, np.uint8).ctypes.data if len(expected) else 0
    return bool(_memcmp(address, expected, len(expected)) == 0)


def chained_key(parent: bytes, label: bytes) -> bytes:
    """Key of a benchmark's chunk under its parent; the label stands for the tokens."""
    return hashlib.blake2b(parent + b"kvcast benchmark" + label, digest_size=KEY_BYTES).digest()


@dataclass(frozen=True, slots=True)
class Prefix:
    """A prefix of `size_bytes` in chunks of `chunk_bytes` (the last may be shorter)."""

    seed: int
    size_bytes: int
    chunk_bytes: int
    kv: bool = False
    """Of numbers as KV has them, which codecs make smaller; else of random bytes."""
    twins: bool = False
    """The holder makes twins of the chunks: who waits for the prefix waits for those."""

    def __post_init__(self) -> None:
        if self.chunk_bytes <= 0 or self.size_bytes <= 0:
            raise TestbedError("a prefix and its chunks have at least one byte")

    @property
    def chunks(self) -> int:
        return -(-self.size_bytes // self.chunk_bytes)

    def chunk_size_bytes(self, index: int) -> int:
        return min(self.chunk_bytes, self.size_bytes - index * self.chunk_bytes)

    def chunk_keys(self) -> list[bytes]:
        """Keys in prefix order, each chained to the one before."""
        return list(_chunk_keys(self))

    def contents(self) -> list[bytes]:
        """Content of every chunk in prefix order."""
        content = kv_content_of if self.kv else content_of
        return [content(key, self.chunk_size_bytes(index)) for index, key in enumerate(self.chunk_keys())]

    def awaited_keys(self) -> list[bytes]:
        """Keys that the directory has once readers may begin."""
        keys = self.chunk_keys()
        return [*keys, *(twin_key(ChunkKey(key), Form.PLANES) for key in keys)] if self.twins else keys


@functools.lru_cache(maxsize=256)
def _chunk_keys(prefix: Prefix) -> tuple[bytes, ...]:
    """An engine has them before it fetches, and so has a benchmark from its second fetch on."""
    keys = []
    parent = b""
    for index in range(prefix.chunks):
        parent = chained_key(parent, f"{prefix.seed}/{index}/{prefix.chunk_size_bytes(index)}".encode())
        keys.append(parent)
    return tuple(keys)


def prefix_arguments(prefix: Prefix) -> list[str]:
    """A prefix as the words of a command line."""
    words = ["--seed", str(prefix.seed), "--size", str(prefix.size_bytes), "--chunk", str(prefix.chunk_bytes)]
    return words + ["--kv"] * prefix.kv + ["--twins"] * prefix.twins


def add_prefix_arguments(parser: argparse.ArgumentParser) -> None:
    """What `prefix_of` needs of a command line with those words."""
    for name in ("--seed", "--size", "--chunk"):
        parser.add_argument(name, type=int, required=True)
    for name in ("--kv", "--twins"):
        parser.add_argument(name, action="store_true")


def prefix_of(args: argparse.Namespace) -> Prefix:
    """The prefix that the words name."""
    return Prefix(args.seed, args.size, args.chunk, args.kv, args.twins)
