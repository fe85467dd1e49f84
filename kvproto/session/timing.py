"""The rules' times and thresholds, each with its reason. Daemons run in Python on loaded hosts: a timer may be 10 ms
late, so nothing here depends on being woken sharper than that."""

from typing import Final

from kvproto.limits import GET_COUNT_MAX, JOINED_MAX, MS

# --- joining ---------------------------------------------------------------------------------------------------------
JOIN_RETRY_NS: Final = 25 * MS
"""A switch answers within a fraction of a millisecond; doubled with every try."""
JOIN_TRIES_MAX: Final = 4
"""After 25 + 50 + 100 + 200 ms without any NOTICE the chunk is read reliably."""
NO_SWITCH_MEMORY_NS: Final = 1000 * MS
"""For so long after a NO_SWITCH nothing is joined, so that plain networks pay one round trip a second at most."""
RENEWALS_PER_TTL: Final = 3
"""Two renewals may get lost before the switch forgets us."""
QUIET_REJOIN_NS: Final = 80 * MS
"""When nothing at all was heard for so long the switch may have forgotten us: join again; doubled with every time."""
QUIET_REJOIN_MAX_NS: Final = 1000 * MS
LEAVE_AGAIN_NS: Final = 20 * MS
"""Segments of a chunk that we left mean that the LEAVE was lost; those under way are no evidence yet."""

# --- leading ---------------------------------------------------------------------------------------------------------
SILENCE_NS: Final = 25 * MS
"""Nothing wanted arrived for so long: the leader is gone. A window covers 30 ms, so it had a stall of twice that."""
RANK_STEP_NS: Final = 6 * MS
"""Members take over one after the other by their rank, so that the first one's data stops the next."""
NEWCOMER_ANSWERS: Final = 4
"""Who just joined waits so many times as long as its JOINs were answered in before it leads. The others hear of it when
its answer leaves the switch, and what they do about it comes after one such time if they run as late as this host. They
may run later, and a rack away it takes two."""
NEWCOMER_MAX_NS: Final = 12 * MS
"""And no longer than that, which is also how long it waits before it has measured an answer."""
NEWCOMER_SPAN_NS: Final = 40 * MS
"""For so long after its first JOIN was answered is a reader a newcomer."""
LOOKAHEAD_NS: Final = 12 * MS
"""The successor starts so long before the end of what is under way, if no leader has announced more."""
PATIENCE_ANNOUNCED_NS: Final = 120 * MS
"""A leader announces a chunk up to two windows before its first segment."""
PATIENCE_UNLED_NS: Final = 30 * MS
"""A chunk whose leader is unknown or gone counts as pulled so long after its last segment."""
PATIENCE_ALONE_NS: Final = 15 * MS
"""Nobody else wants the chunk, so nobody else will pull more of it; what is under way comes within this."""
NEEDED_NS: Final = 2000 * MS
"""How long a leader that was missed when it stepped back goes on beside others."""
JOIN_SETTLE_NS: Final = 5 * MS
"""A reader begins nothing alone while answers to JOINs just sent are due: they may say that others are at it."""
SLOW_FRACTION: Final = 0.7
"""Less than this part of what our link takes: lead another chunk beside it."""
FAIR_FRACTION: Final = 0.42
"""A leader steps back only from others that bring at least this part of what its link takes: a fair share is half."""
SLOW_RANK_STEP_NS: Final = 20 * MS
PROBE_NS: Final = 40 * MS
"""Who does not know what its link takes finds out after following so long, by leading one chunk beside one leader."""
PROBE_RANK_STEP_NS: Final = 120 * MS
"""Long enough that the effect of the first prober shows in two slots of the inflow."""
OVERLOAD_LOSS: Final = 0.25
"""A leader that loses so much of what it asks for while others also pull has a slower link than they."""
OVERLOAD_HOLDOFF_NS: Final = 500 * MS
LAGGARD_RANKS: Final = 8
"""Who misses much of what is cast waits behind so many others before it leads."""

PATIENT_SEGMENTS: Final = 256
"""A follower that misses at least so many need not see each at once: 80 ms at 100 Mbit/s."""

