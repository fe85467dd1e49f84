"""What the demos with real vLLM engines share: their arguments, the model, progress, and figures in a file."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

from rich.console import Console

from bmv2_testbed.demo.vllm import CHUNK_TOKENS, MODEL, Say
from bmv2_testbed.engines.small_models import make_model
from kvcast.arguments import output_file, whole
from kvcast.errors import UsageError
from kvlab.wiring import add_isolate, isolation, need_vllm, refusals

FiguresT = TypeVar("FiguresT")

TOKENS_MAX = 8000
"""What the small model reads."""


def add_demo_arguments(parser: argparse.ArgumentParser, name: str, text: str) -> None:
    """Declare what the demo `name` takes; `text`: what is of `--tokens` length."""
    parser.add_argument("--tokens", type=whole(1), default=4000, help=f"length of {text} (default 4000)")
    parser.add_argument("--seed", type=whole(), default=1, help=f"of {text} (default 1)")
    add_isolate(parser)
    parser.add_argument("--json", type=output_file, default=f"out/{name}.json", help="where the figures go")


def check_demo_arguments(args: argparse.Namespace, name: str) -> None:
    """Raises UsageError where the demo cannot run with these, or not in this environment."""
    need_vllm(f"run it with `make {name}`, which makes one")
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
    with (
        refusals(),
        isolation(args) as isolated,
        tempfile.TemporaryDirectory(prefix="kvcast-") as made,
        console.status("model") as status,
    ):
        folder = Path(made)
        model = make_model(folder / "model", **model_fields)
        return demo(model, folder, lambda text: status.update(text)), isolated
