"""`python -m p4switch` is kvcast-switch."""

import sys

from p4switch.cli import main

sys.exit(main())
