#include "pace.h"

#include <assert.h>

#include "datapath.h"

#define BUFFER_NS 300000 /* of the link, by one buffer */
#define SPAN_NS_MIN 1000000
#define SECOND_NS 1000000000

_Static_assert(DP_BUFFER_BYTES_MAX <= 65535 - 28, "what one UDP datagram over IPv4 carries");

void pace_open(struct pace *pace, uint64_t rate_bytes_s) { *pace = (struct pace){.rate_bytes_s = rate_bytes_s}; }

uint32_t pace_segments(const struct pace *pace, uint32_t datagram_bytes) {
    assert(datagram_bytes);
    uint64_t bytes = pace->rate_bytes_s / (SECOND_NS / BUFFER_NS);
    if (bytes > DP_BUFFER_BYTES_MAX) bytes = DP_BUFFER_BYTES_MAX;
    uint64_t segments = bytes / datagram_bytes;
    return segments < 1 ? 1 : segments > DP_BUFFER_SEGMENTS_MAX ? DP_BUFFER_SEGMENTS_MAX : (uint32_t)segments;
}

void pace_sent(struct pace *pace, uint64_t bytes) { pace->bytes += bytes; }

void pace_full(struct pace *pace, int64_t now_ns) {
    int64_t span_ns = now_ns - pace->full_ns;
    if (pace->full_ns && span_ns < SPAN_NS_MIN) return;
    if (pace->full_ns && pace->bytes) {
        double rate = (double)pace->bytes * SECOND_NS / (double)span_ns;
        pace->rate_bytes_s = (uint64_t)(((double)pace->rate_bytes_s + rate) / 2);
    }
    pace->full_ns = now_ns;
    pace->bytes = 0;
}

void pace_idle(struct pace *pace) { pace->full_ns = 0; }

uint32_t dp_pace(uint64_t rate_bytes_s, const int64_t *full_ns, const uint64_t *bytes, uint32_t moments,
                 uint32_t datagram_bytes) {
    struct pace pace;
    pace_open(&pace, rate_bytes_s);
    for (uint32_t i = 0; i < moments; i++) {
        pace_sent(&pace, bytes[i]);
        pace_full(&pace, full_ns[i]);
    }
    return pace_segments(&pace, datagram_bytes);
}
