/* Takes datagrams from the group's socket into the pool, in a thread of its own.
 *
 * There are two locks, always taken in this order. Whoever receives holds `intake`: the thread, or a caller that drains
 * the socket. `state` guards what both sides share. Chunks are written under `state` only, so nothing writes to a chunk
 * that was forgotten. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <netinet/in.h>
#include <unistd.h>

#include "datapath.h"
#include "expected.h"
#include "reports.h"
#include "threads.h"
#include "wire.h"

#define BATCH 64            /* datagrams taken by one call */
#define BATCHES_MAX 8       /* calls in a row before a caller that drains gets its turn */
#define NAP_SEGMENTS 32     /* a nap lasts until at most this many should have arrived */
#define NAP_NS_MIN 20000    /* a shorter nap costs more than waiting for the socket */
#define RATE_NS_MAX 10000000 /* older arrivals say nothing about the present rate */
#define CONTROL_BYTES 64

struct intake_row {
    struct sockaddr_in from;
    uint8_t control[CONTROL_BYTES] __attribute__((aligned(8)));
    struct iovec piece;
    uint8_t *bytes;
    uint32_t length;
    int from_switch;
    enum dp_count verdict;
};

struct dp_receiver {
    int socket, wake, interrupt;
    uint32_t own, from_switch_dscp;
    uint32_t row_bytes;

    pthread_mutex_t intake;
    uint32_t looking; /* callers that wait for `intake` */
    struct wire wire;
    struct intake_row rows[BATCH];
    struct mmsghdr messages[BATCH];
    uint32_t overflows; /* the kernel's last count */
    uint8_t *memory;

    pthread_mutex_t state;
    struct expected_table expected;
    struct reports reports;
    uint64_t counts[DP_COUNTS];
    int64_t since_ns;       /* arrival of the oldest segment that waits to be drained, 0: none waits */
    int woken;              /* nobody has drained since `wake` was written */
    int whole;              /* a chunk became whole since the last drain */
    uint32_t left_min;      /* the least number of segments that a chunk of the last round still lacks */
    int64_t patience_ns;
    uint32_t patience_segments;

    pthread_t thread;
    int started;
    int stop;
    int64_t measured_ns; /* when counting `measured` began */
    uint32_t measured;
    double rate; /* segments per nanosecond */
};

/* ---- one batch from the socket ----------------------------------------------------------------------------------- */

static void read_control(struct dp_receiver *receiver, struct intake_row *row, struct msghdr *header)
{
    uint8_t tos = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
        if (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_TOS)
            tos = *CMSG_DATA(part);
        else if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SO_RXQ_OVFL)
            memcpy(&receiver->overflows, CMSG_DATA(part), sizeof receiver->overflows);
    }
    row->from_switch = (uint32_t)(tos >> 2) == receiver->from_switch_dscp;
}

/* The caller holds `intake`. Returns how many datagrams lie in the rows. */
static uint32_t receive(struct dp_receiver *receiver)
{
    for (int i = 0; i < BATCH; i++) {
        struct msghdr *header = &receiver->messages[i].msg_hdr;
        header->msg_namelen = sizeof receiver->rows[i].from;
        header->msg_controllen = CONTROL_BYTES;
    }
    int taken = recvmmsg(receiver->socket, receiver->messages, BATCH, MSG_DONTWAIT, NULL);
    /* An error is one of an earlier send (ICMP) or of a full system; either way there is nothing to take now. */
    return taken > 0 ? (uint32_t)taken : 0;
}

/* Checks every row. The caller holds `intake`, not `state`. */
static void judge(struct dp_receiver *receiver, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        struct intake_row *row = &receiver->rows[i];
        struct msghdr *header = &receiver->messages[i].msg_hdr;
        uint32_t source = ntohl(row->from.sin_addr.s_addr);
        read_control(receiver, row, header);
        row->length = header->msg_flags & MSG_TRUNC ? 0 : receiver->messages[i].msg_len;
        /* What this node filled into the switch comes back with its own address; its own casts do not. */
        if (source == receiver->own && !row->from_switch)
            row->verdict = DP_OWN;
        else
            row->verdict = wire_check(&receiver->wire, row->bytes, row->length, source, ntohs(row->from.sin_port));
    }
}

