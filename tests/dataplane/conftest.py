"""Every test of this folder runs on every switch that this machine can run."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import finsy as fy
import pytest

from tests.dataplane.bench import ALL_PORTS, Bench, bitmap_groups
from tests.dataplane.targets import Bmv2Target, P4SwitchTarget, Target, TnaTarget

TARGETS: dict[str, type[P4SwitchTarget] | type[Bmv2Target]] = {
    "p4switch": P4SwitchTarget,
    "tna": TnaTarget,
    "bmv2": Bmv2Target,
}


@pytest.fixture(
    scope="session",
    params=["p4switch", "tna", pytest.param("bmv2", marks=[pytest.mark.bmv2, pytest.mark.root])],
)
def target(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Target]:
    with running(request.param, tmp_path_factory.mktemp(request.param)) as target:
        yield target


@contextlib.contextmanager
def running(name: str, folder: Path) -> Iterator[Target]:
    """A switch of this kind, with what no test takes back."""
    kind = TARGETS[name]
    missing = kind.missing()
    if missing is not None:
        pytest.skip(f"{kind.name}: {missing.reason}")
    running = kind(ALL_PORTS, folder)
    try:
        profile = running.profile
        running.control.insert(
            [
                fy.P4MulticastGroupEntry(profile.flood_group, replicas=tuple((port, 1) for port in ALL_PORTS)),
                profile.session,
                *(fy.P4DigestEntry(name, max_list_size=1) for name in profile.digests),
                *(bitmap_groups() if profile.circulates else ()),
            ]
        )
        yield running
    finally:
        running.close()


@pytest.fixture
def bare(target: Target, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """A switch without any entries."""
    bench = Bench(target, request.node.name)
    yield bench
    bench.reset()


@pytest.fixture
def bench(bare: Bench) -> Bench:
    """A kvcast switch with a member on each of ports 1 to 8 and a host without an agent on port 9."""
    make_kvcast(bare)
    return bare


def make_kvcast(bare: Bench) -> None:
    """See `bench`."""
    bare.attach()
    bare.fabric()
    bare.fresh_budgets()
    bare.by_bitmap()
    bare.circulate()
