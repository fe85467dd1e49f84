/* Sends segments from the pool, in a thread of its own. Headers come from a template, the thread computes the ICRC
 * while the payload passes through the cache, and the kernel gathers the parts. Jobs are sent in order.
 *
 * Consecutive segments of a job leave by one buffer, which the kernel or the NIC cuts into datagrams (UDP_SEGMENT): a
 * way through the kernel costs about as much as ten segments. The kernel numbers the IP identifications within a
 * buffer, from 0, and the ICRC covers them.
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
#include <netinet/udp.h>
#include <time.h>
#include <unistd.h>

#include "crc32.h"
#include "datapath.h"
#include "pace.h"
#include "sendings.h"
#include "threads.h"
#include "wire.h"

#define BATCH 64         /* datagrams */
#define PARTS 5          /* of a datagram at most: prefix, header, payload, padding, ICRC */
#define ENOUGH 256       /* outcomes to tell; half of what a holder hands over at most (kvproto.session.burst) */
#define AGAIN_NS 1000000 /* pause after a full device queue (ENOBUFS): no event says when it has room */

struct queued {
    struct sending sending; /* sent: handed to the socket */
    struct dp_job job;
};

/* What is a datagram's own. In an array of them the ICRC of one lies before the header of the next, as in a buffer with
 * both, so that the kernel gathers the two as one part. */
struct outgoing {
    uint8_t header[DP_HEADER_BYTES];
    uint8_t icrc[DP_ICRC_BYTES];
};

/* What the kernel takes by one call: one datagram or several. */
struct buffer {
    struct sockaddr_in to;
    uint32_t segments;
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(sizeof(uint16_t))];
    } control;
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
    int refused; /* errno with which the kernel refused a buffer though it took its datagrams; nobody was told yet */

    pthread_mutex_t batch_lock;
    uint32_t giving_up; /* callers that wait for `batch_lock` */
    struct pace pace;
    enum { BY_BUFFERS, ONE_BY_ONE_ONCE, ONE_BY_ONE } way;
    int suspected; /* errno with which the kernel refused a buffer; whether it takes its datagrams is not known yet */
    struct part parts[BATCH];
    struct outgoing batch[BATCH];
    uint8_t prefixes[BATCH][DP_PREFIX_BYTES_MAX];
    struct iovec pieces[BATCH * PARTS];
    struct buffer buffers[BATCH];
    struct mmsghdr messages[BATCH]; /* one a buffer */
};

static const uint8_t zeros[DP_SEGMENT_BYTES_MAX];

/* ---- composing --------------------------------------------------------------------------------------------------- */

static uint32_t datagram_bytes(const struct dp_job *job) {
    return job->prefix_bytes + DP_HEADER_BYTES + job->segment_bytes + DP_ICRC_BYTES;
}

/* How many segments of this job may leave by one buffer. What a switch stores leaves one by one: its ICRC is that of
 * identification 0. */
static uint32_t segments_of_buffer(const struct dp_sender *sender, const struct dp_job *job) {
    if (job->prefix_bytes || sender->way != BY_BUFFERS) return 1;
    return pace_segments(&sender->pace, datagram_bytes(job));
}

static uint32_t payload_bytes(const struct dp_job *job, uint32_t segment) {
    uint64_t left = job->size_bytes - (uint64_t)segment * job->segment_bytes;
    return left < job->segment_bytes ? (uint32_t)left : job->segment_bytes;
}

/* `place`: in the buffer, of `count` segments. Its IP header gets that for an identification, or whatever the NIC that
 * cuts the buffer prefers: the source QPN tells readers so. */
static void frame(struct outgoing *out, const struct dp_job *job, uint32_t segment, uint32_t place, uint32_t count) {
    const uint8_t *payload = job->chunk + (uint64_t)segment * job->segment_bytes;
    uint32_t bytes = payload_bytes(job, segment);
    memcpy(out->header, job->header, DP_HEADER_BYTES);
    if (count > 1) put24(out->header + DP_DETH_SOURCE_QPN, DP_QPN_NUMBERED);
    put24(out->header + DP_BTH_PSN, segment & 0xFFFFFF);
    put32(out->header + DP_KV_SEGMENT, segment);
    put32(out->header + DP_KV_LENGTH, bytes);

    uint8_t masked[DP_HEADER_BYTES];
    memcpy(masked, out->header, DP_HEADER_BYTES);
    masked[DP_BTH_RESERVED] = 0xFF;
    uint32_t crc = dp_crc32(job->icrc_seed ^ wire_seed_difference((uint16_t)place), masked, DP_HEADER_BYTES);
    crc = dp_crc32(crc, payload, bytes);
    crc = dp_crc32(crc, zeros, job->segment_bytes - bytes);
    for (int i = 0; i < DP_ICRC_BYTES; i++) out->icrc[i] = (uint8_t)(crc >> 8 * i);
}

/* Has the kernel cut the message into datagrams of this size. */
static void ask_segments(struct msghdr *message, struct buffer *buffer, uint32_t bytes) {
    uint16_t size = (uint16_t)bytes;
    message->msg_control = buffer->control.bytes;
    message->msg_controllen = sizeof buffer->control.bytes;
    struct cmsghdr *part = CMSG_FIRSTHDR(message);
    part->cmsg_level = IPPROTO_UDP;
    part->cmsg_type = UDP_SEGMENT;
    part->cmsg_len = CMSG_LEN(sizeof size);
    memcpy(CMSG_DATA(part), &size, sizeof size);
}

/* Composes buffer `index` with `count` segments of a job, whose own bytes begin at `out` and whose parts at `pieces`.
 * Returns how many parts it has. */
