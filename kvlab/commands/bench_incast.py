"""`kvcast bench incast`: N nodes fetch the same prefix from one holder."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from rich.console import Console

from bmv2_testbed.bench.figures import IncastFigures, incast_table, spread_table, typical
from bmv2_testbed.bench.incast import SET_READERS, IncastPlan, IncastRun, Mode, Trust
from bmv2_testbed.bench.peer_servers import Peer, missing
from bmv2_testbed.scale import CORE_BIT_S, SCALES
from bmv2_testbed.spec import Faults, Target
from kvcast.arguments import probability, whole
from kvcast.errors import UsageError
from kvcast.terminal import Terminal
from kvlab.bars import progress
from kvlab.figures import machine_facts, write_figures
from kvlab.wiring import add_isolate, add_json, add_target, isolation, rate, refusals, size
from kvpolicy.tiers.form_costs import FormChoice

FANOUTS = {"switch": Mode.CAST, "multicast": Mode.MULTICAST, "relay": Mode.RELAY, "auto": Mode.AUTO}
"""Modes by the name that the network's way has."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare `kvcast bench incast`."""
    parser.add_argument("--nodes", type=whole(1), help="readers (default 8; with --racks 15)")
    parser.add_argument(
        "--rate",
        type=lambda word: 0 if word == "none" else rate(word),
        help="rate of every link, both ways (default 100mbit; tna 25mbit, bmv2 6.25mbit); none: not shaped, and times "
        "are over S at 1 GB/s",
    )
    parser.add_argument(
        "--choice",
        action="store_true",
        help="readers have measured what reading and each mode's way bring: each mode by turns as it is, and as they "
        "choose, with the ratio to the best of all as they are",
    )
    parser.add_argument("--size", type=size, help="the prefix (default 16MiB; tna and bmv2 1MiB)")
    parser.add_argument("--chunk", type=size, help="its chunks (default 1MiB; tna 128KiB, bmv2 64KiB)")
    parser.add_argument("--stagger", action="store_true", help="starts at random within one transfer time")
    parser.add_argument(
        "--mode",
        action="append",
        choices=[*(mode.value for mode in Mode), "all", "none"],
        help="how kvcast does it; may be given again (default cast)",
    )
    parser.add_argument(
        "--fanout",
        action="append",
        choices=list(FANOUTS),
        help="the same by the network's way: multicast is a bridge that snoops, relay one that drops multicast, where "
        "readers pass on, auto as the controller finds it",
    )
    parser.add_argument(
        "--uplink", type=rate, metavar="RATE", help="what each reader can send (default: as its link, --rate)"
    )
    parser.add_argument(
        "--trust",
        choices=[*(trust.value for trust in Trust), "both"],
        help="on: BLAKE3, certificates, meters; off: xxh3 and none of them; both: by turns, with the ratio of the two"
        " (default: as the testbed is, on but for the certificates)",
    )
    parser.add_argument(
        "--form",
        choices=[*(form.value for form in FormChoice), "both"],
        help="numbers as KV has them in place of random bytes, and agents' wire.form; both: raw and lossless by turns",
    )
    parser.add_argument(
        "--rails",
        type=whole(1),
        default=1,
        metavar="N",
        help="by turns on one network of links of --rate, on N of them, and on N of which one is cut at the holder "
        "when half the bytes are there, with the ratios (--fanout relay, unless --mode is given)",
    )
    parser.add_argument(
        "--sets",
        type=whole(1),
        default=0,
        metavar="N",
        help=f"N times {SET_READERS} readers drawn at random fetch a prefix of their own; unasked_rx_S is what each "
        "port gets that did not ask",
    )
    parser.add_argument("--unasked-weight", type=float, metavar="W", help="the controller's fabric.unasked_weight")
    parser.add_argument(
        "--racks",
        type=whole(1),
        default=1,
        metavar="N",
        help="holder and readers in N racks (--fanout relay, unless --mode unicast is given); B is the slower rate of "
        "links and --core",
    )
    parser.add_argument(
        "--core", type=rate, default=CORE_BIT_S, metavar="RATE", help="of each rack's link to the others (50mbit)"
    )
    parser.add_argument("--slow", type=rate, metavar="RATE", help="rate of one reader's link")
    parser.add_argument("--slow-reader", type=whole(), default=0, metavar="I", help="which reader that is (default 0)")
    parser.add_argument("--loss", type=probability, default=0.0, metavar="P", help="loss at every switch port, 0 to 1")
    parser.add_argument(
        "--peer", action="append", choices=[*(peer.value for peer in Peer), "all"], help="who else does it, too"
    )
    parser.add_argument(
        "--runs",
        type=whole(1),
        default=1,
        help="do everything so often, by turns, and show the median run of each case (default 1)",
    )
    add_isolate(parser)
    parser.add_argument(
        "--busy",
        type=whole(),
        default=0,
        metavar="N",
        help="N endless loops beside it, in a CPU group of the same weight (with --isolate)",
    )
    add_target(parser)
    parser.add_argument("--seed", type=whole(), default=1, help="of starts, losses and content (default 1)")
    add_json(parser)


