/* Sends segments from the pool, in threads of its own. Each takes the next segments, in the order of the jobs, composes
 * them (batch.c) and hands them to the socket; where there are several threads, what two of them took together leaves in
 * any order.
 *
 * Locks are taken in this order: the `batch` of each thread, which guards its batch (to give up is to wait for the ends
 * of all); then `state`, which guards what they share. */
#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include "batch.h"
#include "datapath.h"
#include "pace.h"
#include "sendings.h"
#include "threads.h"

#define ENOUGH 256       /* outcomes to tell; half of what a holder hands over at most (kvproto.session.burst) */
#define AGAIN_NS 1000000 /* pause after a full device queue (ENOBUFS): no event says when it has room */

struct queued {
    struct sending sending; /* sent: handed to the socket */
    struct dp_job job;
    uint32_t taken; /* by threads; those behind wait */
};

/* Segments of a job that a thread has taken and that have not left to one of its groups. The parts of one job lie
 * together, in the order of the groups; segments have an outcome when they have left to the last. */
struct part {
    struct queued *of;
    uint32_t first, count;
    uint32_t most; /* of them by one buffer */
    uint32_t group;
};

struct caster {
    struct dp_sender *sender;
    pthread_t thread;
    int started;
    int interrupt; /* an eventfd */
    int idle;      /* it waits for somebody to write to it; guarded by `state` */

    pthread_mutex_t lock;
    int suspected; /* errno with which the kernel refused a buffer; its datagrams are tried one by one now */
    uint32_t parts_count;
    struct part parts[BATCH];
    struct batch batch;
};

struct dp_sender {
    int socket;
    int stop;
    uint32_t giving_up; /* callers that wait for the casters' locks */

    pthread_mutex_t state;
    struct sendings sendings;
    struct pace pace;
    int one_by_one; /* the kernel takes datagrams and no buffers */
    int refused;    /* errno with which it refused one; nobody was told yet */

    uint32_t casters_count;
    struct caster casters[];
};

/* ---- a batch ----------------------------------------------------------------------------------------------------- */

/* How many segments of this job may leave by one buffer. What a switch stores leaves one by one: its ICRC is that of
 * identification 0. */
static uint32_t segments_of_buffer(const struct dp_sender *sender, const struct dp_job *job) {
    if (job->prefix_bytes || sender->one_by_one) return 1;
    return pace_segments(&sender->pace, batch_datagram_bytes(job));
}

static struct caster *idle_caster(struct dp_sender *sender) {
    for (uint32_t i = 0; i < sender->casters_count; i++)
        if (sender->casters[i].idle) return &sender->casters[i];
    return NULL;
}

/* Wakes a thread that has nothing to do, if there is one. The caller holds `state`. */
static void wake_one(struct dp_sender *sender) {
    struct caster *idle = idle_caster(sender);
    if (!idle) return;
    idle->idle = 0;
    write_event(idle->interrupt);
}

/* Takes the segments that come next, of as many jobs as fit into a batch. The caller holds both locks, and keeps the
 * caster's until the batch is accounted for: so long the memory that the jobs point to stays as it is. */
static void take(struct caster *caster) {
    struct dp_sender *sender = caster->sender;
    uint32_t room = BATCH;
    for (struct sending *each = sender->sendings.first; each && room; each = each->next) {
        struct queued *queued = (struct queued *)each;
        uint32_t groups = queued->job.groups_count, fit = room / groups;
        uint32_t rest = each->count - queued->taken, count = rest < fit ? rest : fit;
        if (!rest) continue;
        if (!count) {
            room = 0;
            break;
        }
        uint32_t most = segments_of_buffer(sender, &queued->job);
        if (count < rest) {
            /* The batch is full. What would leave by a last buffer that is not full waits for the next batch. */
            if (count > most) count -= count % most;
            room = count * groups;
        }
        for (uint32_t group = 0; group < groups; group++)
            caster->parts[caster->parts_count++] =
                (struct part){queued, queued->job.first + queued->taken, count, most, group};
        queued->taken += count;
        room -= count * groups;
    }
    caster->idle = !caster->parts_count;
    if (!room) wake_one(sender);
    if (caster->idle) pace_idle(&sender->pace);
}

/* Records what became of segments of a part. The caller holds `state`. */
static void record(struct dp_sender *sender, struct part *part, uint32_t sent, uint32_t failed) {
    if (part->group + 1 == part->of->job.groups_count)
        sendings_record(&sender->sendings, &part->of->sending, sent, failed);
    part->first += sent + failed;
    part->count -= sent + failed;
}

