#include "reports.h"

#include <string.h>

#define LOOK_BACK 16 /* reports searched for the one of a segment: casts of this many chunks may interleave */

int reports_have_room(const struct reports *reports, uint32_t count) {
    const struct report_side *side = &reports->sides[reports->filling];
    return side->arrivals_count + count <= ARRIVALS_MAX && side->reports_count + count <= REPORTS_MAX;
}

uint32_t reports_waiting(const struct reports *reports) { return reports->sides[reports->filling].arrivals_count; }

static uint32_t find_or_make(struct report_side *side, const uint8_t *key, uint64_t ticket, uint32_t segments,
                             uint32_t source) {
    uint32_t oldest = side->reports_count > LOOK_BACK ? side->reports_count - LOOK_BACK : 0;
    for (uint32_t i = side->reports_count; i > oldest; i--) {
        const struct dp_report *report = &side->reports[i - 1];
        if (report->ticket == ticket && report->source == source && report->segments == segments &&
            !memcmp(report->key, key, DP_KEY_BYTES))
            return i - 1;
    }
    struct dp_report *made = &side->reports[side->reports_count];
    *made = (struct dp_report){.ticket = ticket, .source = source, .segments = segments};
    memcpy(made->key, key, DP_KEY_BYTES);
    return side->reports_count++;
}

void reports_add(struct reports *reports, const uint8_t *key, uint64_t ticket, uint32_t segments, uint32_t source,
                 uint32_t segment, int from_switch) {
    struct report_side *side = &reports->sides[reports->filling];
    uint32_t index = find_or_make(side, key, ticket, segments, source);
    side->reports[index].count++;
    side->reports[index].from_switch += from_switch != 0;
    side->arrivals[side->arrivals_count++] = (struct arrival){index, segment};
}

struct report_side *reports_swap(struct reports *reports) {
    struct report_side *full = &reports->sides[reports->filling];
    reports->filling ^= 1;
    reports->sides[reports->filling].reports_count = 0;
    reports->sides[reports->filling].arrivals_count = 0;
    return full;
}

void reports_group(struct reports *reports, struct report_side *side, struct dp_drained *drained) {
    uint32_t next[REPORTS_MAX], first = 0;
    for (uint32_t i = 0; i < side->reports_count; i++) {
        side->reports[i].first = next[i] = first;
        first += side->reports[i].count;
    }
    for (uint32_t i = 0; i < side->arrivals_count; i++)
        reports->segments[next[side->arrivals[i].report]++] = side->arrivals[i].segment;
    *drained = (struct dp_drained){
        .reports = side->reports,
        .segments = reports->segments,
        .reports_count = side->reports_count,
        .segments_count = side->arrivals_count,
    };
}