def run(args: argparse.Namespace) -> int:
    """Run it; 1 if a byte was wrong or missing."""
    target = Target(args.target)
    scale = SCALES[target]
    readers = args.nodes or (15 if args.racks > 1 else 8)
    plan = IncastPlan(
        readers=readers,
        racks=args.racks,
        core_bit_s=args.core,
        rate_bit_s=scale.link_bit_s if args.rate is None else args.rate or None,
        size_bytes=args.size or scale.incast_bytes,
        chunk_bytes=args.chunk or scale.chunk_bytes,
        stagger=args.stagger,
        seed=args.seed,
        slow={} if args.slow is None else {args.slow_reader: args.slow},
        uplink_bit_s=args.uplink,
        faults=Faults(loss=args.loss),
        target=target,
        trust=Trust(args.trust) if args.trust in list(Trust) else None,
        sets=args.sets,
        unasked_weight=args.unasked_weight,
        form=FormChoice(args.form) if args.form in [form.value for form in FormChoice] else None,
    )
    if (args.form == "both") + (args.trust == "both") + args.choice > 1:
        raise UsageError("--trust both, --form both and --choice: one of them at a time")
    if args.sets and (readers <= SET_READERS or args.slow is not None or args.stagger or args.peer):
        raise UsageError(f"--sets N: of more than {SET_READERS} --nodes, at once, without --slow, --stagger and --peer")
    if args.slow is not None and not 0 <= args.slow_reader < readers:
        raise UsageError(f"--slow-reader {args.slow_reader}: readers are numbered 0 to {readers - 1}")
    wanted = [*(args.mode or ()), *(FANOUTS[one].value for one in args.fanout or ())]
    modes = _chosen(wanted or [(Mode.CAST if args.rails == args.racks == 1 else Mode.RELAY).value], Mode)
    if args.racks > 1 and (args.rails > 1 or args.choice or not {Mode.UNICAST, Mode.RELAY}.issuperset(modes)):
        raise UsageError(
            "--racks: no cast leaves its rack; give --mode unicast, --fanout relay or both, and no --rails or --choice"
        )
    if args.rails > 1 and not {Mode.UNICAST, Mode.RELAY, Mode.MULTICAST}.issuperset(modes):
        raise UsageError(
            "--rails: a kvcast switch is on the first one only; give --mode unicast, --fanout multicast or relay"
        )
    if args.rails > 1 and ("both" in (args.trust, args.form) or args.choice):
        raise UsageError("--rails and both of something: one of them at a time")
    absent = {peer: reason for peer in Peer if (reason := missing(peer))} if "all" in (args.peer or []) else {}
    peers = [peer for peer in _chosen(args.peer or [], Peer) if peer not in absent]
    if args.busy and not args.isolate:
        raise UsageError("--busy N needs --isolate: only a CPU group can have the same weight as another")
    console = Terminal()
    for peer, reason in absent.items():
        console.print(f"peer {peer} is left out: {reason}")
    with refusals(), isolation(args, args.busy) as isolated:
        if isolated:
            console.print(isolated)
        runs = _run_by_turns(console, args.runs, _variants(plan, args), modes, peers)
    cases = {name: typical([run[0][name] for run in runs]) for name in runs[0][0]}
    ratios = trust_ratios([run[0] for run in runs])
    by_rails = rail_ratios([run[0] for run in runs], args.rails)
    of_choice = choice_ratios([run[0] for run in runs])
    found = {name: typical([run[1][name] for run in runs]) for name in runs[0][1]}
    everything = [*cases.values(), *found.values()]
    what = ("starts within one transfer time" if plan.stagger else "all at once") + (
        f", {args.loss:.1%} loss at every switch port" if args.loss else ""
    )
    if args.runs > 1:
        what += f", the median run of {args.runs}"
    console.print(incast_table(everything, plan.readers, plan.size_bytes, plan.narrowest_bit_s, what))
    for name, ratio in ratios.items():
        console.print(f"{name}: with trust on {ratio['time']:.3f} times as long, {ratio['cpu']:.3f} times the CPU time")
    for name, case in cases.items() if plan.sets else ():
        console.print(f"{name}: to each port that did not ask {case.unasked_rx_S:.3f} S")
    for name, over_one in by_rails.items():
        console.print(f"{name}: {over_one:.3f} of the time on one rail")
    for name, over_best in of_choice.items():
        console.print(f"{name}: {over_best:.3f} times as long as the best as they are")
    document = incast_json(plan, cases, found) | {
        "isolation": isolated,
        "rail_ratios": by_rails,
        "choice_ratios": of_choice,
    }
    if ratios:
        document["trust_ratios"] = ratios
    if args.runs > 1:
        document["runs"] = [
            {name: case.to_json() for name, case in (of_modes | of_peers).items()} for of_modes, of_peers in runs
        ]
        console.print(spread_table([of_modes | of_peers for of_modes, of_peers in runs]))
    write_figures(console, args.json, document)
    return 0 if all(case.verified for run in runs for case in [*run[0].values(), *run[1].values()]) else 1