/* Records that the socket took `sent` segments; if `broken`, the rest of the next one's job fails. The caller holds
 * both locks. */
static void account(struct caster *caster, uint32_t sent, int broken) {
    struct dp_sender *sender = caster->sender;
    uint32_t left = 0;
    for (uint32_t i = 0; i < caster->parts_count; i++) {
        struct part *part = &caster->parts[i];
        uint32_t of_part = part->count < sent ? part->count : sent;
        sent -= of_part;
        record(sender, part, of_part, 0);
        if (broken && part->count) {
            struct queued *queued = part->of;
            uint32_t untaken = queued->sending.count - queued->taken;
            queued->taken += untaken;
            for (uint32_t j = i; j < caster->parts_count && caster->parts[j].of == queued; j++)
                record(sender, &caster->parts[j], 0, caster->parts[j].count);
            sendings_record(&sender->sendings, &queued->sending, 0, untaken);
            broken = 0;
        }
        if (part->count) caster->parts[left++] = *part;
    }
    caster->parts_count = left;
    sendings_tell(&sender->sendings);
}

/* Composes the batch. It reads all payload, so nobody waits for it: the caller does not hold `state`. */
static void compose(struct caster *caster) {
    batch_clear(&caster->batch);
    for (uint32_t i = 0; i < caster->parts_count; i++) {
        const struct part *part = &caster->parts[i];
        int again = i && part->group && part[-1].of == part->of && part[-1].first == part->first;
        uint32_t most = caster->suspected ? 1 : part->most;
        batch_add(&caster->batch, &part->of->job, part->first, part->count, most, part->group, again);
    }
}

/* Whether the batch is to be tried again, one by one: the kernel refused a buffer. It does so where the NIC computes no
 * checksums, where a tunnel is in the way, where it is old. What refuses buffers only is remembered; what refuses
 * datagrams, too, is an error like any other. The caller holds both locks. */
static int refused(struct caster *caster, uint32_t taken, int error) {
    struct dp_sender *sender = caster->sender;
    if (error && caster->batch.buffers[0].segments > 1) {
        caster->suspected = error;
        return 1;
    }
    if (caster->suspected && taken && !sender->one_by_one) {
        sender->one_by_one = 1;
        sender->refused = caster->suspected;
    }
    caster->suspected = 0;
    return 0;
}

/* Sends one batch. Returns the errno when the socket took nothing of it, ENODATA when there is nothing to send, else
 * 0. */
static int send_batch(struct caster *caster) {
    struct dp_sender *sender = caster->sender;
    int error = ENODATA;
    pthread_mutex_lock(&caster->lock);
    if (!caster->parts_count) {
        pthread_mutex_lock(&sender->state);
        take(caster);
        pthread_mutex_unlock(&sender->state);
    }
    if (caster->parts_count) {
        compose(caster);
        int taken = sendmmsg(sender->socket, caster->batch.messages, caster->batch.count, MSG_DONTWAIT);
        error = taken < 0 ? errno : 0;
        uint32_t buffers = taken < 0 ? 0 : (uint32_t)taken, segments = batch_segments(&caster->batch, buffers);
        int full = error == EAGAIN || error == ENOBUFS || error == EINTR;
        pthread_mutex_lock(&sender->state);
        pace_sent(&sender->pace, batch_bytes(&caster->batch, buffers));
        if (error == EAGAIN) pace_full(&sender->pace, now_ns());
        if (full || !refused(caster, segments, error)) account(caster, segments, error && !full);
        pthread_mutex_unlock(&sender->state);
    }
    pthread_mutex_unlock(&caster->lock);
    return error;
}

/* ---- the threads ------------------------------------------------------------------------------------------------- */

static void wait_for(struct caster *caster, int socket_events, int64_t longest_ns) {
    struct pollfd files[2] = {{caster->interrupt, POLLIN, 0}, {caster->sender->socket, (short)socket_events, 0}};
    struct timespec longest = {0, longest_ns};
    ppoll(files, socket_events ? 2 : 1, longest_ns < 0 ? NULL : &longest, NULL);
    if (files[0].revents) {
        uint64_t count;
        (void)!read(caster->interrupt, &count, sizeof count);
    }
}

