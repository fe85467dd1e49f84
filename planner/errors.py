"""What a user can get wrong; the text is one line that names the thing and the remedy."""


class PlanError(Exception):
    """The plan asked for cannot be made."""