# --- repairing -------------------------------------------------------------------------------------------------------
REPAIR_DELAY_NS: Final = 6 * MS
"""After a chunk's leader has left it: what it still had asked for comes before its NOTICE, but for reordering."""
REPAIR_DELAY_UNLED_NS: Final = 25 * MS
"""After the last segment of a chunk whose leader is not known; its retransmissions come within this."""
REPAIR_RANK_STEP_NS: Final = 1 * MS
"""What several miss is asked for by the first; the holder merges what others ask for at the same time."""
REPAIR_FRACTION: Final = 8
"""At most 1/8 of a chunk is a repair, made beside the cast; more waits until the link has room."""

# --- windows ---------------------------------------------------------------------------------------------------------
WINDOW_DELAY_NS: Final = 15 * MS
"""Segments asked for come within about this: covers a timer that is late, and stays below usual queue limits."""
WINDOW_BEST_OF: Final = 6
"""GETs over which the least delay is taken: about one and a half windows."""
WINDOW_MIN: Final = 8
WINDOW_START: Final = 64
"""20 ms at 100 Mbit/s, the slowest network that matters; a quarter of a MiB of bursts elsewhere."""
BATCHES_PER_WINDOW: Final = 4
BATCH_MIN: Final = 4
BATCH_MAX: Final = 64
"""A GET asks for at most so many segments: bounds the burst that one control datagram causes."""
WINDOW_LOSS: Final = 0.1
"""Losses above this share of a batch mean a full queue; below, a bad cable, which a smaller window does not mend."""
WINDOW_BACKOFF: Final = 0.7
GAP_NS: Final = 5 * MS
"""What a later GET overtook is lost, unless packets are only reordered by less than this."""
GAP_SEGMENTS: Final = 3
PULL_TIMEOUT_MIN_NS: Final = 60 * MS
PULL_TIMEOUT_QUIET_NS: Final = 30 * MS
"""When nothing else is under way a few segments come within a round trip; asking again costs no more than they."""
PULL_TIMEOUT_MAX_NS: Final = 400 * MS
PULL_FAILURES_MAX: Final = 2
"""Timeouts in a row, with nothing in between, after which what was asked for is read reliably."""

# --- reliable reads --------------------------------------------------------------------------------------------------
STRIPE_START_SEGMENTS: Final = 16
"""The first stripe of a reader that knows no rate yet: what it wastes if somebody joins meanwhile."""
STRIPE_NS: Final = 15 * MS
STRIPE_SEGMENTS_MAX: Final = 4096
STRIPES_AT_ONCE: Final = 2
"""Worth of segments under way, so that a link is not idle between one stripe's end and the next request."""
STRIPE_GROWTH: Final = 8
"""At most so many times larger than the last one: a shaper's burst makes the first stripe look too fast."""
FRESH_STRIPE_NS: Final = 4 * MS
"""In a fetch's first moments no more than this is under way: several readers that begin together hear of each other."""
FRESH_NS: Final = 10 * MS
STRIPE_RUN_MIN: Final = 8
"""Shorter runs of missing segments are asked for by GET where there is a switch."""
READ_STALL_NS: Final = 1000 * MS
"""A read without progress for so long is begun anew, from another holder if there is one."""
HOLDER_FAILURES_MAX: Final = 2
"""Broken reads from one holder, with nothing from it in between, before it counts as gone."""

# --- measuring -------------------------------------------------------------------------------------------------------
INFLOW_SLOT_NS: Final = 50 * MS
LINK_DECAY: Final = 0.995
"""Per slot with traffic: a link that became slower is believed after some seconds."""
EVALUATE_NS: Final = 2 * MS
"""Arrivals lead to a new decision at most so often."""

assert FAIR_FRACTION < 0.5 < SLOW_FRACTION
assert SILENCE_NS < PATIENCE_UNLED_NS < PATIENCE_ANNOUNCED_NS
assert LOOKAHEAD_NS < WINDOW_DELAY_NS < PULL_TIMEOUT_MIN_NS < PULL_TIMEOUT_MAX_NS
assert PROBE_RANK_STEP_NS > INFLOW_SLOT_NS
assert BATCH_MIN <= WINDOW_MIN <= WINDOW_START
assert BATCH_MAX <= GET_COUNT_MAX
assert BATCHES_PER_WINDOW < JOINED_MAX
