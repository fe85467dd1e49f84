"""Operators' state as a document that people can read, for files and stores: JSON, with who set what and when. Pure."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

from controlplane.core import parse
from kvproto.records import RecordError
from kvproto.rpc import control_pb2 as rpc

_Thing = TypeVar("_Thing", str, bytes)
_FORM: Final = 1
_BYTES_MAX: Final = 1 << 23
"""Of a document: more than all pins that there may be."""


class StateError(ValueError):
    """It is no document of ours; one line."""


def document_of(state: rpc.OperatorState) -> bytes:
    """As it is kept. Signatures are for what agents keep."""
    document = {
        "form": _FORM,
        "revision": state.revision,
        "drained": _runs(state.drained, state.drained_marks, state.marks, str),
        "expelled": _runs(state.expelled, state.expelled_marks, state.marks, str),
        "switch_pins": _runs(state.switch_pins, state.switch_pin_marks, state.marks, bytes.hex),
    }
    return json.dumps(document, indent=1).encode() + b"\n"


def state_in(content: bytes) -> rpc.OperatorState:
    """From a document, checked. Raises StateError."""
    if len(content) > _BYTES_MAX:
        raise StateError(f"it has {len(content)} bytes, {_BYTES_MAX} at most")
    try:
        said = json.loads(content)
        if said["form"] != _FORM:
            raise StateError(f"form {said['form']!r} is of a later release")
        state = rpc.OperatorState(revision=said["revision"])
        _read(said["drained"], str, state.drained, state.drained_marks, state.marks)
        _read(said["expelled"], str, state.expelled, state.expelled_marks, state.marks)
        _read(said["switch_pins"], bytes.fromhex, state.switch_pins, state.switch_pin_marks, state.marks)
        parse.check_operator_state(state)
    except StateError:
        raise
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise StateError(f"it is no state that a controller wrote ({type(error).__name__})") from error
    except RecordError as error:
        raise StateError(str(error)) from error
    return state


def _runs(
    things: Iterable[_Thing], indexes: Sequence[int], marks: Sequence[rpc.Mark], word: Callable[[_Thing], str]
) -> list[dict[str, object]]:
    """What was set at one time by one operator goes together."""
    by_mark: dict[int, list[str]] = {}
    for thing, index in zip(things, indexes, strict=True):
        by_mark.setdefault(index, []).append(word(thing))
    return [
        {
            "by": marks[index].by,
            "at": datetime.fromtimestamp(marks[index].at_ms / 1000, UTC).isoformat(timespec="milliseconds"),
            "what": words,
        }
        for index, words in sorted(by_mark.items())
    ]


def _read(runs: Any, thing: Callable[[str], Any], things: Any, indexes: Any, marks: Any) -> None:
    for run in runs:
        at_ms = round(datetime.fromisoformat(run["at"]).timestamp() * 1000)
        for word in run["what"]:
            things.append(thing(word))
            indexes.append(len(marks))
        marks.add(by=run["by"], at_ms=at_ms)
