"""The rules' times and thresholds, each with its reason.

A time about the network is a span (`pace.Span`): a number of reactions plus a number of segments, between a floor and a
ceiling. Each reader measures its reaction (the way to the switch and back, and how late its process runs) and the time
that its link needs for a segment. The ceiling is what a Python process on a loaded host needs at 100 Mbit/s, and it
holds until both are measured. Times about people and processes are plain nanoseconds.

| span | covers | reactions | segments | ceiling |
|---|---|---|---|---|
| JOIN_RETRY | a switch's answer that was lost; doubled with every try | 4 | | 25 ms |
| JOIN_ANSWER | answers to JOINs just sent, before anything is begun alone | 2 | | 5 ms |
| QUIET_REJOIN | nothing heard at all: the switch may have forgotten us; doubled up to 1 s | 60 | 512 | 80 ms |
| LEAVE_AGAIN | segments under way when a chunk was left | 6 | 128 | 20 ms |
| SILENCE | a stall of a living leader | 16 | 256 | 25 ms |
| RANK_STEP | that the first one's data stops the next | 3 | | 6 ms |
| LOOKAHEAD | taking over before the end of what is under way | 3 | 64 | 12 ms |
| PATIENCE_ANNOUNCED | from a leader's announcement to its first segment, two windows | 40 | 768 | 120 ms |
| PATIENCE_UNLED | the last segments of a leader that is gone or not known | 12 | 160 | 30 ms |
| PATIENCE_ALONE | what is still under way when nobody else wants the chunk | 6 | 80 | 15 ms |
| SLOW_RANK_STEP | that the first who leads beside a slow cast shows in the inflow | 8 | 256 | 20 ms |
| PROBE | following before the own link is probed | 16 | 512 | 40 ms |
| PROBE_RANK_STEP | that the first prober shows in two slots of the inflow | 48 | 1536 | 120 ms |
| NEEDED | how long who was missed goes on beside others | 400 | 12800 | 2 s |
| OVERLOAD_HOLDOFF | how long who yielded does not lead | 100 | 6400 | 500 ms |
| REPAIR_DELAY | reordering of a NOTICE and the segments before it | 0.5 | 32 | 6 ms |
| REPAIR_DELAY_UNLED | retransmissions of a leader that is not known | 10 | 128 | 25 ms |
| REPAIR_RANK_STEP | that what several miss is asked for by the first | 1 | 8 | 1 ms |
| WINDOW_DELAY | what a window must cover: reactions of reader and holder | 10 | 128 | 15 ms |
| WINDOW_REACTION | what a holder's window covers besides: late processes; both at most 30 ms | 1 - 1.5 ms | | |
| GAP | reordering of segments | 0.5 | 32 | 5 ms |
| PULL_TIMEOUT_MIN | segments asked for, at least | 10 | 256 | 60 ms |
| PULL_TIMEOUT_QUIET | a few segments with nothing else under way | 5 | 96 | 30 ms |
| STRIPE | a reliable read | 8 | 48 | 15 ms |
| READ_SILENCE | a read under way: what it has not brought is asked for by GET, too | 24 | 512 | 100 ms |
| FRESH_STRIPE | what is read while others may be about to join | 2 | | 4 ms |
| FRESH | how long that is | 4 | | 10 ms |
| NEWCOMER_SPAN | being a newcomer | 16 | | 40 ms |
| INFLOW_SLOT | measuring a rate, if few segments come | 12 | 256 | 50 ms |
| INFLOW_SLOT_MIN | the same, if many come | 12 | | 50 ms |
| INFLOW_SLOT_FIRST | the same, as long as no rate is known | 2 | | 50 ms |
| EVALUATE | arrivals lead to a new decision at most so often | 0.5 | 8 | 2 ms |
| ANSWERED | at the holder: what left this recently had not come when the asker asked; it says how late | 1 | | 8 ms |
| FILL_TIMEOUT | the holder: the switch's acknowledgement of a FILL; doubled up to 400 ms | | | 40 ms |
| FILL_RIDES | the holder: the next GET of a cast on which a fill rides | | | 120 ms |
"""

