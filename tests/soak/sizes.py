"""Runs beside the daemons, in their process namespace: memory and descriptors of the processes whose ids are given."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path


def main() -> int:
    """Words NAME=PID; a JSON object of [bytes resident, descriptors] by name."""
    page_bytes = os.sysconf("SC_PAGE_SIZE")
    found = {}
    for word in sys.argv[1:]:
        name, _, pid = word.rpartition("=")
        try:
            resident_pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            found[name] = [resident_pages * page_bytes, len(os.listdir(f"/proc/{pid}/fd"))]
        except FileNotFoundError:
            continue  # it ended meanwhile
    print(json.dumps(found))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
