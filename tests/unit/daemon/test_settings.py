"""Reading a configuration: what is wrong with a file or a key is one line that names it, in both daemons alike."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import controlplane.config
import hostagent.config
from kvdaemon import checks
from kvdaemon.errors import ConfigError
from kvdaemon.settings import Section, load

LEAST = {hostagent.config.load: "data: {address: 127.0.0.1}\n", controlplane.config.load: "listen: 127.0.0.1:0\n"}
"""What each daemon can do with."""


def refusal(of: Callable[[], object]) -> str:
    with pytest.raises(ConfigError) as caught:
        of()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def section(**values: object) -> Section:
    return Section({"outer": values}).section("outer")


TOO_MANY = "more than 20000 values, with all that aliases stand for"
BILLIONS = b"a0: &a0 [1]\n" + b"".join(b"a%d: &a%d [*a%d, *a%d]\n" % (n, n, n - 1, n - 1) for n in range(1, 40))
MERGES = b"a0: &a0 {b: 1}\n" + b"".join(b"a%d: &a%d {<<: [*a%d, *a%d]}\n" % (n, n, n - 1, n - 1) for n in range(1, 40))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"a: \xff\xfe\n", "cannot read {}: not UTF-8"),
        (b"a: 1\nb: [\n", "{} line 3: not YAML: expected the node content, but found '<stream end>'"),
        (b"a: 'text\n", "{} line 2: not YAML: found unexpected end of stream"),
        (b"a: !thing 1\n", "{} line 1: not YAML: could not determine a constructor for the tag '!thing'"),
        (b"a: \x01\n", "{}: not YAML: unacceptable character #x0001: special characters are not allowed"),
        (b"a: 2024-13-01\n", "{}: not YAML: month must be in 1..12"),
        (b"- 1\n- 2\n", "{}: the file: [1, 2] is not a mapping of keys to values"),
        (b"text\n", "{}: the file: 'text' is not a mapping of keys to values"),
        (b"[" * 100_000, "{}: nested too deeply: is it a configuration?"),
        (b"a: 1 # " + b"#" * (1 << 20), "{}: longer than 1 MiB: is it a configuration?"),
        (BILLIONS, "{} line 13: not YAML: " + TOO_MANY),
        (MERGES, "{} line 12: not YAML: " + TOO_MANY),
        (b"a: &a [*a]\n", "{} line 1: not YAML: alias *a is a part of itself"),
        (
            b"a: [" + b"1," * 30_000 + b"]",
            "{} line 1: not YAML: more than 20000 values, with all that aliases stand for",
        ),
    ],
    ids=range(14),
)
def test_a_file_that_is_no_configuration(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "daemon.yaml"
    path.write_bytes(content)
    assert refusal(lambda: load(path, Section)) == said.format(path)


def test_aliases_that_stand_for_little_are_taken(tmp_path: Path) -> None:
    path = tmp_path / "daemon.yaml"
    path.write_text("base: &base {a: 1, b: 2}\nmore: {<<: *base, b: 3}\nnames: [&name n1, *name]\n")
    assert load(path, lambda values: values) == {
        "base": {"a": 1, "b": 2},
        "more": {"a": 1, "b": 3},
        "names": ["n1", "n1"],
    }


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "daemon.yaml"
    assert refusal(lambda: load(path, Section)) == f"cannot read {path}: No such file or directory"
    assert refusal(lambda: load(tmp_path, Section)) == f"cannot read {tmp_path}: Is a directory"


@pytest.mark.parametrize("load_file", LEAST, ids=["agent", "controller"])
@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("log_levle: info", "unknown key 'log_levle': did you mean 'log_level'?"),
        ("zzz: 1", "unknown key 'zzz': known are "),
        ("log_level: loud", "log_level: 'loud' is not one of debug, info, warning, error"),
        ("ready_file: 5", "ready_file: 5 is not text"),
    ],
)
def test_both_daemons_say_it_alike(tmp_path: Path, load_file: Callable[[Path], object], line: str, said: str) -> None:
    path = tmp_path / "daemon.yaml"
    path.write_text(LEAST[load_file])
    load_file(path)
    path.write_text(f"{LEAST[load_file]}{line}\n")
    assert refusal(lambda: load_file(path)).startswith(f"{path}: {said}")


def test_an_empty_file_and_keys_without_values_are_defaults(tmp_path: Path) -> None:
    path = tmp_path / "daemon.yaml"
    path.write_text("")
    load(path, Section).done()
    top = Section({"a": None, "b": None})
    assert top.take("a", checks.text, "default") == "default"
    assert top.section("b").take("c", checks.whole(1, 2), 7) == 7
    top.done()


def test_problems_of_a_section_name_the_key() -> None:
    assert refusal(lambda: section(a=3).section("a")) == "outer.a: 3 is not a mapping of keys to values"
    assert refusal(lambda: section(a=3).take("a", checks.whole(1, 2), 1)) == (
        "outer.a: 3 is not a whole number from 1 to 2"
    )
    assert refusal(lambda: section().need("a", checks.text)) == "outer.a is missing"
    assert refusal(lambda: section(a=None).need("a", checks.text)) == "outer.a is missing"
    assert refusal(lambda: section(adress="x").need("address", checks.text)) == (
        "outer.address is missing: is it 'adress' in the file?"
    )


def test_problems_are_short_whatever_they_quote() -> None:
    long = "x" * 10_000
    taken = refusal(lambda: section(key=long).take("key", checks.one_of(("auto", "never")), "auto"))
    assert taken.startswith("outer.key: 'xxx")
    unknown = refusal(lambda: section(**{long: 1, "two\nlines": 2}).done())
    assert unknown.startswith("unknown key 'outer.'xxx")
    assert max(len(taken), len(unknown)) < 500
    assert "two\\nlines" in refusal(lambda: section(**{"two\nlines": 2}).done())


def test_what_nobody_asked_for_is_found_in_sections_below() -> None:
    top = Section({"outer": {"inner": {"sizes": 1, "colour": 2}, "other": 5}})
    outer = top.section("outer")
    inner = outer.section("inner")
    inner.take("size", checks.whole(0, 9), 0)
    outer.skip("other")
    assert refusal(top.done) == "unknown key 'outer.inner.sizes': did you mean 'size'?"
    inner.skip("sizes")
    assert refusal(top.done) == "unknown key 'outer.inner.colour': known are size, sizes"
    inner.skip("colour")
    top.done()


def test_keys_that_are_the_operators_names() -> None:
    nodes = section(**{"n1": {"port": 1}, "7": {"prot": 2}})
    named = nodes.sections()
    assert named["n1"].need("port", checks.whole(1, 9)) == 1
    assert refusal(lambda: named["7"].need("port", checks.whole(1, 9))).startswith("outer.7.port is missing")
    assert refusal(nodes.done).startswith("unknown key 'outer.7.prot'")


def listening(value: object) -> tuple[str, int]:
    return checks.host_port(value, port_min=1)


@pytest.mark.parametrize(
    ("check", "good", "meant", "bad"),
    [
        (checks.text, "a", "a", [1, True, ["a"]]),
        (checks.flag, False, False, ["no", 0, "true"]),
        (checks.whole(0, 3), 3, 3, [4, -1, True, 2.0, "2"]),
        (checks.number(0, 3), 2, 2.0, [3.1, -1, True, "2", float("nan"), float("inf")]),
        (checks.one_of(("a", "b")), "b", "b", ["c", 1, ["a"], ""]),
        (checks.optional_path, "x/y", Path("x/y"), [1, False]),
        (checks.optional_path, "", None, [1]),
        (checks.ipv4, "10.0.0.1", "10.0.0.1", ["10.0.0.300", "host", "::1", 5, "10.0.0.1/8", ""]),
        (checks.multicast, "239.1.2.3", "239.1.2.3", ["10.0.0.1", "240.0.0.1", "x"]),
        (checks.mac, "02:4B:56:00:00:0f", bytes.fromhex("024b5600000f"), ["02:4b:56:00:00", 5, "02-4b-56-00-00-01"]),
        (checks.host_port, "a:0", ("a", 0), ["a", ":1", "a:", "a:65536", "a:-1", "a:²", "a:" + "9" * 5000, 80]),
        (checks.host_port, "[::1]:80", ("[::1]", 80), [None]),
        (listening, "a:1", ("a", 1), ["a:0"]),
        (checks.endpoint, "a:0", "a:0", ["a", 80]),
    ],
)
def test_checks(check: Callable[[object], object], good: object, meant: object, bad: list[object]) -> None:
    assert check(good) == meant
    assert type(check(good)) is type(meant)
    for value in bad:
        with pytest.raises(ValueError, match=r" is not | is neither ") as caught:
            check(value)
        assert str(value) in str(caught.value)
        assert "\n" not in str(caught.value)


def test_a_key_of_an_earlier_release_says_what_became_of_it() -> None:
    said = refusal(lambda: hostagent.config.parse({"data": {"address": "127.0.0.1", "native": "never"}}))
    assert said == "data.native is gone: the data path in C comes with kvcast, and is the only one; leave the key out"
