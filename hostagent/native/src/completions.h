/* A completion queue with its channel: taken in batches, waited for by a descriptor. Callers hold a lock. */
#pragma once

#include <stdint.h>

#include "datapath.h"
#include "verbs.h"

struct completions {
    struct dp_completion_queue queue;
    int armed; /* the next completion makes the channel readable */
    struct verbs_completion *taken;
    uint32_t room, count, next; /* of `taken`: [next, count) are not looked at yet */
};

/* Returns 0 or ENOMEM. */
int completions_open(struct completions *completions, const struct dp_completion_queue *queue, uint32_t room);

/* Takes what has completed unless there is some left to look at. Returns how many there are to look at; -1: the queue
 * is broken. */
int completions_look(struct completions *completions);

/* From now on the channel becomes readable when something completes; what came before makes no event, so look once
 * more. Returns -1 when the queue is broken. */
int completions_arm(struct completions *completions);

/* The channel was readable. Returns -1 when it is broken. */
int completions_woken(struct completions *completions);

void completions_close(struct completions *completions);