static void *run(void *argument) {
    struct caster *caster = argument;
    prctl(PR_SET_NAME, "kvcast-send");
    while (!__atomic_load_n(&caster->sender->stop, __ATOMIC_ACQUIRE)) {
        while (__atomic_load_n(&caster->sender->giving_up, __ATOMIC_ACQUIRE)) sched_yield();
        int error = send_batch(caster);
        if (error == ENODATA)
            wait_for(caster, 0, -1);
        else if (error == EAGAIN)
            wait_for(caster, POLLOUT, -1);
        else if (error == ENOBUFS)
            wait_for(caster, 0, AGAIN_NS);
    }
    return NULL;
}

/* ---- interface --------------------------------------------------------------------------------------------------- */

static int open_caster(struct dp_sender *sender, struct caster *caster) {
    caster->sender = sender;
    pthread_mutex_init(&caster->lock, NULL);
    caster->interrupt = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return caster->interrupt >= 0;
}

struct dp_sender *dp_sender_new(int socket, int wake, uint64_t rate_bytes_s, uint32_t threads) {
    assert(socket >= 0 && wake >= 0 && rate_bytes_s && threads);
    struct dp_sender *sender = calloc(1, sizeof *sender + threads * sizeof sender->casters[0]);
    if (!sender) return NULL;
    sender->socket = socket;
    pace_open(&sender->pace, rate_bytes_s);
    sendings_open(&sender->sendings, wake, ENOUGH);
    pthread_mutex_init(&sender->state, NULL);
    int open = 1;
    while (open && sender->casters_count < threads)
        open = open_caster(sender, &sender->casters[sender->casters_count++]);
    if (!open) {
        dp_sender_free(sender);
        return NULL;
    }
    return sender;
}

int dp_sender_start(struct dp_sender *sender) {
    assert(sender && !sender->casters[0].started);
    int error = 0;
    for (uint32_t i = 0; i < sender->casters_count && !error; i++) {
        struct caster *caster = &sender->casters[i];
        error = pthread_create(&caster->thread, NULL, run, caster);
        caster->started = !error;
    }
    return error;
}

int dp_sender_add(struct dp_sender *sender, const struct dp_job *job) {
    assert(sender && job && job->chunk && job->count);
    assert(job->segment_bytes && job->segment_bytes <= DP_SEGMENT_BYTES_MAX);
    assert((uint64_t)(job->first + job->count - 1) * job->segment_bytes < job->size_bytes);
    assert(job->prefix_bytes <= DP_PREFIX_BYTES_MAX);
    assert(job->groups_count && job->groups_count <= DP_GROUPS_MAX);
    assert(!job->prefix_bytes || job->prefix_segment + sizeof(uint32_t) <= job->prefix_bytes);
    struct queued *queued = calloc(1, sizeof *queued);
    if (!queued) return ENOMEM;
    queued->job = *job;
    queued->sending.id = job->id;
    queued->sending.count = job->count;
    pthread_mutex_lock(&sender->state);
    sendings_add(&sender->sendings, &queued->sending);
    wake_one(sender);
    pthread_mutex_unlock(&sender->state);
    return 0;
}

void dp_sender_give_up(struct dp_sender *sender) {
    assert(sender);
    __atomic_add_fetch(&sender->giving_up, 1, __ATOMIC_ACQ_REL);
    for (uint32_t i = 0; i < sender->casters_count; i++) pthread_mutex_lock(&sender->casters[i].lock);
    __atomic_sub_fetch(&sender->giving_up, 1, __ATOMIC_ACQ_REL);
    pthread_mutex_lock(&sender->state);
    for (struct sending *each = sender->sendings.first; each; each = each->next) {
        sendings_record(&sender->sendings, each, 0, sending_rest(each));
        ((struct queued *)each)->taken = each->count;
    }
    for (uint32_t i = 0; i < sender->casters_count; i++) sender->casters[i].parts_count = 0;
    pthread_mutex_unlock(&sender->state);
    for (uint32_t i = sender->casters_count; i-- > 0;) pthread_mutex_unlock(&sender->casters[i].lock);
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

static void end_caster(struct caster *caster) {
    if (caster->started) {
        write_event(caster->interrupt);
        pthread_join(caster->thread, NULL);
    }
    pthread_mutex_destroy(&caster->lock);
    if (caster->interrupt >= 0) close(caster->interrupt);
}

void dp_sender_free(struct dp_sender *sender) {
    assert(sender);
    __atomic_store_n(&sender->stop, 1, __ATOMIC_RELEASE);
    for (uint32_t i = 0; i < sender->casters_count; i++) end_caster(&sender->casters[i]);
    sendings_close(&sender->sendings);
    pthread_mutex_destroy(&sender->state);
    free(sender);
}
