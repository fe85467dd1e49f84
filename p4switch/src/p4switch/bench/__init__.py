"""How fast the switch is, compared with a bare loop that only forwards: ``python -m p4switch.bench``."""
