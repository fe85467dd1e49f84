"""The whole cluster: asks the controller to try every path between nodes and switch, and shows what it found.

Exit status 0: nothing is broken; 1: something is, or there is no controller to ask.
"""

from __future__ import annotations

import argparse
import sys

from kvcast import __version__
from kvcast.doctor.findings import Row, laid_out
from kvcast.operator import UnreachableError, console, controller, fields_of, print_json
from kvproto.rpc import control_pb2 as rpc

SUMMARY = "all nodes and the switch, by putting, reading, casting and serving small chunks"
_LEVELS = {rpc.Finding.OK: "ok", rpc.Finding.NOTE: "note", rpc.Finding.SLOW: "slow", rpc.Finding.BROKEN: "broken"}
_WIDTH_MAX = 80
_STYLES = {"ok": "green", "note": "dim", "slow": "yellow", "broken": "bold red"}


def run(args: argparse.Namespace) -> int:
    """Examine and show. Raises UsageError."""
    try:
        with controller(args) as stub:
            last = rpc.ExamineReply()
            for last in stub.Examine(rpc.ExamineRequest(version=__version__)):
                _progress("" if last.finished else last.phase)
    except UnreachableError as error:
        path = "here -> controller"
        remedy = "start it, or name it with --controller"
        missing = rpc.Finding(check="management", path=path, found=str(error), level=rpc.Finding.BROKEN, remedy=remedy)
        last = rpc.ExamineReply(finished=True, findings=[missing])
    broken_count = sum(finding.level == rpc.Finding.BROKEN for finding in last.findings)
    if args.json:
        print_json(_object(last, broken_count))
    else:
        _show(last, broken_count)
    return int(broken_count > 0)


def _progress(phase: str) -> None:
    """One line on a terminal, overwritten by the next."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{phase + ' ...' if phase else ''}", end="", file=sys.stderr, flush=True)


def _object(reply: rpc.ExamineReply, broken_count: int) -> dict[str, object]:
    findings = [fields_of(finding) | {"level": _LEVELS[finding.level]} for finding in reply.findings]
    return {"broken": broken_count, "took_ms": reply.took_ms, "findings": findings}


def _show(reply: rpc.ExamineReply, broken_count: int) -> None:
    out = console()
    rows = [
        Row(level := _LEVELS[one.level], _STYLES[level], (one.check, one.path), one.found, one.remedy)
        for one in reply.findings
    ]
    for line in laid_out(rows, min(out.width, _WIDTH_MAX)):
        out.print(line, soft_wrap=True)
    verdict = f"{broken_count} broken" if broken_count else "nothing is broken"
    out.print(f"\n{verdict}, {len(reply.findings)} findings, {reply.took_ms / 1000:.1f} s")
