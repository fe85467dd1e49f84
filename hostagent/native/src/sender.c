/* Sends segments from the pool, in a thread of its own. Headers come from a template, the thread computes the ICRC
 * while the payload passes through the cache, and the kernel gathers the parts. Jobs are sent in order.
 *
 * There are two locks, always taken in this order: `batch_lock` guards the batch (to give up is to wait for its end),
 * `state` guards the queue. */
#include <assert.h>
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
#include <time.h>
#include <unistd.h>

#include "crc32.h"
#include "datapath.h"
#include "sendings.h"
#include "threads.h"
#include "wire.h"

#define BATCH 64
#define PARTS 4          /* prefix and header, payload, padding, ICRC */
#define ENOUGH 256       /* outcomes to tell; half of what a holder hands over at most (kvproto.session.burst) */
#define AGAIN_NS 1000000 /* pause after a full device queue (ENOBUFS): no event says when it has room */

struct queued {
    struct sending sending; /* sent: handed to the socket */
    struct dp_job job;
};

struct outgoing {
    struct sockaddr_in to;
    struct iovec parts[PARTS];
    uint8_t head[DP_PREFIX_BYTES_MAX + DP_HEADER_BYTES];
    uint8_t icrc[DP_ICRC_BYTES];
};

/* Part of a job that goes into the next batch. */
struct part {
    const struct queued *of;
    uint32_t first, count; /* segments */
};

struct dp_sender {
    int socket, interrupt;
    pthread_t thread;
    int started;
    int stop;

    pthread_mutex_t state;
    struct sendings sendings;

    pthread_mutex_t batch_lock;
    uint32_t giving_up; /* callers that wait for `batch_lock` */
    struct part parts[BATCH];
    struct outgoing batch[BATCH];
    struct mmsghdr messages[BATCH];
};

static const uint8_t zeros[DP_SEGMENT_BYTES_MAX];

/* Composes one datagram. Returns how many parts it has. */
static int compose(struct outgoing *out, const struct dp_job *job, uint32_t segment) {
    uint64_t start = (uint64_t)segment * job->segment_bytes;
    uint64_t left = job->size_bytes - start;
    uint32_t bytes = left < job->segment_bytes ? (uint32_t)left : job->segment_bytes;
    uint8_t *header = out->head + job->prefix_bytes;

    memcpy(out->head, job->prefix, job->prefix_bytes);
    if (job->prefix_bytes) put32(out->head + job->prefix_segment, segment);
    memcpy(header, job->header, DP_HEADER_BYTES);
    put24(header + DP_BTH_PSN, segment & 0xFFFFFF);
    put32(header + DP_KV_SEGMENT, segment);
    put32(header + DP_KV_LENGTH, bytes);

    uint8_t masked[DP_HEADER_BYTES];
    memcpy(masked, header, DP_HEADER_BYTES);
    masked[DP_BTH_RESERVED] = 0xFF;
    uint32_t crc = dp_crc32(job->icrc_seed, masked, DP_HEADER_BYTES);
    crc = dp_crc32(crc, job->chunk + start, bytes);
    crc = dp_crc32(crc, zeros, job->segment_bytes - bytes);
    for (int i = 0; i < DP_ICRC_BYTES; i++) out->icrc[i] = (uint8_t)(crc >> 8 * i);

    out->to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(job->port)};
    out->to.sin_addr.s_addr = htonl(job->address);
    int parts = 0;
    out->parts[parts++] = (struct iovec){out->head, job->prefix_bytes + DP_HEADER_BYTES};
    out->parts[parts++] = (struct iovec){(uint8_t *)job->chunk + start, bytes};
    if (bytes < job->segment_bytes) out->parts[parts++] = (struct iovec){(uint8_t *)zeros, job->segment_bytes - bytes};
    out->parts[parts++] = (struct iovec){out->icrc, DP_ICRC_BYTES};
    return parts;
}

