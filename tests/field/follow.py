"""Follows a page: its blocks in order, verbatim, on the machines that they name."""

from __future__ import annotations

import functools
from concurrent.futures import ThreadPoolExecutor

from tests.field.lab import Failed, Lab, Machine
from tests.field.pages import Block

READY = r"listening on |-(?:controller|agent) ready"
BLOCK_S = 240.0


def follow(lab: Lab, blocks: list[Block]) -> dict[str, str]:
    """What each block said, by place; of several machines one after the other. Raises Failed."""
    said = {}
    for block in blocks:
        if block.kind not in ("run", "file"):
            continue
        machines = [lab[name] for name in block.machines]
        # All machines have one file system, and so one environment of Python.
        at_once = 1 if block.text.startswith("pip install") else len(machines)
        with ThreadPoolExecutor(at_once) as threads:
            outputs = list(threads.map(functools.partial(_on, block), machines))
        said[block.place] = "\n".join(outputs)
        for text in block.shows:
            for machine, output in zip(machines, outputs, strict=True):
                if text not in output:
                    raise Failed(f"{block.place} on {machine.name} does not show {text!r}:\n{output}")
    return said


def _on(block: Block, machine: Machine) -> str:
    if block.kind == "file":
        (machine.home / block.name).parent.mkdir(parents=True, exist_ok=True)
        (machine.home / block.name).write_text(block.text)
        return ""
    if block.restart:
        program = block.text.splitlines()[-1].split()[0]
        machine.running(program).stop()
    if block.daemon:
        return machine.start(block.text, READY).said()
    status, said = machine.run(block.text, BLOCK_S)
    if (status != 0) != block.fails:
        raise Failed(f"{block.place} on {machine.name} ends with {status}:\n{block.text}\n{said}")
    return said
