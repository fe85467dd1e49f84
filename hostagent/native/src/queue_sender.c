/* Sends runs of prepared work requests through a queue pair, in a thread of its own and in order: as many as fit the
 * queue, a call and a completion for many. What was in the queue of a pair that breaks has failed.
 *
 * There are two locks, always taken in this order: `queue_lock` guards the queue pair and what is in it, `state` what
 * the caller's side shares. */
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

#include "completions.h"
#include "datapath.h"
#include "sendings.h"
#include "threads.h"

#define POLLED_MAX 64 /* completions taken by one call */
#define ENOUGH 32     /* outcomes to tell: less than one completion's */

struct queued {
    struct sending sending; /* sent: the NIC has confirmed it */
    struct dp_chain chain;
    uint32_t posted; /* handed to the NIC, or never will be */
};

/* What one call has posted. */
struct run {
    struct queued *of;
    uint32_t count;
};

struct dp_queue_sender {
    int interrupt;
    pthread_t thread;
    int started;
    int stop;

    pthread_mutex_t queue_lock;
    uint32_t asking; /* callers that wait for `queue_lock` */
    struct dp_send_queue queue;
    struct completions completions;
    struct run *runs;              /* a ring of `depth`: the contents of the queue, by work id */
    uint64_t oldest_run, next_run; /* work ids */
    uint32_t room;

    pthread_mutex_t state;
    struct sendings sendings;
    enum dp_broken broken;
    uint32_t status;
};

/* ---- the queue: callers hold `queue_lock` ------------------------------------------------------------------------ */

static struct run *run_of(struct dp_queue_sender *sender, uint64_t work_id) {
    return &sender->runs[work_id % sender->queue.depth];
}

/* Everything in the queue has failed; nothing is posted until the pair is renewed. */
static void break_off(struct dp_queue_sender *sender, enum dp_broken broken, uint32_t status) {
    pthread_mutex_lock(&sender->state);
    for (; sender->oldest_run != sender->next_run; sender->oldest_run++) {
        const struct run *run = run_of(sender, sender->oldest_run);
        sendings_record(&sender->sendings, &run->of->sending, 0, run->count);
    }
    sender->room = sender->queue.depth;
    sender->broken = broken;
    sender->status = status;
    sender->sendings.woken = 1;
    write_event(sender->sendings.wake);
    pthread_mutex_unlock(&sender->state);
}

/* Takes what the NIC has done. Returns -1 when something broke. */
static int take_completions(struct dp_queue_sender *sender) {
    struct completions *completions = &sender->completions;
    int left;
    while ((left = completions_look(completions)) > 0) {
        const struct verbs_completion *done = &completions->taken[completions->next++];
        if (done->queue_pair != sender->queue.number) continue; /* of a queue pair that was replaced */
        if (done->status != VERBS_WC_SUCCESS) {
            break_off(sender, DP_BROKEN_QUEUE_PAIR, done->status);
            return -1;
        }
        pthread_mutex_lock(&sender->state);
        for (; sender->oldest_run != sender->next_run && sender->oldest_run <= done->work_id; sender->oldest_run++) {
            const struct run *run = run_of(sender, sender->oldest_run);
            sendings_record(&sender->sendings, &run->of->sending, run->count, 0);
            sender->room += run->count;
        }
        pthread_mutex_unlock(&sender->state);
    }
    if (left < 0) break_off(sender, DP_BROKEN_COMPLETIONS, 0);
    return left;
}

/* Posts `count` of a run's requests, with one completion for all. Returns what the library does. */
static int post(struct dp_queue_sender *sender, const struct dp_chain *chain, uint32_t first, uint32_t count) {
    struct verbs_send *requests = chain->requests, *last = &requests[first + count - 1], *bad;
    struct verbs_send *following = last->next;
    last->next = NULL;
    last->flags = VERBS_SEND_SIGNALED;
    last->work_id = sender->next_run;
    int error = ((verbs_post_send *)sender->queue.post)(sender->queue.queue_pair, &requests[first], &bad);
    /* The queue has its own copies from here on. */
    last->next = following;
    last->flags = 0;
    return error;
}