static uint32_t compose(struct dp_sender *sender, uint32_t index, const struct dp_job *job, uint32_t segment,
                        uint32_t count, struct outgoing *out, struct iovec *pieces) {
    struct iovec *next = pieces;
    if (job->prefix_bytes) {
        uint8_t *prefix = sender->prefixes[index];
        memcpy(prefix, job->prefix, job->prefix_bytes);
        put32(prefix + job->prefix_segment, segment);
        *next++ = (struct iovec){prefix, job->prefix_bytes};
    }
    *next++ = (struct iovec){out->header, DP_HEADER_BYTES};
    for (uint32_t i = 0; i < count; i++, segment++) {
        frame(&out[i], job, segment, i, count);
        uint32_t bytes = payload_bytes(job, segment), padding = job->segment_bytes - bytes;
        *next++ = (struct iovec){(uint8_t *)job->chunk + (uint64_t)segment * job->segment_bytes, bytes};
        if (padding) *next++ = (struct iovec){(uint8_t *)zeros, padding};
        *next++ = (struct iovec){out[i].icrc, i + 1 < count ? sizeof *out : DP_ICRC_BYTES};
    }
    struct buffer *buffer = &sender->buffers[index];
    struct msghdr *message = &sender->messages[index].msg_hdr;
    buffer->to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(job->port)};
    buffer->to.sin_addr.s_addr = htonl(job->address);
    buffer->segments = count;
    *message = (struct msghdr){
        .msg_name = &buffer->to,
        .msg_namelen = sizeof buffer->to,
        .msg_iov = pieces,
        .msg_iovlen = (size_t)(next - pieces),
    };
    if (count > 1) ask_segments(message, buffer, datagram_bytes(job));
    return (uint32_t)(next - pieces);
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
        uint32_t most = segments_of_buffer(sender, &queued->job);
        if (count < rest && count > most) count -= count % most; /* what would leave by a buffer that is not full waits */
        sender->parts[jobs++] = (struct part){queued, queued->job.first + each->sent, count};
        room -= count;
    }
    return jobs;
}

/* Composes buffers with these jobs' parts; returns how many. It reads all payload, so nobody waits for it: the caller
 * does not hold `state`. */
static uint32_t compose_batch(struct dp_sender *sender, uint32_t jobs) {
    uint32_t buffers = 0, datagrams = 0, pieces = 0;
    for (uint32_t i = 0; i < jobs; i++) {
        const struct part *part = &sender->parts[i];
        const struct dp_job *job = &part->of->job;
        uint32_t most = segments_of_buffer(sender, job);
        for (uint32_t at = 0; at < part->count;) {
            uint32_t count = part->count - at < most ? part->count - at : most;
            pieces += compose(sender, buffers++, job, part->first + at, count, &sender->batch[datagrams],
                              &sender->pieces[pieces]);
            datagrams += count;
            at += count;
        }
    }
    return buffers;
}

/* ---- sending ----------------------------------------------------------------------------------------------------- */

/* Records that the socket took `sent` segments; if `broken`, the rest of the next one's job fails. The caller holds
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

/* Whether a batch is to be tried again, one by one: the kernel refused a buffer. It does so where the NIC computes no
 * checksums, where a tunnel is in the way, where it is old. What refuses buffers only is remembered; what refuses
 * datagrams, too, is an error like any other. The caller holds `batch_lock`. */
static int buffers_refused(struct dp_sender *sender, uint32_t taken, int error) {
    if (error && sender->buffers[0].segments > 1) {
        sender->suspected = error;
        sender->way = ONE_BY_ONE_ONCE;
        return 1;
    }
    if (sender->way == ONE_BY_ONE_ONCE) {
        sender->way = taken ? ONE_BY_ONE : BY_BUFFERS;
        pthread_mutex_lock(&sender->state);
        sender->refused = taken ? sender->suspected : 0;
        pthread_mutex_unlock(&sender->state);
    }
    return 0;
}

static uint32_t segments_taken(const struct dp_sender *sender, int buffers) {
    uint32_t segments = 0;
    for (int i = 0; i < buffers; i++) segments += sender->buffers[i].segments;
    return segments;
}

static uint64_t bytes_taken(const struct dp_sender *sender, int buffers) {
    uint64_t bytes = 0;
    for (int i = 0; i < buffers; i++) bytes += sender->messages[i].msg_len;
    return bytes;
}

/* Sends one batch of `*count` buffers. Returns the errno when the socket took none of them, else 0. */
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
        uint32_t segments = segments_taken(sender, taken);
        pace_sent(&sender->pace, bytes_taken(sender, taken));
        if (full || !buffers_refused(sender, segments, error)) {
            pthread_mutex_lock(&sender->state);
            account(sender, segments, error && !full);
            pthread_mutex_unlock(&sender->state);
        }
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
        if (!count) {
            pace_idle(&sender->pace);
            wait_for(sender, 0, -1);
        } else if (error == EAGAIN) {
            pace_full(&sender->pace, now_ns());
            wait_for(sender, POLLOUT, -1);
        } else if (error == ENOBUFS) {
            wait_for(sender, 0, AGAIN_NS);
        }
    }
    return NULL;
}

/* ---- interface --------------------------------------------------------------------------------------------------- */

struct dp_sender *dp_sender_new(int socket, int wake, uint64_t rate_bytes_s) {
    assert(socket >= 0 && wake >= 0 && rate_bytes_s);
    struct dp_sender *sender = calloc(1, sizeof *sender);
    if (!sender) return NULL;
    sender->socket = socket;
    pace_open(&sender->pace, rate_bytes_s);
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
    if (count) {
        outcomes[0].refused = (uint32_t)sender->refused;
        sender->refused = 0;
    }
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