/* Notes which segments come next, of as many jobs as fit into a batch; returns of how many jobs. The caller holds
 * `state`, and keeps `batch_lock` until the batch is accounted for: so long the jobs stay in the queue, and the memory
 * that they point to stays as it is. */
static uint32_t choose_batch(struct dp_sender *sender) {
    uint32_t jobs = 0, room = BATCH;
    for (const struct sending *each = sender->sendings.first; each && room; each = each->next) {
        const struct queued *queued = (const struct queued *)each;
        uint32_t rest = sending_rest(each), count = rest < room ? rest : room;
        if (!count) continue;
        sender->parts[jobs++] = (struct part){queued, queued->job.first + each->sent, count};
        room -= count;
    }
    return jobs;
}

/* Composes the datagrams of these jobs' parts; returns how many. It reads all payload, so nobody waits for it: the
 * caller does not hold `state`. */
static uint32_t compose_batch(struct dp_sender *sender, uint32_t jobs) {
    uint32_t count = 0;
    for (uint32_t i = 0; i < jobs; i++) {
        const struct part *part = &sender->parts[i];
        for (uint32_t at = 0; at < part->count; at++, count++) {
            int parts = compose(&sender->batch[count], &part->of->job, part->first + at);
            sender->messages[count].msg_hdr = (struct msghdr){
                .msg_name = &sender->batch[count].to,
                .msg_namelen = sizeof sender->batch[count].to,
                .msg_iov = sender->batch[count].parts,
                .msg_iovlen = (size_t)parts,
            };
        }
    }
    return count;
}

/* Records that the socket took `sent` datagrams; if `broken`, the rest of the next one's job fails. The caller holds
 * `state`. */
static void account(struct dp_sender *sender, uint32_t sent, int broken) {
    struct sendings *sendings = &sender->sendings;
    for (struct sending *each = sendings->first; each; each = each->next) {
        uint32_t rest = sending_rest(each), part = rest < sent ? rest : sent;
        if (!rest) continue;
        sendings_record(sendings, each, part, 0);
        sent -= part;
        if (!sent && part < rest) {
            if (broken) sendings_record(sendings, each, 0, sending_rest(each));
            break;
        }
        if (!sent && !broken) break;
    }
    sendings_tell(sendings);
}

static void wait_for(struct dp_sender *sender, int socket_events, int64_t longest_ns) {
    struct pollfd files[2] = {{sender->interrupt, POLLIN, 0}, {sender->socket, (short)socket_events, 0}};
    struct timespec longest = {0, longest_ns};
    ppoll(files, socket_events ? 2 : 1, longest_ns < 0 ? NULL : &longest, NULL);
    if (files[0].revents) {
        uint64_t count;
        (void)!read(sender->interrupt, &count, sizeof count);
    }
}

/* Sends one batch of `*count` datagrams. Returns the errno when the socket took none of them, else 0. */
static int send_batch(struct dp_sender *sender, uint32_t *count) {
    int taken = 0, error = 0;
    pthread_mutex_lock(&sender->batch_lock);
    pthread_mutex_lock(&sender->state);
    uint32_t jobs = choose_batch(sender);
    pthread_mutex_unlock(&sender->state);
    *count = compose_batch(sender, jobs);
    if (*count) {
        taken = sendmmsg(sender->socket, sender->messages, *count, MSG_DONTWAIT);
        error = taken < 0 ? errno : 0;
        int full = error == EAGAIN || error == ENOBUFS || error == EINTR;
        pthread_mutex_lock(&sender->state);
        account(sender, taken > 0 ? (uint32_t)taken : 0, error && !full);
        pthread_mutex_unlock(&sender->state);
    }
    pthread_mutex_unlock(&sender->batch_lock);
    return error;
}

