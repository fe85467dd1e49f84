"""What an operator says of chunks that cross the network."""

from __future__ import annotations

from dataclasses import dataclass

from kvpolicy.tiers.form_costs import FormChoice


@dataclass(frozen=True, slots=True)
class WireConfig:
    """The section `wire` of the agent's configuration."""

    form: FormChoice = FormChoice.RAW
    """RAW unless somebody asks for more: on nodes whose processors are busy, decoding is slower than it is priced."""