from typing import Final

from kvproto.limits import GET_COUNT_MAX, JOINED_MAX, MS
from kvproto.session.pace import Span

US: Final = 1_000

# --- joining ---------------------------------------------------------------------------------------------------------
JOIN_RETRY: Final = Span(4, 0, 200 * US, 25 * MS)
JOIN_TRIES_MAX: Final = 4
"""The chunk is read reliably if no NOTICE comes in a first wait, nor in twice, four and eight times that."""
JOIN_ANSWER: Final = Span(2, 0, 20 * US, 5 * MS)
NO_SWITCH_MEMORY_NS: Final = 1000 * MS
"""Nothing is joined for this long after a NO_SWITCH, so that plain networks pay at most one round trip per second."""
RENEWALS_PER_TTL: Final = 3
"""Two renewals may get lost before the switch forgets us."""
QUIET_REJOIN: Final = Span(60, 512, 1 * MS, 80 * MS)
QUIET_REJOIN_MAX_NS: Final = 1000 * MS
LEAVE_AGAIN: Final = Span(6, 128, 200 * US, 20 * MS)

# --- leading ---------------------------------------------------------------------------------------------------------
SILENCE: Final = Span(16, 256, 100 * US, 25 * MS)
RANK_STEP: Final = Span(3, 0, 20 * US, 6 * MS)
NEWCOMER_ANSWERS: Final = 4
"""A newcomer waits NEWCOMER_ANSWERS x the measured JOIN round trip before it leads. The others hear of it when its
answer leaves the switch, and what they do about it comes one round trip later if they run as late as this host. They
may run later, and a rack away it takes two: waiting for two led to two leaders at once in one of six runs."""
NEWCOMER_MAX_NS: Final = 12 * MS
"""And no longer than that, which is also how long it waits before it has measured an answer."""
NEWCOMER_SPAN: Final = Span(16, 0, 100 * US, 40 * MS)
LOOKAHEAD: Final = Span(3, 64, 20 * US, 12 * MS)
PATIENCE_ANNOUNCED: Final = Span(40, 768, 200 * US, 120 * MS)
PATIENCE_UNLED: Final = Span(12, 160, 100 * US, 30 * MS)
PATIENCE_ALONE: Final = Span(6, 80, 50 * US, 15 * MS)
NEEDED: Final = Span(400, 12_800, 4 * MS, 2000 * MS)
SLOW_FRACTION: Final = 0.7
"""If the casts of others bring less than this part of what our link takes, lead another chunk at the same time."""
FAIR_FRACTION: Final = 0.42
"""A leader steps back only from others that bring at least this part of what its link takes: a fair share is half."""
SLOW_RANK_STEP: Final = Span(8, 256, 50 * US, 20 * MS)
PROBE: Final = Span(16, 512, 100 * US, 40 * MS)
PROBE_RANK_STEP: Final = Span(48, 1536, 300 * US, 120 * MS)
OVERLOAD_LOSS: Final = 0.25
"""A leader that loses this share of what it asks for while others also pull has a slower link than theirs."""
OVERLOAD_HOLDOFF: Final = Span(100, 6400, 1 * MS, 500 * MS)
LAGGARD_RANKS: Final = 8
"""A member that misses much of what is cast waits behind this many others before it leads."""

PATIENT_SEGMENTS: Final = 256
"""A follower that misses at least this many need not see each one at once: 80 ms at 100 Mbit/s."""

