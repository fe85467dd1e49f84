"""The terminal of all commands: whatever a cluster, a trace or a user has written into a name, it shows it and does
nothing."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from kvproto.printable import printable_lines


class Terminal(Console):
    """Standard output or error, as wide as the terminal, or 80 columns where there is none. Strings are text: no
    markup, no emoji, and of control characters only those that rich makes itself."""

    def __init__(self, *, stderr: bool = False, width: int | None = None) -> None:
        """`width`: in columns, whatever the terminal has."""
        super().__init__(stderr=stderr, width=width, highlight=False, markup=False, emoji=False)

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """As rich does, with text that is printable."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable_lines(segment.text), segment.style)
