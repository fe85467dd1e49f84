"""Files of the project for its contributors: what they name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
PAGES = (
    "CONTRIBUTING.md",
    "SECURITY.md",
    "ROADMAP.md",
    "README.md",
    "examples/README.md",
    "client/README.md",
    "deploy/README.md",
)
WORKFLOWS = ROOT / ".github" / "workflows"
TO_THE_SUMMARY = 'cat docs/reference/versions.md >> "$GITHUB_STEP_SUMMARY"'


def targets() -> set[str]:
    return set(re.findall(r"^([a-z0-9][a-z0-9-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))


@pytest.mark.parametrize("page", PAGES)
def test_links_and_make_targets_of_a_page_are_there(page: str) -> None:
    path = ROOT / page
    text = path.read_text()
    links = set(re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", text))
    assert not [link for link in links if not (path.parent / link).exists()]
    assert set(re.findall(r"^ {4}make ([a-z-]+)|`make ([a-z-]+)`", text, re.MULTILINE)) <= {
        pair for target in targets() for pair in ((target, ""), ("", target))
    }


def test_files_that_contributing_names_are_there() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    named = re.findall(r"((?:tests|client|kvcast|hostagent|controlplane|p4switch)/[\w/.*]+)", text)
    assert named
    assert not [name for name in named if not list(ROOT.glob(name.rstrip("/")))]


def test_tests_import_their_helpers_by_full_names() -> None:
    tricks = re.compile(
        r"spec_from_file_location\(|sys\.path\.(?:insert|append)\(str\(|^from (?:conftest|\w+_harness) ", re.M
    )
    sources = [path for path in ROOT.glob("tests/**/*.py") if path != Path(__file__)]
    assert [str(path.relative_to(ROOT)) for path in sources if tricks.search(path.read_text())] == []


@pytest.mark.parametrize("workflow", sorted(WORKFLOWS.glob("*.yml")), ids=lambda workflow: workflow.stem)
def test_a_workflow_calls_make_targets_only_and_names_no_registry(workflow: Path) -> None:
    text = workflow.read_text()
    jobs = yaml.safe_load(text)["jobs"]
    commands = [step["run"] for job in jobs.values() for step in job["steps"] if "run" in step]
    commands = [command for command in commands if command != TO_THE_SUMMARY]
    called = [re.fullmatch(r"(?:sudo --preserve-env=PATH )?make ([a-z0-9-]+)", command) for command in commands]
    assert all(called), commands
    assert {match[1] for match in called if match} <= targets()
    assert not re.search(r"https?://|registry|index-url", text)


def test_hooks_and_issue_forms_are_well_formed() -> None:
    (repository,) = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    assert repository["repo"] == "local"
    assert all(hook["language"] == "system" and hook["name"] for hook in repository["hooks"])
    for path in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        form = yaml.safe_load(path.read_text())
        if path.name != "config.yml":
            assert {"name", "description", "body"} <= set(form)
            assert all(field["type"] in ("textarea", "input", "markdown") for field in form["body"])