# --- repairing -------------------------------------------------------------------------------------------------------
REPAIR_DELAY: Final = Span(0.5, 32, 20 * US, 6 * MS)
"""After a chunk's leader has left it: what it still had asked for comes before its NOTICE, but for reordering."""
REPAIR_DELAY_UNLED: Final = Span(10, 128, 100 * US, 25 * MS)
"""After the last segment of a chunk whose leader is not known; its retransmissions come within this."""
REPAIR_RANK_STEP: Final = Span(1, 8, 10 * US, 1 * MS)
"""The first of those that miss a segment asks for it; the holder merges what others ask for at the same time. Members
that repair at once are quicker on slow links, and at 1 Gbit/s staggered readers take 1.73 S/B instead of 1.62."""
REPAIR_FRACTION: Final = 8
"""At most 1/8 of a chunk is a repair, made while others cast; more waits until the link has room."""

# --- windows ---------------------------------------------------------------------------------------------------------
WINDOW_DELAY: Final = Span(10, 128, 50 * US, 15 * MS)
"""Segments asked for come within about this: covers processes that run late, and stays below usual queue limits."""
WINDOW_REACTION_NS: Final = int(WINDOW_DELAY.ceiling_ns // WINDOW_DELAY.reactions)
"""The ceiling of WINDOW_DELAY covers reactions up to this. What a reader's is longer, the window of what a holder sends
covers besides: while either process does not run, what is queued at the holder keeps its uplink busy. A holder's queue
drops nothing. A switch's does, and a switch is never late: the window of what it serves covers WINDOW_DELAY only."""
WINDOW_DELAY_MAX_NS: Final = 30 * MS
"""Both together at most: two reactions more made a second leader on busy hosts."""
WINDOW_BEST_OF: Final = 6
"""GETs over which the least delay is taken: about one and a half windows."""
WINDOW_MIN: Final = 8
WINDOW_START: Final = 64
"""20 ms at 100 Mbit/s, the slowest network that matters; a quarter of a MiB of bursts elsewhere."""
BATCHES_PER_WINDOW: Final = 4
BATCH_MIN: Final = 4
BATCH_MAX: Final = 64
"""A GET asks for at most this many segments, which bounds the burst that one control datagram causes. With
larger ones holders at 25 Gbit/s sent 1.09 instead of 1.04 times the chunk."""
WINDOW_LOSS: Final = 0.1
"""Losses above this share of a batch mean a full queue; below, a bad cable, which a smaller window does not mend."""
WINDOW_BACKOFF: Final = 0.7
GAP: Final = Span(0.5, 32, 20 * US, 5 * MS)
"""A segment that a later GET overtook is lost, unless packets are merely reordered by less than this."""
GAP_SEGMENTS: Final = 3
PULL_TIMEOUT_MIN: Final = Span(10, 256, 200 * US, 60 * MS)
PULL_TIMEOUT_QUIET: Final = Span(5, 96, 100 * US, 30 * MS)
"""When nothing else is under way a few segments come within a round trip; asking again costs no more than they do."""
PULL_TIMEOUT_MAX_NS: Final = 400 * MS
PULL_FAILURES_MAX: Final = 2
"""Timeouts in a row, with nothing in between, after which what was asked for is read reliably."""

# --- reliable reads --------------------------------------------------------------------------------------------------
STRIPE_START_SEGMENTS: Final = 16
"""The first stripe of a reader that knows no rate yet: what it wastes if somebody joins meanwhile."""
STRIPE: Final = Span(8, 48, 50 * US, 15 * MS)
STRIPE_SEGMENTS_MAX: Final = 4096
STRIPE_ROUND_SEGMENTS: Final = 16
"""Long stripes are multiples of this: in segments of 4 KiB, of the 64 KiB pieces in which chunks are hashed, so that a
host may hash them while they come."""
STRIPES_AT_ONCE: Final = 2
"""Worth of segments under way, so that a link is not idle between one stripe's end and the next request."""
STRIPE_GROWTH: Final = 8
"""A stripe is at most this many times the last one: a shaper's burst makes the first stripe look too fast."""
FRESH_STRIPE: Final = Span(2, 0, 20 * US, 4 * MS)
"""In a fetch's first moments no more than this is under way, so that readers that begin together hear of each other."""
FRESH: Final = Span(4, 0, 50 * US, 10 * MS)
STRIPE_RUN_MIN: Final = 8
"""Shorter runs of missing segments are asked for by GET where there is a switch."""
READ_SILENCE: Final = Span(24, 512, 500 * US, 100 * MS)
"""Two stripes, during which small reads report nothing, and then some. Where the last packet of a connection is lost,
only a timer of the holder's kernel sends it again, and those timers are made for the Internet."""
READ_STALL_NS: Final = 1000 * MS
"""A read without progress for this long starts over, from another holder if there is one."""
HOLDER_FAILURES_MAX: Final = 2
"""Broken reads from one holder, with nothing from it in between, before it counts as gone."""

# --- trusting nobody -------------------------------------------------------------------------------------------------
LIVENESS: Final = Span(120, 2048, 20 * MS, 250 * MS)
"""Longer than any patience of the rules above: casts that bring nothing new for this long are not waited for."""
LIVENESS_FRACTION: Final = 1 / 16
"""Of what the link takes: less than that in a window is nothing."""

# --- measuring -------------------------------------------------------------------------------------------------------
INFLOW_SLOT: Final = Span(12, 256, 100 * US, 50 * MS)
INFLOW_SLOT_SEGMENTS: Final = 256
"""This many segments end a slot once INFLOW_SLOT_MIN has passed."""
INFLOW_SLOT_MIN: Final = Span(12, 0, 50 * US, 50 * MS)
INFLOW_SLOT_FIRST: Final = Span(2, 0, 20 * US, 50 * MS)
"""The first slot need not be exact; nothing is known without it."""
LINK_DECAY: Final = 0.995
"""Per slot with traffic: a link that became slower is believed after some seconds."""
EVALUATE: Final = Span(0.5, 8, 5 * US, 2 * MS)

# --- the holder ------------------------------------------------------------------------------------------------------
ANSWERED: Final = Span(1, 0, 20 * US, 8 * MS)
"""A segment sent this recently answers another member's GET too: it was asked for before this copy could arrive."""
FILL_TIMEOUT_NS: Final = 40 * MS
"""A switch acknowledges at once; a loaded holder sees it some milliseconds later. No fetch waits for a FILL."""
FILL_TIMEOUT_MAX_NS: Final = 400 * MS
FILL_RIDES_NS: Final = 120 * MS
"""A fill that may ride on a cast lets this much time pass without a GET before it sends the rest by itself: two windows
of a leader, as PATIENCE_ANNOUNCED. No fetch waits for a FILL."""
FILL_RIDES_MAX_NS: Final = 2000 * MS
"""While other chunks are cast it waits no longer than this for its own turn: a busy holder casts all the time."""

assert FAIR_FRACTION < 0.5 < SLOW_FRACTION
assert SILENCE.ceiling_ns < PATIENCE_UNLED.ceiling_ns < PATIENCE_ANNOUNCED.ceiling_ns
assert PATIENCE_ANNOUNCED.ceiling_ns < LIVENESS.ceiling_ns < READ_STALL_NS
assert LOOKAHEAD.ceiling_ns < WINDOW_DELAY.ceiling_ns < PULL_TIMEOUT_MIN.ceiling_ns < PULL_TIMEOUT_MAX_NS
assert WINDOW_DELAY.ceiling_ns < WINDOW_DELAY_MAX_NS < PULL_TIMEOUT_MIN.ceiling_ns
assert STRIPES_AT_ONCE * STRIPE.ceiling_ns < READ_SILENCE.ceiling_ns < READ_STALL_NS
assert FILL_TIMEOUT_NS < FILL_RIDES_NS == PATIENCE_ANNOUNCED.ceiling_ns < FILL_RIDES_MAX_NS
assert PROBE_RANK_STEP.ceiling_ns > INFLOW_SLOT.ceiling_ns
assert BATCH_MIN <= WINDOW_MIN <= WINDOW_START
assert BATCH_MAX <= GET_COUNT_MAX
assert BATCHES_PER_WINDOW < JOINED_MAX
