"""Messages of p4/v1/p4data.proto."""

from typing import TYPE_CHECKING, Any

from p4switch.proto.pool import exported_names

globals().update(exported_names("p4/v1/p4data.proto"))

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Where no stub was generated."""
