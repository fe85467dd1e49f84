"""The terminal of an operator's commands: whatever a cluster has written into a name, it shows it and does nothing."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from kvproto.printable import printable_lines


class Terminal(Console):
    """Standard output, as wide as the terminal, or 100 columns where there is none. Strings are text: no markup, no
    emoji, and of control characters only those that rich makes itself."""

    def __init__(self) -> None:
        super().__init__(highlight=False, markup=False, emoji=False)
        if not self.is_terminal:
            self.width = 100

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich does, with text that is printable."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable_lines(segment.text), segment.style)
