/* Messages from a UD queue pair of an RDMA NIC, which has taken BTH, DETH and ICRC off and checked them. Each lies in a
 * row of the caller's ring; rows go back to the NIC in chains. */
#include <stdlib.h>

#include "completions.h"
#include "intake.h"

#define IP_AT (VERBS_GRH_BYTES - 20)
#define BTH_WOULD_BE_AT (VERBS_GRH_BYTES - DP_CHUNK_HEADER)
#define POST_ROWS_MIN 32 /* rows that go back to the NIC by one call */

struct queue_intake {
    struct intake intake;
    struct completions completions;
    struct dp_receive_queue queue;
    uint32_t from_switch_dscp;
    uint32_t posted;                          /* rows that the NIC has, or has filled since */
    struct verbs_receive *first, *last;       /* rows to go back */
    uint32_t waiting;                         /* how many */
    uint32_t handed_out[INTAKE_BATCH], count; /* rows of the last `take` */
};

/* Gives the rows of the last `take` back to the NIC, once there are `least` of them. */
static void give_back(struct queue_intake *from, uint32_t least) {
    struct verbs_receive *requests = from->queue.requests, *bad;
    for (uint32_t i = 0; i < from->count; i++) {
        struct verbs_receive *request = &requests[from->handed_out[i]];
        request->next = NULL;
        if (from->waiting++)
            from->last->next = request;
        else
            from->first = request;
        from->last = request;
    }
    from->count = 0;
    if (from->waiting < least) return;
    if (((verbs_post_receive *)from->queue.post)(from->queue.queue_pair, from->first, &bad))
        from->intake.broken = DP_BROKEN_QUEUE_PAIR;
    from->posted += from->waiting;
    from->waiting = 0;
}

/* Reads what the NIC says of one message. */
static void describe(const struct queue_intake *from, const struct verbs_completion *done, struct intake_row *row) {
    uint8_t *start = from->queue.rows + done->work_id * from->queue.row_bytes;
    row->bytes = start + BTH_WOULD_BE_AT;
    row->length = done->bytes > BTH_WOULD_BE_AT ? done->bytes - BTH_WOULD_BE_AT : 0;
    row->source = get32(start + IP_AT + 12);
    row->destination = get32(start + IP_AT + 16);
    row->from_switch = (uint32_t)(start[IP_AT + 1] >> 2) == from->from_switch_dscp;
}

static int look(struct queue_intake *from) {
    struct completions *completions = &from->completions;
    int is_fresh = completions->next == completions->count;
    int count = completions_look(completions);
    if (count < 0)
        from->intake.broken = DP_BROKEN_COMPLETIONS;
    else if (is_fresh && count && (uint32_t)count >= from->posted)
        /* The NIC had no row left when we looked: later messages were lost, and nothing says how many. */
        from->intake.overflows++;
    return from->intake.broken ? 0 : count;
}

static uint32_t take(struct intake *intake, struct intake_row *rows) {
    struct queue_intake *from = (struct queue_intake *)intake;
    struct completions *completions = &from->completions;
    if (!intake->broken) give_back(from, POST_ROWS_MIN);
    while (!intake->broken && from->count < INTAKE_BATCH && look(from) > 0) {
        const struct verbs_completion *done = &completions->taken[completions->next];
        if (done->queue_pair != from->queue.number) {
            completions->next++; /* of a queue pair that was replaced */
            continue;
        }
        if (done->status != VERBS_WC_SUCCESS || done->work_id >= from->queue.rows_count) {
            intake->broken = DP_BROKEN_QUEUE_PAIR;
            break;
        }
        describe(from, done, &rows[from->count]);
        from->handed_out[from->count++] = (uint32_t)done->work_id;
        from->posted--;
        completions->next++;
    }
    intake->has_more = from->count == INTAKE_BATCH;
    return from->count;
}

static enum dp_count check(struct wire *wire, const struct intake_row *row) {
    return wire_check_message(wire, row->bytes, row->length);
}

static int may_wait(struct intake *intake) {
    struct queue_intake *from = (struct queue_intake *)intake;
    if (!intake->broken) give_back(from, 1);
    if (!intake->broken && completions_arm(&from->completions) < 0) intake->broken = DP_BROKEN_COMPLETIONS;
    return intake->broken || !look(from);
}

static void wake(struct intake *intake) {
    if (completions_woken(&((struct queue_intake *)intake)->completions) < 0) intake->broken = DP_BROKEN_COMPLETIONS;
}

static void free_queue(struct intake *intake) {
    completions_close(&((struct queue_intake *)intake)->completions);
    free(intake);
}

static const struct intake_kind kind = {take, check, may_wait, wake, free_queue};

struct intake *queue_intake_new(const struct dp_receive_queue *queue, uint32_t from_switch_dscp) {
    struct queue_intake *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    if (completions_open(&made->completions, &queue->completions, queue->rows_count)) {
        free(made);
        return NULL;
    }
    made->intake = (struct intake){.kind = &kind, .fd = queue->completions.fd};
    made->queue = *queue;
    made->posted = queue->rows_count;
    made->from_switch_dscp = from_switch_dscp;
    return &made->intake;
}

void queue_intake_renew(struct intake *intake, void *queue_pair, uint32_t number) {
    struct queue_intake *from = (struct queue_intake *)intake;
    from->queue.queue_pair = queue_pair;
    from->queue.number = number;
    from->posted = from->queue.rows_count;
    from->waiting = from->count = 0;
    intake->broken = DP_NOT_BROKEN;
}
