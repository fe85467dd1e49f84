/* Takes datagrams to the group into the pool, in a thread of its own.
 *
 * There are two locks, always taken in this order. Whoever receives holds `intake`: the thread, or a caller that drains
 * the intake. `state` guards what both sides share. Chunks are written under `state` only, so nothing writes to a chunk
 * that was forgotten. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "datapath.h"
#include "expected.h"
#include "intake.h"
#include "reports.h"
#include "threads.h"
#include "wire.h"

#define GROUP 4              /* datagrams judged, then placed, while they are in the cache nearest to the processor */
#define UNASKED_LOOKED_AT 64 /* one of so many */
#define MULTICAST 0xE        /* how the addresses of groups begin: 224.0.0.0/4 */
#define BATCHES_MAX 8        /* calls in a row before a caller that drains gets its turn */
#define NAP_SEGMENTS 64      /* a nap lasts until at most this many should have arrived */
#define NAP_NS_MIN 20000     /* a shorter nap costs more than waiting for the next one */
#define RATE_NS_MAX 10000000 /* older arrivals say nothing about the present rate */

struct dp_receiver {
    int wake, interrupt;
    uint32_t own;
    int by_groups;

    pthread_mutex_t intake;
    uint32_t looking; /* callers that wait for `intake` */
    struct wire wire;
    struct intake *from;
    uint32_t overflows; /* counted of the intake's */
    uint32_t unasked;   /* datagrams of chunks that are not expected */
    struct intake_row rows[INTAKE_BATCH];

    pthread_mutex_t state;
    struct expected_table expected;
    struct reports reports;
    uint64_t counts[DP_COUNTS];
    int64_t since_ns; /* arrival of the oldest segment that waits to be drained, 0: none waits */
    int woken;        /* nobody has drained since `wake` was written */
    enum dp_broken broken;
    int whole;         /* a chunk became whole since the last drain */
    uint32_t left_min; /* the least number of segments that a chunk of the last round still lacks */
    int64_t patience_ns;
    uint32_t patience_segments;

    pthread_t thread;
    int started;
    int stop;
    int64_t measured_ns; /* when counting `measured` began */
    uint32_t measured;
    double rate; /* segments per nanosecond */
};

/* ---- one batch --------------------------------------------------------------------------------------------------- */

/* Whether a datagram is one of many that others asked for. Some of those are looked at and reported: whoever has left a
 * chunk is to say so again if its LEAVE was lost. The caller holds `intake`, not `state`. */
static int is_unasked(struct dp_receiver *receiver, const struct intake_row *row) {
    if (!receiver->by_groups || row->length < DP_HEADER_BYTES) return 0;
    pthread_mutex_lock(&receiver->state);
    int expected = expected_find(&receiver->expected, row->bytes + DP_KV_KEY) != NULL;
    pthread_mutex_unlock(&receiver->state);
    return !expected && receiver->unasked++ % UNASKED_LOOKED_AT != 0;
}

/* Checks rows. The caller holds `intake`, not `state`. */
static void judge(struct dp_receiver *receiver, struct intake_row *rows, uint32_t count) {
    for (uint32_t i = 0; i < count; i++) {
        struct intake_row *row = &rows[i];
        /* What this node filled into the switch comes back with its own address; its own casts do not. */
        if (row->source == receiver->own && !row->from_switch)
            row->verdict = DP_OWN;
        else if (receiver->by_groups && row->destination >> 28 != MULTICAST)
            row->verdict = DP_UNICAST;
        else if (is_unasked(receiver, row))
            row->verdict = DP_UNASKED;
        else
            row->verdict = receiver->from->kind->check(&receiver->wire, row);
    }
}

/* Writes a good row to its chunk and reports it. The caller holds both locks. */
static void place_row(struct dp_receiver *receiver, const struct intake_row *row) {
    const uint8_t *key = row->bytes + DP_KV_KEY;
    uint32_t segment = get32(row->bytes + DP_KV_SEGMENT), segments = get32(row->bytes + DP_KV_SEGMENTS);
    struct expected *chunk = expected_find(&receiver->expected, key);

    receiver->counts[DP_FROM_SWITCH] += row->from_switch != 0;
    if (chunk && chunk->segments != segments) {
        receiver->counts[DP_OTHER_SIZE]++;
        return;
    }
    if (chunk) {
        if (!expected_place(chunk, segment, receiver->wire.segment_bytes, row->bytes + DP_HEADER_BYTES))
            receiver->counts[DP_DUPLICATES]++;
        else if (!chunk->left)
            receiver->whole = 1;
        if (chunk->left < receiver->left_min) receiver->left_min = chunk->left;
    }
    reports_add(&receiver->reports, key, chunk ? chunk->ticket : 0, segments, row->source, segment, row->from_switch);
}