/* Writes a good row to its chunk and reports it. The caller holds both locks. */
static void place_row(struct dp_receiver *receiver, const struct intake_row *row)
{
    const uint8_t *key = row->bytes + DP_KV_KEY;
    uint32_t segment = get32(row->bytes + DP_KV_SEGMENT), segments = get32(row->bytes + DP_KV_SEGMENTS);
    uint32_t source = ntohl(row->from.sin_addr.s_addr);
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
        if (chunk->left < receiver->left_min)
            receiver->left_min = chunk->left;
    }
    reports_add(&receiver->reports, key, chunk ? chunk->ticket : 0, segments, source, segment, row->from_switch);
}

/* The caller holds `intake`. Returns how many datagrams were taken. */
static uint32_t take_batch(struct dp_receiver *receiver)
{
    pthread_mutex_lock(&receiver->state);
    int room = reports_have_room(&receiver->reports, BATCH);
    pthread_mutex_unlock(&receiver->state);
    uint32_t count = room ? receive(receiver) : 0;
    if (!count)
        return 0;

    uint32_t lost_before = receiver->overflows;
    judge(receiver, count);

    pthread_mutex_lock(&receiver->state);
    receiver->counts[DP_OVERFLOWS] += (uint32_t)(receiver->overflows - lost_before);
    if (!receiver->since_ns)
        receiver->since_ns = now_ns();
    receiver->counts[DP_LOOKS]++;
    for (uint32_t i = 0; i < count; i++) {
        const struct intake_row *row = &receiver->rows[i];
        receiver->counts[row->verdict]++;
        if (row->verdict == DP_RECEIVED)
            place_row(receiver, row);
    }
    pthread_mutex_unlock(&receiver->state);
    return count;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static void measure(struct dp_receiver *receiver, uint32_t taken, int64_t at_ns)
{
    int64_t span = at_ns - receiver->measured_ns;
    receiver->measured += taken;
    if (span < 1000000 && receiver->measured < 2 * NAP_SEGMENTS)
        return;
    double rate = span > 0 ? (double)receiver->measured / (double)span : 0;
    receiver->rate = span > RATE_NS_MAX ? 0 : (receiver->rate + rate) / 2;
    receiver->measured = 0;
    receiver->measured_ns = at_ns;
}

/* After a round that took `taken` datagrams: wakes the caller's side if it should drain. Returns how long the next
 * round may wait; -1: until the socket has something. */
static int64_t decide(struct dp_receiver *receiver, uint32_t taken, int64_t at_ns)
{
    int64_t wait_ns = -1;
    pthread_mutex_lock(&receiver->state);
    if (receiver->since_ns && !receiver->woken) {
        int64_t due_ns = receiver->since_ns + receiver->patience_ns;
        int full = reports_waiting(&receiver->reports) >= receiver->patience_segments
                || !reports_have_room(&receiver->reports, BATCH);
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

/* How long to sleep even if datagrams arrive; 0: wait for the socket instead. A wake-up costs as much as several
 * segments, so under load several should arrive for each. */
static int64_t nap_ns(struct dp_receiver *receiver, uint32_t taken)
{
    pthread_mutex_lock(&receiver->state);
    double longest = (double)receiver->patience_ns / 4;
    double wanted = receiver->left_min < NAP_SEGMENTS ? receiver->left_min : NAP_SEGMENTS;
    receiver->left_min = UINT32_MAX;
    pthread_mutex_unlock(&receiver->state);
    if (!taken || receiver->rate * longest < 2)
        return 0;
    double nap = wanted / receiver->rate;
    if (nap > longest)
        nap = longest;
    return nap < NAP_NS_MIN ? 0 : (int64_t)nap;
}

static void sleep_until(struct dp_receiver *receiver, int64_t longest_ns, int wait_for_socket)
{
    struct pollfd files[2] = {{receiver->interrupt, POLLIN, 0}, {receiver->socket, POLLIN, 0}};
    struct timespec longest = {longest_ns / 1000000000, longest_ns % 1000000000};
    ppoll(files, wait_for_socket ? 2 : 1, longest_ns < 0 ? NULL : &longest, NULL);
    if (files[0].revents) {
        uint64_t count;
        (void)!read(receiver->interrupt, &count, sizeof count);
    }
}

static int is_full(struct dp_receiver *receiver)
{
    pthread_mutex_lock(&receiver->state);
    int full = !reports_have_room(&receiver->reports, BATCH);
    pthread_mutex_unlock(&receiver->state);
    return full;
}

static void *run(void *argument)
{
    struct dp_receiver *receiver = argument;
    prctl(PR_SET_NAME, "kvcast-receive");
    prctl(PR_SET_TIMERSLACK, 1000);
    while (!__atomic_load_n(&receiver->stop, __ATOMIC_ACQUIRE)) {
        while (__atomic_load_n(&receiver->looking, __ATOMIC_ACQUIRE))
            sched_yield();
        uint32_t taken = 0, last = BATCH;
        pthread_mutex_lock(&receiver->intake);
        for (int i = 0; i < BATCHES_MAX && last == BATCH; i++)
            taken += last = take_batch(receiver);
        pthread_mutex_unlock(&receiver->intake);
        int64_t at_ns = now_ns();
        measure(receiver, taken, at_ns);
        int64_t wait_ns = decide(receiver, taken, at_ns);
        if (last == BATCH)
            continue;
        int64_t nap = nap_ns(receiver, taken);
        if (is_full(receiver))
            sleep_until(receiver, -1, 0); /* until the caller has drained */
        else if (nap)
            sleep_until(receiver, wait_ns >= 0 && wait_ns < nap ? wait_ns : nap, 0);
        else
            sleep_until(receiver, wait_ns, 1);
    }
    return NULL;
}

/* ---- interface --------------------------------------------------------------------------------------------------- */

struct dp_receiver *dp_receiver_new(const struct dp_receiver_config *config)
{
    struct dp_receiver *receiver = calloc(1, sizeof *receiver);
    if (!receiver)
        return NULL;
    receiver->socket = config->socket;
    receiver->wake = config->wake;
    receiver->own = config->own;
    receiver->from_switch_dscp = config->from_switch_dscp;
    receiver->wire.qkey = config->qkey;
    receiver->wire.source_qpn = config->source_qpn;
    receiver->wire.segment_bytes = config->segment_bytes;
    memcpy(receiver->wire.identification, config->identification, sizeof config->identification);
    memcpy(receiver->wire.masked, config->masked, sizeof config->masked);
    receiver->wire.seed_source = ~config->own;
    receiver->patience_ns = 1000000;
    receiver->patience_segments = BATCH;
    receiver->left_min = UINT32_MAX;
    pthread_mutex_init(&receiver->intake, NULL);
    pthread_mutex_init(&receiver->state, NULL);
    /* A byte more than a datagram, so that a longer one shows; rows begin on cache lines. */
    receiver->row_bytes = (wire_datagram_bytes(&receiver->wire) + 1 + 63) / 64 * 64;
    receiver->interrupt = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    receiver->memory = aligned_alloc(64, (size_t)BATCH * receiver->row_bytes);
    if (receiver->interrupt < 0 || !receiver->memory) {
        dp_receiver_free(receiver);
        return NULL;
    }
    memset(receiver->memory, 0, (size_t)BATCH * receiver->row_bytes);
    for (int i = 0; i < BATCH; i++) {
        struct intake_row *row = &receiver->rows[i];
        struct msghdr *header = &receiver->messages[i].msg_hdr;
        row->bytes = receiver->memory + (size_t)i * receiver->row_bytes;
        row->piece = (struct iovec){row->bytes, receiver->row_bytes};
        header->msg_name = &row->from;
        header->msg_iov = &row->piece;
        header->msg_iovlen = 1;
        header->msg_control = row->control;
    }
    return receiver;
}

int dp_receiver_start(struct dp_receiver *receiver)
{
    int error = pthread_create(&receiver->thread, NULL, run, receiver);
    receiver->started = !error;
    return error;
}

uint64_t dp_receiver_expect(
    struct dp_receiver *receiver, const uint8_t *key, uint8_t *place, uint64_t size_bytes, const uint8_t *missing)
{
    pthread_mutex_lock(&receiver->state);
    struct expected *chunk = expected_add(
        &receiver->expected, key, place, size_bytes, receiver->wire.segment_bytes, missing);
    uint64_t ticket = chunk ? chunk->ticket : 0;
    pthread_mutex_unlock(&receiver->state);
    return ticket;
}

void dp_receiver_forget(struct dp_receiver *receiver, uint64_t ticket)
{
    pthread_mutex_lock(&receiver->state);
    expected_remove(&receiver->expected, ticket);
    pthread_mutex_unlock(&receiver->state);
}

void dp_receiver_settle(struct dp_receiver *receiver)
{
    /* Segments are written under `state`: whoever looked at `missing` before has written by now. */
    pthread_mutex_lock(&receiver->state);
    pthread_mutex_unlock(&receiver->state);
}

void dp_receiver_drain_socket(struct dp_receiver *receiver)
{
    __atomic_add_fetch(&receiver->looking, 1, __ATOMIC_ACQ_REL);
    pthread_mutex_lock(&receiver->intake);
    __atomic_sub_fetch(&receiver->looking, 1, __ATOMIC_ACQ_REL);
    /* Ends at the latest when there is no more room for reports. */
    while (take_batch(receiver) == BATCH)
        ;
    pthread_mutex_unlock(&receiver->intake);
}

void dp_receiver_drain(struct dp_receiver *receiver, struct dp_drained *drained)
{
    uint64_t count;
    pthread_mutex_lock(&receiver->state);
    if (receiver->woken)
        (void)!read(receiver->wake, &count, sizeof count);
    int was_full = !reports_have_room(&receiver->reports, BATCH);
    struct report_side *side = reports_swap(&receiver->reports);
    receiver->woken = receiver->whole = 0;
    receiver->since_ns = 0;
    pthread_mutex_unlock(&receiver->state);
    if (was_full)
        write_event(receiver->interrupt);
    reports_group(&receiver->reports, side, drained);
}

void dp_receiver_set_patience(struct dp_receiver *receiver, int64_t patience_ns, uint32_t segments)
{
    pthread_mutex_lock(&receiver->state);
    receiver->patience_ns = patience_ns;
    receiver->patience_segments = segments;
    pthread_mutex_unlock(&receiver->state);
}

void dp_receiver_read_counts(struct dp_receiver *receiver, uint64_t *counts)
{
    pthread_mutex_lock(&receiver->state);
    memcpy(counts, receiver->counts, sizeof receiver->counts);
    pthread_mutex_unlock(&receiver->state);
}

void dp_receiver_free(struct dp_receiver *receiver)
{
    if (receiver->started) {
        __atomic_store_n(&receiver->stop, 1, __ATOMIC_RELEASE);
        write_event(receiver->interrupt);
        pthread_join(receiver->thread, NULL);
    }
    expected_clear(&receiver->expected);
    pthread_mutex_destroy(&receiver->intake);
    pthread_mutex_destroy(&receiver->state);
    if (receiver->interrupt >= 0)
        close(receiver->interrupt);
    free(receiver->memory);
    free(receiver);
}
