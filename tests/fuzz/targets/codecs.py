"""Stored chunks of anybody's making: records, and bytes in the forms that they name."""

from __future__ import annotations

import struct
from random import Random
from typing import ClassVar

import numpy as np

from hostagent.cold.objects import RECORD_BYTES, packed_record, record_of
from hostagent.pool.records import Record
from kvchunk.ids import ChunkKey
from kvchunk.kv_layout import KvLayout, KvTerms, parse_layout, terms_of, with_terms
from kvcodec import codec
from kvcodec.forms import CodecError, Form, StoredForm
from kvcodec.native import native_loops
from kvproto.integrity import NO_DIGEST
from tests.fuzz.target import Case, check

_LAYOUTS = ("bf16.l2.p2.t24.h2.d16", "fp16.l1.b2.p2.h2.t12.d32", "fp32.l2.t16.d24", "bf16.l1.t3.d128")
_KEY = ChunkKey(b"k" * 16)


class Codecs:
    """A step: one byte for the form and the layout that the reader expects, then what is stored; or a whole object."""

    name: ClassVar[str] = "codecs"
    checks: ClassVar[str] = "a chunk of the right size or CodecError of one line; no byte beside the chunk is written"
    limit_s: ClassVar[float] = 2.0
    words: ClassVar[tuple[bytes, ...]] = (
        b"KVCP",
        b"KVCL",
        b"\xff\xff\xff\xff",
        struct.pack("<I", 1 << 31),
        struct.pack("!Q", 1 << 62),
        b"\x28\xb5\x2f\xfd",
        *(text.encode() for text in _LAYOUTS),
        b" kv=lossy:",
    )

    def __init__(self) -> None:
        self._loops = native_loops()

    def fresh(self, random: Random) -> Case:
        place, form = random.randrange(len(_LAYOUTS)), random.choice((Form.PLANES, Form.LOSSY))
        layout = parse_layout(_LAYOUTS[place])
        numbers = np.random.default_rng(random.randrange(1 << 32)).standard_normal(layout.numbers).astype(np.float32)
        if layout.element == "bf16":
            chunk = (numbers.view(np.uint32) >> 16).astype(np.uint16).tobytes()
        else:
            chunk = numbers.astype({"fp16": np.float16, "fp32": np.float32}[layout.element]).tobytes()
        found, stored = codec.encode(memoryview(chunk), form, self._loops, layout)
        stored_as = None if found is Form.RAW else StoredForm(found, len(stored))
        label = with_terms("m", KvTerms(layout, random.random() < 0.5))
        record = Record(_KEY, None, 0, label, RECORD_BYTES, len(chunk), NO_DIGEST, 0, stored_as)
        head = bytes((found | place << 4,))
        return [head + bytes(stored), b"\xff" + packed_record(record) + bytes(stored)]

    def run(self, case: Case) -> None:
        for step in case:
            if not step:
                continue
            if step[0] == 0xFF:
                self._read_object(step[1:])
            else:
                layout = parse_layout(_LAYOUTS[(step[0] >> 4) % len(_LAYOUTS)])
                self._decode(Form(step[0] % len(Form)), step[1:], layout.size_bytes)

    def _read_object(self, content: bytes) -> None:
        if len(content) < RECORD_BYTES:
            return
        record = record_of(_KEY, content[:RECORD_BYTES])
        if record is None or record.size_bytes > 1 << 20:
            return
        terms = terms_of(record.namespace, record.size_bytes)
        check(terms is None or isinstance(terms.layout, KvLayout), "terms without a layout")
        if record.stored is not None:
            self._decode(record.stored.form, content[RECORD_BYTES:], record.size_bytes)

    def _decode(self, form: Form, stored: bytes, size_bytes: int) -> None:
        beside = 64
        memory = bytearray(b"\xa5" * (size_bytes + 2 * beside))
        try:
            codec.decode(form, memoryview(stored), memoryview(memory)[beside : beside + size_bytes], self._loops)
        except CodecError as error:
            check("\n" not in str(error), "a CodecError of several lines")
            check(len(str(error)) < 400, f"a CodecError of {len(str(error))} characters")
        around = memory[:beside] + memory[-beside:]
        check(around == b"\xa5" * 2 * beside, "bytes beside the chunk were written")

    def close(self) -> None:
        """Nothing is open."""