Figures = dict[str, IncastFigures]
"""By mode or by peer."""
_ONE_RAIL = ", 1 rail"
_CHOSEN = ", chosen"
_TRUSTED = ", trust "
"""Between mode and `Trust` in the name of a case."""


def _variants(plan: IncastPlan, args: argparse.Namespace) -> list[tuple[str, IncastPlan]]:
    """What is run by turns: what is added to the name of a case, and its plan."""
    if args.trust == "both":
        return [(f"{_TRUSTED}{trust}", replace(plan, trust=trust)) for trust in (Trust.OFF, Trust.ON)]
    if args.form == "both":
        forms = (FormChoice.RAW, FormChoice.LOSSLESS)
        return [(f", {form.value}", replace(plan, form=form)) for form in forms]
    if args.choice:
        return [("", replace(plan, chooses=False)), (_CHOSEN, replace(plan, chooses=True))]
    if args.rails > 1:
        several = replace(plan, rails=args.rails)
        return [(_ONE_RAIL, plan), (f", {args.rails} rails", several), (", one cut", replace(several, cut=True))]
    return [("", plan)]


def _run_by_turns(
    console: Console, runs: int, variants: list[tuple[str, IncastPlan]], modes: list[Mode], peers: list[Peer]
) -> list[tuple[Figures, Figures]]:
    """Figures of modes and peers, run by run; who is first of the variants changes."""
    found: list[tuple[Figures, Figures]] = []
    for run_index in range(runs):
        with progress(console) as (say, moved):

            def say_which(text: str, run_index: int = run_index) -> None:
                say(f"run {run_index + 1} of {runs}: {text}" if runs > 1 else text)

            found.append(({}, {}))
            for name, plan in reversed(variants) if run_index % 2 else variants:
                cases, of_peers = run_incast(plan, modes, peers, say_which, moved)
                for mode, case in cases.items():
                    found[-1][0][f"{mode}{name}"] = replace(case, mode=f"{mode}{name}")
                found[-1][1].update(of_peers)
    return found