/* The first one with requests that the NIC has not got. The caller holds `state`. */
static struct queued *next_to_post(struct dp_queue_sender *sender) {
    for (struct sending *each = sender->sendings.first; each; each = each->next)
        if (((struct queued *)each)->posted < each->count) return (struct queued *)each;
    return NULL;
}

/* Posts what fits. Returns -1 when the pair broke. */
static int fill_queue(struct dp_queue_sender *sender) {
    while (sender->room) {
        pthread_mutex_lock(&sender->state);
        /* It stays while it has requests without an outcome. */
        struct queued *queued = next_to_post(sender);
        pthread_mutex_unlock(&sender->state);
        if (!queued) break;
        uint32_t count = queued->sending.count - queued->posted;
        count = count < sender->room ? count : sender->room;
        count = count < sender->queue.run_max ? count : sender->queue.run_max;
        if (post(sender, &queued->chain, queued->chain.first + queued->posted, count)) {
            pthread_mutex_lock(&sender->state);
            /* Nobody knows what the NIC has taken of it: the rest of this one is given up, too. */
            sendings_record(&sender->sendings, &queued->sending, 0, queued->sending.count - queued->posted);
            queued->posted = queued->sending.count;
            pthread_mutex_unlock(&sender->state);
            break_off(sender, DP_BROKEN_QUEUE_PAIR, 0);
            return -1;
        }
        *run_of(sender, sender->next_run++) = (struct run){queued, count};
        queued->posted += count;
        sender->room -= count;
    }
    return 0;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* What may be waited for besides an interrupt. */
enum may_wait { NOT_AT_ALL, FOR_COMPLETIONS, FOR_NOTHING };

static enum may_wait work(struct dp_queue_sender *sender) {
    enum may_wait may = FOR_NOTHING;
    pthread_mutex_lock(&sender->queue_lock);
    if (!sender->broken && take_completions(sender) >= 0 && fill_queue(sender) >= 0 &&
        sender->oldest_run != sender->next_run) {
        int is_armed = completions_arm(&sender->completions) >= 0;
        int left = is_armed ? completions_look(&sender->completions) : -1;
        if (left < 0)
            break_off(sender, DP_BROKEN_COMPLETIONS, 0);
        else
            may = left ? NOT_AT_ALL : FOR_COMPLETIONS;
    }
    pthread_mutex_lock(&sender->state);
    sendings_tell(&sender->sendings);
    pthread_mutex_unlock(&sender->state);
    pthread_mutex_unlock(&sender->queue_lock);
    return may;
}

static void *run(void *argument) {
    struct dp_queue_sender *sender = argument;
    prctl(PR_SET_NAME, "kvcast-send");
    while (!__atomic_load_n(&sender->stop, __ATOMIC_ACQUIRE)) {
        while (__atomic_load_n(&sender->asking, __ATOMIC_ACQUIRE)) sched_yield();
        enum may_wait may = work(sender);
        if (may == NOT_AT_ALL) continue;
        struct pollfd files[2] = {{sender->interrupt, POLLIN, 0}, {sender->queue.completions.fd, POLLIN, 0}};
        ppoll(files, may == FOR_COMPLETIONS ? 2 : 1, NULL, NULL);
        if (files[0].revents) {
            uint64_t count;
            (void)!read(sender->interrupt, &count, sizeof count);
        }
        if (files[1].revents) {
            pthread_mutex_lock(&sender->queue_lock);
            if (completions_woken(&sender->completions) < 0) break_off(sender, DP_BROKEN_COMPLETIONS, 0);
            pthread_mutex_unlock(&sender->queue_lock);
        }
    }
    return NULL;
}

static void lock_queue(struct dp_queue_sender *sender) {
    __atomic_add_fetch(&sender->asking, 1, __ATOMIC_ACQ_REL);
    pthread_mutex_lock(&sender->queue_lock);
    __atomic_sub_fetch(&sender->asking, 1, __ATOMIC_ACQ_REL);
}

/* ---- interface --------------------------------------------------------------------------------------------------- */

struct dp_queue_sender *dp_queue_sender_new(const struct dp_send_queue *queue, int wake) {
    assert(queue && queue->queue_pair && queue->post && wake >= 0);
    assert(queue->run_max && queue->run_max <= queue->depth);
    struct dp_queue_sender *sender = calloc(1, sizeof *sender);
    if (!sender) return NULL;
    sender->queue = *queue;
    sender->room = queue->depth;
    sendings_open(&sender->sendings, wake, ENOUGH);
    pthread_mutex_init(&sender->queue_lock, NULL);
    pthread_mutex_init(&sender->state, NULL);
    sender->interrupt = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    sender->runs = calloc(queue->depth, sizeof *sender->runs);
    if (sender->interrupt < 0 || !sender->runs ||
        completions_open(&sender->completions, &queue->completions, POLLED_MAX)) {
        dp_queue_sender_free(sender);
        return NULL;
    }
    return sender;
}

int dp_queue_sender_start(struct dp_queue_sender *sender) {
    assert(sender && !sender->started);
    int error = pthread_create(&sender->thread, NULL, run, sender);
    sender->started = !error;
    return error;
}

int dp_queue_sender_add(struct dp_queue_sender *sender, const struct dp_chain *chain) {
    assert(sender && chain && chain->requests && chain->count);
    struct queued *queued = calloc(1, sizeof *queued);
    if (!queued) return ENOMEM;
    queued->chain = *chain;
    queued->sending.id = chain->id;
    queued->sending.count = chain->count;
    pthread_mutex_lock(&sender->state);
    sendings_add(&sender->sendings, &queued->sending);
    pthread_mutex_unlock(&sender->state);
    write_event(sender->interrupt);
    return 0;
}

void dp_queue_sender_give_up(struct dp_queue_sender *sender) {
    assert(sender);
    lock_queue(sender);
    pthread_mutex_lock(&sender->state);
    sender->oldest_run = sender->next_run;
    for (struct sending *each = sender->sendings.first; each; each = each->next) {
        sendings_record(&sender->sendings, each, 0, sending_rest(each));
        ((struct queued *)each)->posted = each->count;
    }
    pthread_mutex_unlock(&sender->state);
    pthread_mutex_unlock(&sender->queue_lock);
}

uint32_t dp_queue_sender_drain(struct dp_queue_sender *sender, struct dp_outcome *outcomes, uint32_t room,
                               enum dp_broken *broken, uint32_t *status) {
    assert(sender && outcomes && room && broken && status);
    pthread_mutex_lock(&sender->state);
    uint32_t count = sendings_drain(&sender->sendings, outcomes, room);
    *broken = sender->broken;
    *status = sender->status;
    pthread_mutex_unlock(&sender->state);
    return count;
}

void dp_queue_sender_renew(struct dp_queue_sender *sender, void *queue_pair, uint32_t number) {
    assert(sender && queue_pair);
    lock_queue(sender);
    sender->queue.queue_pair = queue_pair;
    sender->queue.number = number;
    sender->room = sender->queue.depth;
    pthread_mutex_lock(&sender->state);
    sender->broken = DP_NOT_BROKEN;
    sender->status = 0;
    pthread_mutex_unlock(&sender->state);
    pthread_mutex_unlock(&sender->queue_lock);
    write_event(sender->interrupt);
}

void dp_queue_sender_free(struct dp_queue_sender *sender) {
    assert(sender);
    if (sender->started) {
        __atomic_store_n(&sender->stop, 1, __ATOMIC_RELEASE);
        write_event(sender->interrupt);
        pthread_join(sender->thread, NULL);
    }
    sendings_close(&sender->sendings);
    completions_close(&sender->completions);
    pthread_mutex_destroy(&sender->queue_lock);
    pthread_mutex_destroy(&sender->state);
    if (sender->interrupt >= 0) close(sender->interrupt);
    free(sender->runs);
    free(sender);
}
