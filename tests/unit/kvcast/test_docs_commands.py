"""Commands, options, settings, metrics, targets and tests that any page of the documentation names are there."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import yaml

import controlplane.config
import hostagent.config
from kvcast.operator import from_file
from tests.reference_tables import DOCS, named, rows, settings
from tools.command_reference import PROGRAMS, help_text, helps

ROOT = Path(__file__).parents[3]
PAGES = sorted([ROOT / "README.md", *DOCS.glob("**/*.md"), *ROOT.glob("p4switch/docs/*.md")])
SWITCH_NAMES = ("kvcast-switch", "p4switch")
PROSE_COLUMNS_MAX = 120

FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^ {4}.*\n)+", re.MULTILINE)
INLINE = re.compile(r"`([^`\n]+)`")
CALL = re.compile(r"(?:^|[\s(])(kvcast-agent|kvcast-controller|kvcast-switch|kvcast|p4switch) +([^`|;&#\n]*)")
OPTION = re.compile(r"--[a-z][a-z0-9-]+")

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def code(text: str) -> Iterator[str]:
    """Everything on a page that is set as code, without the shell's line ends and comments."""
    text = re.sub(r"\\\n *| # .*", "", text)
    for _, _, block in FENCE.findall(text):
        yield block
    rest = FENCE.sub("", text)
    yield from INDENTED.findall(rest)
    yield from INLINE.findall(rest)


def calls(text: str) -> Iterator[tuple[str, list[str]]]:
    """Every call of one of our programs: its name and its words."""
    for snippet in code(text):
        for program, words in CALL.findall(snippet):
            yield program, words.split()


@cache
def commands(program: str) -> dict[tuple[str, ...], set[str]]:
    """The options of every command of a program."""
    return {words: set(OPTION.findall(text)) for words, text in helps(program)}


def mistakes(program: str, words: list[str]) -> set[str]:
    """What a call has that its program does not know."""
    program = "p4switch" if program in SWITCH_NAMES else program
    known = commands(program)
    chosen: tuple[str, ...] = ()
    while words and (*chosen, words[0]) in known:
        chosen, words = (*chosen, words[0]), words[1:]
    options = set().union(*(found for name, found in known.items() if name[: len(chosen)] == chosen))
    if chosen == ("switch",):
        options |= commands("p4switch")[()]
    unknown = set(OPTION.findall(" ".join(words))) - options
    if program == "kvcast" and not chosen and words and re.fullmatch(r"[a-z][a-z-]*", words[0]):
        unknown.add(words[0])
    return unknown


@every_page
def test_commands_and_options_are_there(page: Path) -> None:
    found = {call: mistakes(*call) for call in map(hashable, calls(page.read_text(encoding="utf-8")))}
    assert {call: unknown for call, unknown in found.items() if unknown} == {}


def hashable(call: tuple[str, list[str]]) -> tuple[str, tuple[str, ...]]:
    return call[0], tuple(call[1])


def test_a_command_that_is_gone_is_noticed() -> None:
    text = "`kvcast fly` and\n\n    kvcast ls --served --soon\n    kvcast switch --grpc a:1 --flux\n"
    found = [unknown for call in calls(text) if (unknown := mistakes(*call))]
    assert found == [{"--soon"}, {"--flux"}, {"fly"}]


def test_every_command_is_in_the_reference() -> None:
    for program in PROGRAMS:
        assert help_text(program).startswith("usage: ")
    assert {("bench", "incast"), ("testbed", "up")} <= commands("kvcast").keys()


@cache
def metrics() -> set[str]:
    """Full names of all metrics that the reference has; tests beside the daemons hold it against the code."""
    return {
        f"kvcast_{daemon}_{name}"
        for daemon, page in (("agent", "reference/agent.md"), ("controller", "reference/controller.md"))
        for names, *_ in rows(page, "Metrics")
        for name in named(names)
    }


@every_page
def test_metrics_are_there(page: Path) -> None:
    used = set(
        re.findall(r"(?<!vllm:)\bkvcast_(?:agent|controller)_[a-z0-9_]*[a-z0-9]", page.read_text(encoding="utf-8"))
    )
    assert used - metrics() == set()


@every_page
def test_metrics_of_engines_are_there(page: Path) -> None:
    folder = ROOT / "client" / "src" / "kvclient" / "engines" / "vllm"
    source = "\n".join(path.read_text(encoding="utf-8") for path in folder.glob("*.py"))
    used = re.findall(r"vllm:kvcast_([a-z_]*[a-z])", page.read_text(encoding="utf-8"))
    assert [name for name in used if name.removesuffix("_total") not in source] == []


@every_page
def test_settings_are_there(page: Path) -> None:
    known = settings("reference/agent.md").keys() | settings("reference/controller.md").keys()
    sections = {key.partition(".")[0] for key in known if "." in key} - {"nodes"}
    words = INLINE.findall(page.read_text(encoding="utf-8"))
    used = {word for word in words if re.fullmatch(r"[a-z]+\.[a-z_.]+[a-z]", word) and word.split(".")[0] in sections}
    assert used - known == set()


@every_page
def test_configurations_are_what_the_daemons_take(page: Path, tmp_path: Path) -> None:
    for _, language, block in FENCE.findall(page.read_text(encoding="utf-8")):
        if language != "yaml":
            continue
        if block.startswith("# lmcache.yaml"):
            assert "remote_storage_plugins" in yaml.safe_load(block)  # test_chain_in_process has LMCache take it
        elif block.startswith("# agent.yaml"):
            hostagent.config.parse(yaml.safe_load(block))
        elif block.startswith("# ~/.config/kvcast/config.yaml"):
            (tmp_path / "config.yaml").write_text(block)
            from_file(tmp_path / "config.yaml")
        else:
            assert block.startswith("# controller.yaml")
            for file in re.findall(r"(?:p4info|program): (\S+)", block):
                (tmp_path / file).touch()
            controlplane.config.parse(yaml.safe_load(block), tmp_path)


@every_page
def test_make_targets_are_there(page: Path) -> None:
    makefile = "p4switch/Makefile" if page.is_relative_to(ROOT / "p4switch") else "Makefile"
    targets = set(re.findall(r"^([a-z0-9][a-z0-9-]*):", (ROOT / makefile).read_text(encoding="utf-8"), re.MULTILINE))
    used = {
        name for text in code(page.read_text(encoding="utf-8")) for name in re.findall(r"\bmake ([a-z0-9-]+)", text)
    }
    assert used <= targets


@every_page
def test_tests_that_are_named_are_there(page: Path) -> None:
    there = {path.name for folder in ("tests", "p4switch/tests") for path in (ROOT / folder).glob("**/*.py")}
    assert set(re.findall(r"\btest_[a-z0-9_]+\.py", page.read_text(encoding="utf-8"))) <= there


@every_page
def test_lines_of_prose_fit_the_screen(page: Path) -> None:
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    lines = [line for line in text.splitlines() if not line.startswith(("|", "    "))]
    assert [line for line in lines if len(line) > PROSE_COLUMNS_MAX] == []


def test_every_page_of_kvcast_links_the_glossary() -> None:
    pages = list(DOCS.glob("*/**/*.md"))
    assert [page.name for page in pages if "glossary.md" not in page.read_text(encoding="utf-8")] == []
