"""What the demos with real vLLM engines share: their arguments, the model, progress, and figures in a file."""

from __future__ import annotations

import argparse
import importlib.util
import tempfile
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from bmv2_testbed.cpu_group import isolated
from bmv2_testbed.demo.vllm import CHUNK_TOKENS, MODEL, Say
from bmv2_testbed.engines.small_models import make_model
from bmv2_testbed.errors import TestbedError
from kvcast.arguments import output_file, whole
from kvcast.cli import UsageError

FiguresT = TypeVar("FiguresT")

TOKENS_MAX = 8000
"""What the small model reads."""


def add_demo_arguments(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Declare what the demo `name` takes; `text`: what is of `--tokens` length."""
    parser.add_argument("--tokens", type=whole(1), default=4000, help=f"length of {text} (default 4000)")
    parser.add_argument("--seed", type=whole(), default=1, help=f"of {text} (default 1)")
    parser.add_argument(
        "--isolate", action="store_true", help="run in a CPU group of its own, so that other programs do not slow it"
    )
    parser.add_argument("--json", type=output_file, default=f"out/{name}.json", help="where the figures go")


def check_demo_arguments(args: argparse.Namespace, name: str) -> None:
    """Raises UsageError where the demo cannot run with these, or not in this environment."""
    if importlib.util.find_spec("vllm") is None:
        raise UsageError(f"there is no vLLM in this environment: run it with `make {name}`, which makes one")
    if not CHUNK_TOKENS < args.tokens <= TOKENS_MAX:
        raise UsageError(f"--tokens is {args.tokens}; the small model reads {CHUNK_TOKENS + 1} to {TOKENS_MAX}")


def play(
    args: argparse.Namespace,
    console: Console,
    demo: Callable[[Path, Path, Say], FiguresT],
    model_fields: Mapping[str, Any] = MODEL,
) -> tuple[FiguresT, str]:
    """Run `demo(model, folder, say)` with a small model. Returns its figures and, with `--isolate`, how it ran.

    Raises UsageError with what went wrong.
    """
    try:
        with (
            isolated() if args.isolate else nullcontext("") as isolation,
            tempfile.TemporaryDirectory(prefix="kvcast-") as made,
            console.status("model") as status,
        ):
            folder = Path(made)
            model = make_model(folder / "model", "llama", **model_fields)
            return demo(model, folder, lambda text: status.update(text)), isolation
    except TestbedError as error:
        raise UsageError(str(error)) from error
