"""Whether the cold store is used."""

import enum


class ColdState(enum.Enum):
    """Which operations of the store work at present."""

    AWAY = "away"
    """It does not answer, or has not been tried: the agent sends it nothing but trials."""
    READING = "reading"
    """Writes fail, reads work."""
    ON = "on"
