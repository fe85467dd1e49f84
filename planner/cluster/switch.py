"""The switch as the controller sees it: tables that take what is written and give back what they hold."""

from __future__ import annotations

from controlplane.core.effects import ReadTheSwitch, WriteTheSwitch
from controlplane.core.switch.entries import SwitchContents
from controlplane.core.switch.programmer import apply
from controlplane.core.switch.target import SwitchFacts


class VirtualSwitch:
    """Never restarts and never refuses; it casts FILLs, and its memory is the number of slots that it reports."""

    def __init__(self, size_bytes: int, segment_bytes: int) -> None:
        slots = size_bytes // segment_bytes
        self.facts = SwitchFacts(slots, segment_bytes, casts_fills=True)
        self._contents: SwitchContents = {}

    def read(self, _: ReadTheSwitch) -> SwitchContents:
        return dict(self._contents)

    def write(self, write: WriteTheSwitch) -> dict[int, str]:
        """Apply updates; index -> reason of those refused: none."""
        for update in write.updates:
            apply(self._contents, update)
        return {}