/* Counts rows that were judged, and places the good ones. Whoever drained before these has not heard of them, even if
 * they came with others by one call: they wait from now on. The caller holds `intake`. */
static void place(struct dp_receiver *receiver, const struct intake_row *rows, uint32_t count, int64_t arrived_ns) {
    pthread_mutex_lock(&receiver->state);
    if (!receiver->since_ns) receiver->since_ns = arrived_ns;
    for (uint32_t i = 0; i < count; i++) {
        receiver->counts[rows[i].verdict]++;
        if (rows[i].verdict == DP_RECEIVED) place_row(receiver, &rows[i]);
    }
    pthread_mutex_unlock(&receiver->state);
}

/* Tells the caller's side, once, that nothing comes any more. The caller holds `intake`. */
static void notice_break(struct dp_receiver *receiver) {
    enum dp_broken broken = receiver->from->broken;
    pthread_mutex_lock(&receiver->state);
    if (broken != receiver->broken) {
        receiver->broken = broken;
        receiver->woken = 1;
        write_event(receiver->wake);
    }
    pthread_mutex_unlock(&receiver->state);
}

/* The caller holds `intake`. Returns how many datagrams were taken; `*has_more`: there may be more to take, and room. */
static uint32_t take_batch(struct dp_receiver *receiver, int *has_more) {
    struct intake *from = receiver->from;
    pthread_mutex_lock(&receiver->state);
    int room = reports_have_room(&receiver->reports, INTAKE_BATCH);
    pthread_mutex_unlock(&receiver->state);
    uint32_t count = room ? from->kind->take(from, receiver->rows) : 0;
    if (from->broken) notice_break(receiver);
    *has_more = room && from->has_more;
    if (!count) return 0;

    pthread_mutex_lock(&receiver->state);
    receiver->counts[DP_OVERFLOWS] += (uint32_t)(from->overflows - receiver->overflows);
    receiver->overflows = from->overflows;
    receiver->counts[DP_LOOKS]++;
    pthread_mutex_unlock(&receiver->state);
    int64_t arrived_ns = now_ns();
    for (uint32_t i = 0; i < count; i += GROUP) {
        uint32_t rest = count - i, group = rest < GROUP ? rest : GROUP;
        judge(receiver, &receiver->rows[i], group);
        place(receiver, &receiver->rows[i], group, arrived_ns);
    }
    return count;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static void measure(struct dp_receiver *receiver, uint32_t taken, int64_t at_ns) {
    int64_t span = at_ns - receiver->measured_ns;
    receiver->measured += taken;
    if (span < 1000000 && receiver->measured < NAP_SEGMENTS) return;
    double rate = span > 0 ? (double)receiver->measured / (double)span : 0;
    receiver->rate = span > RATE_NS_MAX ? 0 : (receiver->rate + rate) / 2;
    receiver->measured = 0;
    receiver->measured_ns = at_ns;
}

/* After a round that took `taken` datagrams: wakes the caller's side if it should drain. Returns how long the next
 * round may wait; -1: until the socket has something. */
static int64_t decide(struct dp_receiver *receiver, uint32_t taken, int64_t at_ns) {
    int64_t wait_ns = -1;
    pthread_mutex_lock(&receiver->state);
    if (receiver->since_ns && !receiver->woken) {
        int64_t due_ns = receiver->since_ns + receiver->patience_ns;
        int full = reports_waiting(&receiver->reports) >= receiver->patience_segments ||
                   !reports_have_room(&receiver->reports, INTAKE_BATCH);
        /* A round that took nothing means that the flow has paused: the reader may have to ask for more. */
        if (receiver->whole || full || !taken || at_ns >= due_ns) {
            receiver->woken = 1;
            write_event(receiver->wake);
        } else {
            int64_t pause_ns = receiver->patience_ns / 8;
            wait_ns = due_ns - at_ns < pause_ns ? due_ns - at_ns : pause_ns;
        }
    }
    pthread_mutex_unlock(&receiver->state);
    return wait_ns;
}

/* How long to sleep even if datagrams arrive; 0: wait for the next one instead. A wake-up costs as much as several
 * segments, so under load several should arrive for each. */
static int64_t nap_ns(struct dp_receiver *receiver, uint32_t taken) {
    pthread_mutex_lock(&receiver->state);
    double longest = (double)receiver->patience_ns / 4;
    uint32_t waiting = reports_waiting(&receiver->reports);
    uint32_t wanted = receiver->left_min < NAP_SEGMENTS ? receiver->left_min : NAP_SEGMENTS;
    if (waiting < receiver->patience_segments && receiver->patience_segments - waiting < wanted)
        wanted = receiver->patience_segments - waiting;
    receiver->left_min = UINT32_MAX;
    pthread_mutex_unlock(&receiver->state);
    if (!taken || receiver->rate * longest < 2) return 0;
    double nap = wanted / receiver->rate;
    if (nap > longest) nap = longest;
    return nap < NAP_NS_MIN ? 0 : (int64_t)nap;
}

/* Sleeps until the caller's side interrupts, `longest_ns` are over (-1: never), or, if `wait_for_more`, something
 * comes. */
static void sleep_until(struct dp_receiver *receiver, int64_t longest_ns, int wait_for_more) {
    struct intake *from = receiver->from;
    struct pollfd files[2] = {{receiver->interrupt, POLLIN, 0}, {from->fd, POLLIN, 0}};
    struct timespec longest = {longest_ns / 1000000000, longest_ns % 1000000000};
    ppoll(files, wait_for_more ? 2 : 1, longest_ns < 0 ? NULL : &longest, NULL);
    if (files[0].revents) {
        uint64_t count;
        (void)!read(receiver->interrupt, &count, sizeof count);
    }
    if (files[1].revents) {
        pthread_mutex_lock(&receiver->intake);
        from->kind->wake(from);
        pthread_mutex_unlock(&receiver->intake);
    }
}

/* What may be waited for now. */
enum may_wait { NOT_AT_ALL, FOR_MORE, FOR_AN_INTERRUPT };

static enum may_wait may_wait(struct dp_receiver *receiver) {
    struct intake *from = receiver->from;
    pthread_mutex_lock(&receiver->intake);
    int is_quiet = from->kind->may_wait(from);
    enum dp_broken broken = from->broken;
    if (broken) notice_break(receiver);
    pthread_mutex_unlock(&receiver->intake);
    return broken ? FOR_AN_INTERRUPT : is_quiet ? FOR_MORE : NOT_AT_ALL;
}

static int is_full(struct dp_receiver *receiver) {
    pthread_mutex_lock(&receiver->state);
    int full = !reports_have_room(&receiver->reports, INTAKE_BATCH);
    pthread_mutex_unlock(&receiver->state);
    return full;
}

static void *run(void *argument) {
    struct dp_receiver *receiver = argument;
    prctl(PR_SET_NAME, "kvcast-receive");
    prctl(PR_SET_TIMERSLACK, 1000);
    while (!__atomic_load_n(&receiver->stop, __ATOMIC_ACQUIRE)) {
        while (__atomic_load_n(&receiver->looking, __ATOMIC_ACQUIRE)) sched_yield();
        uint32_t taken = 0;
        int has_more = 1;
        pthread_mutex_lock(&receiver->intake);
        for (int i = 0; i < BATCHES_MAX && has_more; i++) taken += take_batch(receiver, &has_more);
        pthread_mutex_unlock(&receiver->intake);
        int64_t at_ns = now_ns();
        measure(receiver, taken, at_ns);
        int64_t wait_ns = decide(receiver, taken, at_ns);
        if (has_more) continue;
        int64_t nap = nap_ns(receiver, taken);
        enum may_wait may;
        if (is_full(receiver))
            sleep_until(receiver, -1, 0); /* until the caller has drained */
        else if (nap)
            sleep_until(receiver, wait_ns >= 0 && wait_ns < nap ? wait_ns : nap, 0);
        else if ((may = may_wait(receiver)) != NOT_AT_ALL)
            sleep_until(receiver, wait_ns, may == FOR_MORE);
    }
    return NULL;
}

/* ---- interface --------------------------------------------------------------------------------------------------- */

struct dp_receiver *dp_receiver_new(const struct dp_receiver_config *config, const struct dp_receive_queue *queue) {
    assert(config && config->wake >= 0 && (queue || config->socket >= 0));
    assert(config->segment_bytes && config->segment_bytes <= DP_SEGMENT_BYTES_MAX);
    struct dp_receiver *receiver = calloc(1, sizeof *receiver);
    if (!receiver) return NULL;
    receiver->wake = config->wake;
    receiver->own = config->own;
    receiver->wire.qkey = config->qkey;
    receiver->wire.source_qpn = config->source_qpn;
    receiver->wire.segment_bytes = config->segment_bytes;
    memcpy(receiver->wire.identification, config->identification, sizeof config->identification);
    memcpy(receiver->wire.masked, config->masked, sizeof config->masked);
    receiver->wire.seed_ends.source = ~config->own;
    receiver->by_groups = (int)config->by_groups;
    receiver->patience_ns = 1000000;
    receiver->patience_segments = INTAKE_BATCH;
    receiver->left_min = UINT32_MAX;
    pthread_mutex_init(&receiver->intake, NULL);
    pthread_mutex_init(&receiver->state, NULL);
    receiver->interrupt = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    receiver->from = queue ? queue_intake_new(queue, config->from_switch_dscp)
                           : socket_intake_new(config->socket, config->from_switch_dscp);
    if (receiver->interrupt < 0 || !receiver->from) {
        dp_receiver_free(receiver);
        return NULL;
    }
    return receiver;
}

void dp_receiver_renew(struct dp_receiver *receiver, void *queue_pair, uint32_t number) {
    assert(receiver && queue_pair);
    pthread_mutex_lock(&receiver->intake);
    queue_intake_renew(receiver->from, queue_pair, number);
    pthread_mutex_lock(&receiver->state);
    receiver->broken = DP_NOT_BROKEN;
    pthread_mutex_unlock(&receiver->state);
    pthread_mutex_unlock(&receiver->intake);
    write_event(receiver->interrupt);
}

int dp_receiver_start(struct dp_receiver *receiver) {
    assert(receiver && !receiver->started);
    int error = pthread_create(&receiver->thread, NULL, run, receiver);
    receiver->started = !error;
    return error;
}

uint64_t dp_receiver_expect(struct dp_receiver *receiver, const uint8_t *key, uint8_t *place, uint64_t size_bytes,
                            const uint8_t *missing) {
    assert(receiver && key && place && missing && size_bytes);
    pthread_mutex_lock(&receiver->state);
    struct expected *chunk =
        expected_add(&receiver->expected, key, place, size_bytes, receiver->wire.segment_bytes, missing);
    uint64_t ticket = chunk ? chunk->ticket : 0;
    pthread_mutex_unlock(&receiver->state);
    return ticket;
}

void dp_receiver_forget(struct dp_receiver *receiver, uint64_t ticket) {
    assert(receiver);
    pthread_mutex_lock(&receiver->state);
    expected_remove(&receiver->expected, ticket);
    pthread_mutex_unlock(&receiver->state);
}

void dp_receiver_settle(struct dp_receiver *receiver) {
    assert(receiver);
    /* Segments are written under `state`: whoever looked at `missing` before has written by now. */
    pthread_mutex_lock(&receiver->state);
    pthread_mutex_unlock(&receiver->state);
}

void dp_receiver_drain_intake(struct dp_receiver *receiver) {
    assert(receiver);
    __atomic_add_fetch(&receiver->looking, 1, __ATOMIC_ACQ_REL);
    pthread_mutex_lock(&receiver->intake);
    __atomic_sub_fetch(&receiver->looking, 1, __ATOMIC_ACQ_REL);
    /* Ends at the latest when there is no more room for reports. */
    int has_more = 1;
    while (has_more) (void)take_batch(receiver, &has_more);
    pthread_mutex_unlock(&receiver->intake);
}

void dp_receiver_drain(struct dp_receiver *receiver, struct dp_drained *drained) {
    assert(receiver && drained);
    uint64_t count;
    pthread_mutex_lock(&receiver->state);
    if (receiver->woken) (void)!read(receiver->wake, &count, sizeof count);
    int was_full = !reports_have_room(&receiver->reports, INTAKE_BATCH);
    struct report_side *side = reports_swap(&receiver->reports);
    enum dp_broken broken = receiver->broken;
    receiver->woken = receiver->whole = 0;
    receiver->since_ns = 0;
    pthread_mutex_unlock(&receiver->state);
    if (was_full) write_event(receiver->interrupt);
    reports_group(&receiver->reports, side, drained);
    drained->broken = broken;
}

void dp_receiver_set_patience(struct dp_receiver *receiver, int64_t patience_ns, uint32_t segments) {
    assert(receiver && patience_ns >= 0);
    pthread_mutex_lock(&receiver->state);
    receiver->patience_ns = patience_ns;
    receiver->patience_segments = segments;
    pthread_mutex_unlock(&receiver->state);
}

void dp_receiver_read_counts(struct dp_receiver *receiver, uint64_t *counts) {
    assert(receiver && counts);
    pthread_mutex_lock(&receiver->state);
    memcpy(counts, receiver->counts, sizeof receiver->counts);
    pthread_mutex_unlock(&receiver->state);
}

void dp_receiver_free(struct dp_receiver *receiver) {
    assert(receiver);
    if (receiver->started) {
        __atomic_store_n(&receiver->stop, 1, __ATOMIC_RELEASE);
        write_event(receiver->interrupt);
        pthread_join(receiver->thread, NULL);
    }
    expected_clear(&receiver->expected);
    pthread_mutex_destroy(&receiver->intake);
    pthread_mutex_destroy(&receiver->state);
    if (receiver->interrupt >= 0) close(receiver->interrupt);
    if (receiver->from) receiver->from->kind->free(receiver->from);
    free(receiver);
}
