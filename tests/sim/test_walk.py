"""How far the cores walk with one chunk that one node fetches from another: Python calls, files, and moves from file to
file. In the simulator they are exact, so this is a budget, and it may only fall. `make walk` counts real agents."""

import sys
from collections import Counter
from pathlib import Path
from types import FrameType

import hostagent
import kvpolicy
import kvproto
from kvsim.world import Setting, World

CALLS, FILES, MOVES = 369, 34, 174
"""Of the cores of both nodes, from the engine's fetch until all is quiet. Lower them; never raise them."""
CORES = tuple(str(Path(package.__path__[0])) for package in (hostagent, kvpolicy, kvproto))
ONE_CHUNK = Setting(readers=1, chunks=1, segments=1, plain=True, is_known_plain=True)
"""Of one segment: how a larger one is striped, and how often its reads tell how far they are, is another figure."""


class Walk:
    """A profile function."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.moves = 0
        self._at = ""

    def __call__(self, frame: FrameType, event: str, _: object) -> None:
        file = frame.f_code.co_filename
        if event == "call" and file.startswith(CORES):
            self.calls[file] += 1
            self.moves += file != self._at
            self._at = file


def test_one_fetched_chunk_walks_no_further(checked) -> None:
    checked(World(ONE_CHUNK))  # what the first run imports and looks up is nobody's walk
    world, walk = World(ONE_CHUNK), Walk()
    sys.setprofile(walk)
    try:
        report = world.run()
    finally:
        sys.setprofile(None)
    assert report.leading == (1,)
    by_file = "\n".join(f"{count:5} {file}" for file, count in walk.calls.most_common())
    assert walk.calls.total() <= CALLS, by_file
    assert len(walk.calls) <= FILES, by_file
    assert walk.moves <= MOVES, by_file
    assert not [file for file in walk.calls if file.endswith("twins.py")], "of a node that has no twins"
