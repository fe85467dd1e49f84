"""Every command block of README, tutorials and how-to pages says how it is followed, or why a test cannot."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.field.pages import PAGES, ROOT, Block, blocks

MACHINES = {"sw", "n1", "n2", "n3"}
SKIPPED_MAX = 20
"""Blocks that nobody follows; a page that needs more of them is not a page to follow."""


def all_blocks() -> list[Block]:
    return [block for page in PAGES for block in blocks(page)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_each_block_is_followed_or_says_why_not(page: Path) -> None:
    for block in blocks(page):
        assert block.kind or not block.needs_mark, f"{block.place}: say before it where it runs, or why it does not"
        assert block.kind != "run" or (block.machines and set(block.machines) <= MACHINES), block.place
        assert block.kind not in ("skip", "shown") or len(block.reason) > 5, f"{block.place}: why?"


def test_what_is_not_followed() -> None:
    skipped = [f"{block.place}: {block.reason}" for block in all_blocks() if block.kind == "skip"]
    print("\n".join(skipped))
    assert len(skipped) <= SKIPPED_MAX, skipped


def test_pages_with_blocks_to_follow_are_followed() -> None:
    tests = (ROOT / "tests" / "field" / "test_pages.py").read_text()
    for block in all_blocks():
        if block.kind in ("run", "file"):
            assert str(block.page.relative_to(ROOT)) in tests, f"{block.place}: no test follows this page"


def test_blocks_beside_engines_are_followed_where_they_say() -> None:
    for block in all_blocks():
        if block.kind == "engines":
            modules = [
                ROOT / "tests" / folder / f"{block.reason}.py" for folder in ("engines", "vllm", "unit/controlplane")
            ]
            texts = [module.read_text() for module in modules if module.is_file()]
            assert texts, f"{block.place}: no suite has {block.reason}.py"
            assert any(block.page.name in text for text in texts), (
                f"{block.place}: {block.reason} does not follow this page"
            )


def test_the_readers_of_pages(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    followed = 'Do:\n\n<!-- run: n1 n2 daemon shows "a b" -->\n\n    one\n    two\n'
    written = "\nand `it.py`:\n\n<!-- file: sw -->\n\n```python\nprint()\n```\n"
    page.write_text(f"{followed}{written}\n* an item\n    goes on\n\n| a |\n\n```sh\nleft alone\n```\n")
    run, file, unmarked = blocks(page)
    assert (run.text, run.machines, run.daemon, run.shows) == ("one\ntwo\n", ("n1", "n2"), True, ("a b",))
    assert (file.name, file.machines, file.text) == ("it.py", ("sw",), "print()\n")
    assert unmarked.needs_mark
    assert not unmarked.kind
    page.write_text("<!-- run: n1 -->\n\nno block\n")
    with pytest.raises(ValueError, match="no block follows"):
        blocks(page)
