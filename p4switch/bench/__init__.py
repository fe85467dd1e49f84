"""How fast the switch is, beside a bare loop that only forwards: ``python -m p4switch.bench``."""
