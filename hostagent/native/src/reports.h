/* Segments that arrived and wait to be drained. One of the two sides is filled while the other is read. Callers hold a
 * lock. */
#pragma once

#include <stdint.h>

#include "datapath.h"

#define REPORTS_MAX 512
#define ARRIVALS_MAX 16384

struct arrival {
    uint32_t report;
    uint32_t segment;
};

struct report_side {
    struct dp_report reports[REPORTS_MAX];
    struct arrival arrivals[ARRIVALS_MAX];
    uint32_t reports_count;
    uint32_t arrivals_count;
};

struct reports {
    struct report_side sides[2];
    int filling;
    uint32_t segments[ARRIVALS_MAX]; /* of the side that was drained last, grouped by report */
};

/* Whether there is room for `count` more segments, each of a different chunk. */
int reports_have_room(const struct reports *reports, uint32_t count);

uint32_t reports_waiting(const struct reports *reports);

void reports_add(struct reports *reports, const uint8_t *key, uint64_t ticket, uint32_t segments, uint32_t source,
                 uint32_t segment, int from_switch);

/* Begins to fill the other side. Returns the side filled so far, which is the caller's until the next call. */
struct report_side *reports_swap(struct reports *reports);

/* Groups a side's segments by report, in order of arrival. */
void reports_group(struct reports *reports, struct report_side *side, struct dp_drained *drained);
