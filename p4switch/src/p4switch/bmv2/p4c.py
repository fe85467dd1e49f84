"""`p4c-bm2-ss` and `p4c`: check a program, write P4Info, and write what the switch takes in the place of bmv2's JSON.

That is the JSON envelope of `p4switch.device_config`: the program's own files as they are. The switch compiles them.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from p4switch import __version__, logs
from p4switch.device_config import ProgramSource
from p4switch.errors import SwitchError

P4INFO_SUFFIXES = {"text": ".txtpb", "binary": ".bin", "json": ".json"}

IGNORED = ("--emit-externs", "--ndebug", "--Werror", "--parser-inline-opt", "--debug", "-g")
IGNORED_VALUES = (
    "--Wdisable",
    "--Wwarn",
    "--Winfo",
    "--excludeFrontendPasses",
    "--excludeMidendPasses",
    "--top4",
    "-T",
)


def main(argv: Sequence[str]) -> int:
    """Run `p4c-bm2-ss`: 0, 1 for errors in the program or the arguments, 2 for what p4switch does not support."""
    return _run("p4c-bm2-ss", argv, driver=False)


def main_of_driver(argv: Sequence[str]) -> int:
    """Run `p4c --target bmv2 --arch v1model`; `-o` is a folder there."""
    return _run("p4c", argv, driver=True)


def _run(name: str, argv: Sequence[str], *, driver: bool) -> int:
    from p4switch.compiler import BuildError, CompileError

    try:
        args, unknown = _parser(name).parse_known_args(_apart(argv))
        for one in unknown:
            raise SwitchError(f"{one}: p4switch has no such option")
        return _compile(args, driver=driver)
    except CompileError as error:
        print(logs.printable_lines(str(error)), file=sys.stderr)
        return 2 if error.unsupported else 1
    except (BuildError, SwitchError) as error:
        print(logs.printable_lines(f"{name}: {error}"), file=sys.stderr)
        return 1


def _apart(argv: Sequence[str]) -> list[str]:
    """Without what has no meaning here: how p4c optimizes, and what it warns of."""
    return [one for one in argv if one not in IGNORED and not one.startswith(IGNORED_VALUES)]


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=name, allow_abbrev=False, description="p4switch in the place of p4c.")
    parser.add_argument("program", type=Path, metavar="PROGRAM.p4")
    parser.add_argument(
        "-o", dest="output", type=Path, metavar="FILE", help="JSON for simple_switch_grpc (p4c: a folder)"
    )
    parser.add_argument("-E", dest="preprocess", action="store_true", help="write PROGRAM.p4i there, or print it")
    parser.add_argument("-e", dest="preprocessed", action="store_true", help="compile PROGRAM.p4i there")
    parser.add_argument("--p4runtime-files", default="", metavar="FILE,...", help="P4Info: .txtpb, .txt, .bin or .json")
    parser.add_argument("--p4runtime-file", metavar="FILE", help="P4Info in --p4runtime-format")
    parser.add_argument("--p4runtime-format", choices=P4INFO_SUFFIXES, default="binary")
    parser.add_argument("-I", dest="include_dirs", action="append", default=[], type=Path, metavar="DIR")
    parser.add_argument("-D", dest="defines", action="append", default=[], metavar="NAME[=VALUE]")
    parser.add_argument(
        "--p4v", "--std", "-x", dest="version", default="16", help="16 or p4-16: P4_14 is not supported"
    )
    parser.add_argument("--target", "-b", default="bmv2")
    parser.add_argument("--arch", "-a", default="v1model")
    parser.add_argument("--version", action="version", version=f"p4switch {__version__}")
    return parser


def _compile(args: argparse.Namespace, *, driver: bool) -> int:
    from p4switch.compiler import compile_program
    from p4switch.p4info import p4info_of, render_p4info, write_p4info
    from p4switch.runtime import abi

    if args.version not in ("16", "p4-16", "p4_16"):
        raise SwitchError(f"{args.version}: P4_14 is not supported; p4c's `p4test --std p4-14 --pp NEW.p4` converts it")
    if args.target not in ("bmv2", "bmv2-ss-p4org") or args.arch not in ("v1model", "ss"):
        raise SwitchError(f"--target {args.target} --arch {args.arch}: here it is bmv2 and v1model")
    if not args.program.is_file():
        raise SwitchError(f"no P4 program at {args.program}")
    defines = {name: value if equals else "1" for name, equals, value in (d.partition("=") for d in args.defines)}
    expanded = Path(args.output or "", f"{args.program.stem}.p4i")
    if args.preprocess:
        return _preprocess(args, defines, expanded if driver else None)
    program = expanded if driver and args.preprocessed else args.program
    compiled = compile_program(program, defines, args.include_dirs, "v1model")
    abi.runtime()  # a runner waits some seconds for its switches, and the first one would build this
    for warning in compiled.warnings:
        print(logs.printable(str(warning.render())), file=sys.stderr)
    p4info = p4info_of(compiled.ir)
    try:
        for file in filter(None, args.p4runtime_files.split(",")):
            write_p4info(p4info, Path(file))
        if args.p4runtime_file is not None:
            Path(args.p4runtime_file).write_bytes(render_p4info(p4info, P4INFO_SUFFIXES[args.p4runtime_format]))
        output = _output(args, driver=driver)
        if output is not None:
            output.write_bytes(bundle(program, defines, args.include_dirs).envelope() + b"\n")
    except OSError as error:
        raise SwitchError(f"cannot write {error.filename}: {error.strerror}") from error
    return 0


def _preprocess(args: argparse.Namespace, defines: dict[str, str], file: Path | None) -> int:
    """Write the program without directives into a file, or print it. Raises CompileError."""
    from p4switch.frontend.preprocess import preprocess

    text = preprocess(args.program, defines, args.include_dirs).text + "\n"
    if file is None:
        sys.stdout.write(text)
    else:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return 0


def _output(args: argparse.Namespace, *, driver: bool) -> Path | None:
    if not driver:
        output: Path | None = args.output
        return output
    folder = args.output or Path()
    if folder.suffix == ".json" and not folder.is_dir():
        return Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    return Path(folder, args.program.with_suffix(".json").name)


def bundle(program: Path, defines: dict[str, str], include_dirs: Sequence[Path]) -> ProgramSource:
    """The program with all files that it includes, by names relative to the folder that holds them all.

    Raises CompileError.
    """
    from p4switch.frontend.preprocess import INCLUDE_DIRECTORY, preprocess

    source = preprocess(program, defines, include_dirs)
    texts = {
        os.path.abspath(path): "\n".join([*source.originals[shown], ""])
        for shown, path in source.paths.items()
        if path.parent != INCLUDE_DIRECTORY
    }
    folders = [os.path.abspath(d) for d in include_dirs]
    used = [d for d in folders if any(os.path.commonpath([d, path]) == d for path in texts)]
    root = os.path.commonpath([*map(os.path.dirname, texts), *used])
    return ProgramSource(
        main=os.path.relpath(os.path.abspath(program), root),
        files={os.path.relpath(path, root): text for path, text in texts.items()},
        defines=defines,
        include_dirs=tuple(Path(os.path.relpath(d, root)) for d in used),
        architecture="v1model",
    )
