"""What happens now, for people who watch: kept as news comes, so that a look costs the same however large the pool.

`live.Live` hears the core's news (`controlplane.core.observer`) and shows them as tables of rows; `Increments` makes a
snapshot of them and the changes from one look to the next. Who only reads increments needs nothing of the core. Pure.
"""

from controlplane.core.live.increments import Increments, Tables, apply

__all__ = ["Increments", "Tables", "apply"]
