"""Whether the cold store is used."""

import enum


class ColdState(enum.Enum):
    """What the store is good for at this moment."""

    AWAY = "away"
    """It does not answer, or was not tried yet: nothing is asked of it but whether it is back."""
    READING = "reading"
    """It takes nothing, and what it has can be read."""
    ON = "on"
