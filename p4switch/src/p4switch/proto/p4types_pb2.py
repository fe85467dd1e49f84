"""Messages of p4/config/v1/p4types.proto."""

from typing import TYPE_CHECKING, Any

from p4switch.proto.pool import exported_names

globals().update(exported_names("p4/config/v1/p4types.proto"))

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Where no stub was generated."""