def run_incast(
    plan: IncastPlan, modes: list[Mode], peers: list[Peer], say: Callable[[str], None], moved: Callable[[float], None]
) -> tuple[dict[str, IncastFigures], dict[str, IncastFigures]]:
    """Figures by mode and by peer. Peers run on the links of the first mode."""
    runner = IncastRun(plan, say, moved)
    cases: dict[str, IncastFigures] = {}
    found: dict[str, IncastFigures] = {}
    if not modes:
        found = runner.peers(peers)
    for index, mode in enumerate(modes):
        cases[mode.value], of_peers = runner.mode(mode, peers if index == 0 else ())
        found |= of_peers
    return cases, found


def trust_ratios(runs: list[Figures]) -> dict[str, dict[str, float]]:
    """By mode: medians over runs of `time` and `cpu` with trust on, divided by those with trust off in the same run."""
    pairs: dict[str, list[tuple[IncastFigures, IncastFigures]]] = {}
    for run in runs:
        for name, case in run.items():
            mode, _, trust = name.partition(_TRUSTED)
            if trust == Trust.ON:
                pairs.setdefault(mode, []).append((case, run[f"{mode}{_TRUSTED}{Trust.OFF}"]))
    return {
        mode: {
            "time": statistics.median(on.mean_ratio / off.mean_ratio for on, off in found),
            "cpu": statistics.median(sum(on.cpu_s.values()) / sum(off.cpu_s.values()) for on, off in found),
        }
        for mode, found in pairs.items()
    }


def rail_ratios(runs: list[Figures], rails: int) -> dict[str, float]:
    """By case: medians over runs of its time divided by that on one rail in the same run."""
    pairs: dict[str, list[float]] = {}
    for run in runs if rails > 1 else ():
        for name, case in run.items():
            one = run[name.partition(",")[0] + _ONE_RAIL]
            if case is not one:
                pairs.setdefault(name, []).append(case.mean_ratio / one.mean_ratio)
    return {name: statistics.median(found) for name, found in pairs.items()}


def choice_ratios(runs: list[Figures]) -> dict[str, float]:
    """By case in which readers chose: the median over runs of its time divided by the least of those in the same run in
    which they did not."""
    pairs: dict[str, list[float]] = {}
    for run in runs:
        told = [case.mean_ratio for name, case in run.items() if not name.endswith(_CHOSEN)]
        for name, case in run.items():
            if name.endswith(_CHOSEN):
                pairs.setdefault(name, []).append(case.mean_ratio / min(told))
    return {name: statistics.median(found) for name, found in pairs.items()}


def incast_json(plan: IncastPlan, cases: dict[str, IncastFigures], peers: dict[str, IncastFigures]) -> dict[str, Any]:
    """Everything under `modes` and `peers`; the figures of a single mode also at the top."""
    result: dict[str, Any] = {
        "benchmark": "incast",
        "nodes": plan.readers,
        "rate_bit_s": plan.rate_bit_s,
        "racks": plan.racks,
        "core_bit_s": plan.core_bit_s if plan.racks > 1 else None,
        "size_bytes": plan.size_bytes,
        "chunk_bytes": plan.chunk_bytes,
        "stagger": plan.stagger,
        "form": None if plan.form is None else plan.form.value,
        "seed": plan.seed,
        "sets": plan.sets,
        "unasked_weight": plan.unasked_weight,
        "slow": {str(reader): rate for reader, rate in plan.slow.items()},
        "loss": plan.faults.loss,
        "machine": machine_facts(),
        "modes": {name: case.to_json() for name, case in cases.items()},
        "peers": {name: case.to_json() for name, case in peers.items()},
    }
    if len(cases) == 1:
        result |= next(iter(cases.values())).to_json()
    return result


def _chosen(words: list[str], kind: Any) -> list[Any]:
    if "all" in words:
        return list(kind)
    return [kind(word) for word in dict.fromkeys(words) if word != "none"]
