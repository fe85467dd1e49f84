/* What a sender has been given and what became of it, in order. Callers hold a lock. */
#pragma once

#include <stdint.h>

#include "datapath.h"

/* Begins a sender's own structure. */
struct sending {
    struct sending *next;
    uint64_t id;    /* the caller's */
    uint32_t count; /* segments */
    uint32_t sent;
    uint32_t told; /* of those sent, how many were in a drained outcome */
    uint32_t failed;
};

struct sendings {
    struct sending *first, **end; /* to be sent or to be reported */
    uint32_t unsent;              /* of them, those with segments without an outcome */
    uint32_t left;                /* segments without an outcome */
    uint32_t unreported;          /* segments sent or failed that wait to be reported */
    int woken;                    /* nobody has drained since `wake` was written */
    int wake;                     /* an eventfd */
    uint32_t enough;
};

/* `enough`: segments without a report for which the caller's side is woken, however many are left. */
void sendings_open(struct sendings *sendings, int wake, uint32_t enough);

/* `added` came from malloc and belongs to the list from now on. Returns whether nothing was unsent before. */
int sendings_add(struct sendings *sendings, struct sending *added);

static inline uint32_t sending_rest(const struct sending *sending) {
    return sending->count - sending->sent - sending->failed;
}

void sendings_record(struct sendings *sendings, struct sending *sending, uint32_t sent, uint32_t failed);

/* Wakes the caller's side when there is enough to tell: as much as is left to send, or `enough`. So it adds more in time
 * and is not woken for each batch. */
void sendings_tell(struct sendings *sendings);

/* See dp_sender_drain. */
uint32_t sendings_drain(struct sendings *sendings, struct dp_outcome *outcomes, uint32_t room);

void sendings_close(struct sendings *sendings);
