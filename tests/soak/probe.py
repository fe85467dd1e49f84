"""Asks daemons for their health until it is stopped, as a service manager's probes do: a line of JSON for each
question."""

from __future__ import annotations

import argparse
import itertools
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Final

from tests.soak.load import DEADLINE_S, Diary, until_stopped

PAGES: Final = ("livez", "healthz", "readyz", "metrics")
_EVERY_S: Final = 0.5


def answers(address: str, page: str) -> bool:
    """Whether there is an answer in time, good or bad."""
    try:
        with urllib.request.urlopen(f"http://{address}/{page}", timeout=DEADLINE_S) as answer:
            return bool(answer.read())
    except urllib.error.HTTPError as error:
        with error:
            return bool(error.read())
    except OSError:
        return False


def main() -> int:
    """Entry point: words NAME=ADDRESS."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("daemons", nargs="+")
    args = parser.parse_args()
    daemons = [word.split("=", 1) for word in args.daemons]
    goes_on = until_stopped()
    with args.out.open("ab", buffering=0) as out:
        diary = Diary(out, -1, "probe")
        for turn in itertools.takewhile(lambda _: goes_on(), itertools.count()):
            name, address = daemons[turn % len(daemons)]
            began_s = time.monotonic()
            page = PAGES[turn // len(daemons) % len(PAGES)]
            answered = answers(address, page)
            took_s = time.monotonic() - began_s
            diary.tell("probed", daemon=name, page=page, answered=answered, began_s=began_s, took_s=took_s)
            time.sleep(_EVERY_S)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
