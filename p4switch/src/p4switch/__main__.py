"""`python -m p4switch` is p4switch."""

import sys

from p4switch.cli import main

sys.exit(main())