static void *run(void *argument) {
    struct dp_sender *sender = argument;
    prctl(PR_SET_NAME, "kvcast-send");
    while (!__atomic_load_n(&sender->stop, __ATOMIC_ACQUIRE)) {
        while (__atomic_load_n(&sender->giving_up, __ATOMIC_ACQUIRE)) sched_yield();
        uint32_t count;
        int error = send_batch(sender, &count);
        if (!count)
            wait_for(sender, 0, -1);
        else if (error == EAGAIN)
            wait_for(sender, POLLOUT, -1);
        else if (error == ENOBUFS)
            wait_for(sender, 0, AGAIN_NS);
    }
    return NULL;
}

/* ---- interface --------------------------------------------------------------------------------------------------- */

struct dp_sender *dp_sender_new(int socket, int wake) {
    assert(socket >= 0 && wake >= 0);
    struct dp_sender *sender = calloc(1, sizeof *sender);
    if (!sender) return NULL;
    sender->socket = socket;
    sendings_open(&sender->sendings, wake, ENOUGH);
    pthread_mutex_init(&sender->batch_lock, NULL);
    pthread_mutex_init(&sender->state, NULL);
    sender->interrupt = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (sender->interrupt < 0) {
        dp_sender_free(sender);
        return NULL;
    }
    return sender;
}

int dp_sender_start(struct dp_sender *sender) {
    assert(sender && !sender->started);
    int error = pthread_create(&sender->thread, NULL, run, sender);
    sender->started = !error;
    return error;
}

int dp_sender_add(struct dp_sender *sender, const struct dp_job *job) {
    assert(sender && job && job->chunk && job->count);
    assert(job->segment_bytes && job->segment_bytes <= DP_SEGMENT_BYTES_MAX);
    assert((uint64_t)(job->first + job->count - 1) * job->segment_bytes < job->size_bytes);
    assert(job->prefix_bytes <= DP_PREFIX_BYTES_MAX);
    assert(!job->prefix_bytes || job->prefix_segment + sizeof(uint32_t) <= job->prefix_bytes);
    struct queued *queued = calloc(1, sizeof *queued);
    if (!queued) return ENOMEM;
    queued->job = *job;
    queued->sending.id = job->id;
    queued->sending.count = job->count;
    pthread_mutex_lock(&sender->state);
    int was_idle = sendings_add(&sender->sendings, &queued->sending);
    pthread_mutex_unlock(&sender->state);
    if (was_idle) write_event(sender->interrupt);
    return 0;
}

void dp_sender_give_up(struct dp_sender *sender) {
    assert(sender);
    __atomic_add_fetch(&sender->giving_up, 1, __ATOMIC_ACQ_REL);
    pthread_mutex_lock(&sender->batch_lock);
    __atomic_sub_fetch(&sender->giving_up, 1, __ATOMIC_ACQ_REL);
    pthread_mutex_lock(&sender->state);
    for (struct sending *each = sender->sendings.first; each; each = each->next)
        sendings_record(&sender->sendings, each, 0, sending_rest(each));
    pthread_mutex_unlock(&sender->state);
    pthread_mutex_unlock(&sender->batch_lock);
}

uint32_t dp_sender_drain(struct dp_sender *sender, struct dp_outcome *outcomes, uint32_t room) {
    assert(sender && outcomes && room);
    pthread_mutex_lock(&sender->state);
    uint32_t count = sendings_drain(&sender->sendings, outcomes, room);
    pthread_mutex_unlock(&sender->state);
    return count;
}

void dp_sender_free(struct dp_sender *sender) {
    assert(sender);
    if (sender->started) {
        __atomic_store_n(&sender->stop, 1, __ATOMIC_RELEASE);
        write_event(sender->interrupt);
        pthread_join(sender->thread, NULL);
    }
    sendings_close(&sender->sendings);
    pthread_mutex_destroy(&sender->batch_lock);
    pthread_mutex_destroy(&sender->state);
    if (sender->interrupt >= 0) close(sender->interrupt);
    free(sender);
}
