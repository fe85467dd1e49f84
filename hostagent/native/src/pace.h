/* How much may leave by one buffer: what the link carries within some hundred microseconds. A shaper that gets more at
 * once would drop it, or delay others' datagrams behind it. */
#pragma once

#include <stdint.h>

struct pace {
    uint64_t rate_bytes_s; /* of the link: as configured or said by the kernel, then as measured */
    int64_t full_ns;       /* when the socket was full last; 0: not since it was idle */
    uint64_t bytes;        /* taken by the socket since */
};

void pace_open(struct pace *pace, uint64_t rate_bytes_s);

/* How many datagrams of this size may leave by one buffer, at least 1. */
uint32_t pace_segments(const struct pace *pace, uint32_t datagram_bytes);

void pace_sent(struct pace *pace, uint64_t bytes);

/* The socket was full. Between two such moments it has taken what the link has carried. */
void pace_full(struct pace *pace, int64_t now_ns);

/* Nothing was left to send. */
void pace_idle(struct pace *pace);
