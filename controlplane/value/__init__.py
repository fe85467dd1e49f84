"""What chunks are worth to all nodes together: `kvpolicy.value` with the directory's knowledge. Pure."""

from controlplane.value.cluster import ClusterValues

__all__ = ["ClusterValues"]
