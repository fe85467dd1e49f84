/* See asker.h. One lock guards everything: who holds it polls, posts and counts, and never waits. */
#include "asker.h"

#include <assert.h>
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "completions.h"
#include "threads.h"

#define POLLED_MAX 64  /* completions taken by one call */
#define LESSONS_MAX 32 /* pieces of a peer that wait to be told of one by one */
_Static_assert(LESSONS_MAX < DP_ASK_ROOM_MIN, "whoever drains has room for a peer's pieces and for more");

struct range {
    struct range *next;
    struct dp_range is;
    uint64_t posted_bytes, done_bytes, told_bytes;
};

struct piece {
    struct range *of;
    uint32_t bytes;
    uint64_t work_id;
    int64_t posted_ns;
};

struct peer {
    struct peer *next;
    uint64_t id;
    void *queue_pair;
    uint32_t number;
    struct dp_allowance allowance;
    struct range *first, **end;
    struct piece pieces[DP_READ_PIECES_MAX]; /* a ring: [oldest, oldest + count) are in flight */
    uint32_t oldest, count;
    uint64_t in_flight_bytes;
    struct dp_came lessons[LESSONS_MAX]; /* pieces that were not quick */
    uint32_t lessons_count;
    uint64_t lessons_bytes;
    int64_t done_ns;
    int is_broken, broken_told;
    uint32_t status;
    struct verbs_send requests[DP_READ_PIECES_MAX];
    struct verbs_piece elements[DP_READ_PIECES_MAX];
};

struct dp_asker {
    struct dp_asker_config config;
    int interrupt;
    pthread_t thread;
    int started;
    int stop;

    pthread_mutex_t lock;
    struct completions completions;
    struct peer *peers;
    uint64_t last_peer, last_work;
    int woken; /* nobody has drained since `wake` was written */
    int is_broken;
};

/* ---- all of these: the caller holds the lock --------------------------------------------------------------------- */

static void tell(struct dp_asker *asker) {
    if (asker->woken) return;
    asker->woken = 1;
    write_event(asker->config.wake);
}

static void break_peer(struct dp_asker *asker, struct peer *peer, uint32_t status) {
    peer->is_broken = 1;
    peer->status = status;
    tell(asker);
}

static struct peer *peer_of(struct dp_asker *asker, uint64_t id) {
    struct peer *peer = asker->peers;
    while (peer && peer->id != id) peer = peer->next;
    return peer;
}

/* The oldest range with bytes that nobody has asked for. */
static struct range *next_to_post(struct peer *peer) {
    struct range *range = peer->first;
    while (range && range->posted_bytes == range->is.size_bytes) range = range->next;
    return range;
}

/* Writes the work request of the next piece of a range, as one in flight. */
static void describe(struct dp_asker *asker, struct peer *peer, struct range *range, uint32_t bytes, uint32_t place) {
    struct verbs_send *request = &peer->requests[place];
    struct verbs_piece *element = &peer->elements[place];
    uint64_t into = range->is.into + range->posted_bytes;
    uint32_t key = asker->config.local_keys[(into - asker->config.into) / asker->config.step_bytes];
    *element = (struct verbs_piece){into, bytes, key};
    *request = (struct verbs_send){
        .work_id = ++asker->last_work,
        .next = request + 1,
        .pieces = element,
        .pieces_count = 1,
        .opcode = VERBS_RDMA_READ,
        .flags = VERBS_SEND_SIGNALED,
        .remote_address = range->is.from + range->posted_bytes,
        .remote_key = range->is.remote_key,
    };
    peer->pieces[(peer->oldest + peer->count++) % DP_READ_PIECES_MAX] =
        (struct piece){range, bytes, asker->last_work, now_ns()};
    range->posted_bytes += bytes;
    peer->in_flight_bytes += bytes;
}

/* How much the next piece of a range may have: all of it goes to memory with one key. */
static uint32_t piece_bytes(const struct dp_asker *asker, const struct peer *peer, const struct range *range) {
    uint64_t at = range->is.into + range->posted_bytes - asker->config.into;
    uint64_t left = range->is.size_bytes - range->posted_bytes;
    uint64_t room = asker->config.step_bytes - at % asker->config.step_bytes;
    if (left < room) room = left;
    return room < peer->allowance.piece_bytes ? (uint32_t)room : peer->allowance.piece_bytes;
}

/* Posts as many pieces as may be in flight, in one call. */
static void post(struct dp_asker *asker, struct peer *peer) {
    struct verbs_send *bad;
    struct range *range;
    uint32_t count = 0;
    while (!peer->is_broken && peer->count < DP_READ_PIECES_MAX && (range = next_to_post(peer))) {
        uint32_t bytes = piece_bytes(asker, peer, range);
        if (peer->in_flight_bytes + bytes > peer->allowance.window_bytes) break;
        describe(asker, peer, range, bytes, count++);
    }
    if (!count) return;
    peer->requests[count - 1].next = NULL;
    if (((verbs_post_send *)asker->config.post)(peer->queue_pair, peer->requests, &bad)) break_peer(asker, peer, 0);
}

/* A piece has something to teach. When nobody has listened for long, the last lesson is that of all later ones. */
static void learn(struct peer *peer, const struct piece *piece, int64_t now) {
    struct dp_came *lesson = &peer->lessons[peer->lessons_count];
    uint64_t before_bytes = 0;
    if (peer->lessons_count == LESSONS_MAX)
        before_bytes = (--lesson)->bytes;
    else
        peer->lessons_count++;
    *lesson = (struct dp_came){
        .peer = peer->id,
        .bytes = before_bytes + piece->bytes,
        .in_flight_bytes = peer->in_flight_bytes,
        .posted_ns = piece->posted_ns,
        .done_ns = now,
        .what = DP_CAME_PIECE,
    };
    peer->lessons_bytes += piece->bytes;
}

/* The oldest piece of a peer is here. */
static void came(struct dp_asker *asker, struct peer *peer, int64_t now) {
    const struct piece *piece = &peer->pieces[peer->oldest];
    struct range *range = piece->of;
    if (now - piece->posted_ns >= peer->allowance.quick_ns) learn(peer, piece, now);
    range->done_bytes += piece->bytes;
    peer->in_flight_bytes -= piece->bytes;
    peer->oldest = (peer->oldest + 1) % DP_READ_PIECES_MAX;
    peer->count--;
    peer->done_ns = now;
    /* Twice a round trip is often enough to learn from it. */
    if (range->done_bytes == range->is.size_bytes || 2 * peer->lessons_bytes >= peer->allowance.window_bytes)
        tell(asker);
}

/* A completion that belongs to no piece in flight is one of a queue pair that is gone. */
static void account(struct dp_asker *asker, const struct verbs_completion *done) {
    for (struct peer *peer = asker->peers; peer; peer = peer->next) {
        if (peer->number != done->queue_pair || peer->is_broken || !peer->count ||
            peer->pieces[peer->oldest].work_id != done->work_id)
            continue;
        if (done->status == VERBS_WC_SUCCESS)
            came(asker, peer, now_ns());
        else
            break_peer(asker, peer, done->status);
        return;
    }
}

static void break_all(struct dp_asker *asker) {
    asker->is_broken = 1;
    tell(asker);
}

/* Takes some of what has completed and posts what there is room for now; returns how much was taken. */
static uint32_t take(struct dp_asker *asker) {
    if (asker->is_broken) return 0;
    int count = completions_look(&asker->completions);
    if (count < 0) {
        break_all(asker);
        return 0;
    }
    for (int i = 0; i < count; i++) account(asker, &asker->completions.taken[asker->completions.next++]);
    if (count)
        for (struct peer *peer = asker->peers; peer; peer = peer->next) post(asker, peer);
    return (uint32_t)count;
}

static void remove_range(struct peer *peer, struct range **link) {
    struct range *range = *link;
    *link = range->next;
    if (!range->next) peer->end = link;
    free(range);
}

static struct range **link_of(struct peer *peer, uint64_t id) {
    struct range **link = &peer->first;
    while (*link && (*link)->is.id != id) link = &(*link)->next;
    return link;
}

static void remove_peer(struct dp_asker *asker, uint64_t id) {
    for (struct peer **link = &asker->peers; *link; link = &(*link)->next) {
        struct peer *peer = *link;
        if (peer->id != id) continue;
        *link = peer->next;
        while (peer->first) remove_range(peer, &peer->first);
        free(peer);
        return;
    }
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static void *run(void *argument) {
    struct dp_asker *asker = argument;
    prctl(PR_SET_NAME, "kvcast-ask");
    while (!__atomic_load_n(&asker->stop, __ATOMIC_ACQUIRE)) {
        pthread_mutex_lock(&asker->lock);
        int again = take(asker) > 0;
        if (!again && !asker->is_broken) {
            if (completions_arm(&asker->completions) < 0) break_all(asker);
            /* What completed before that makes no event. */
            again = take(asker) > 0;
        }
        int files_count = asker->is_broken ? 1 : 2;
        pthread_mutex_unlock(&asker->lock);
        if (again) continue;
        struct pollfd files[2] = {{asker->interrupt, POLLIN, 0}, {asker->config.completions.fd, POLLIN, 0}};
        ppoll(files, (nfds_t)files_count, NULL, NULL);
        if (!files[1].revents) continue;
        pthread_mutex_lock(&asker->lock);
        if (completions_woken(&asker->completions) < 0) break_all(asker);
        pthread_mutex_unlock(&asker->lock);
    }
    return NULL;
}

/* ---- interface --------------------------------------------------------------------------------------------------- */

struct dp_asker *dp_asker_new(const struct dp_asker_config *config) {
    assert(config && config->post && config->wake >= 0);
    struct dp_asker *asker = calloc(1, sizeof *asker);
    if (!asker) return NULL;
    asker->config = *config;
    pthread_mutex_init(&asker->lock, NULL);
    asker->interrupt = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (asker->interrupt < 0 || completions_open(&asker->completions, &config->completions, POLLED_MAX)) {
        dp_asker_free(asker);
        return NULL;
    }
    return asker;
}

int dp_asker_start(struct dp_asker *asker) {
    assert(asker && !asker->started);
    int error = pthread_create(&asker->thread, NULL, run, asker);
    asker->started = !error;
    return error;
}

uint64_t dp_asker_begin(struct dp_asker *asker, void *queue_pair, uint32_t number,
                        const struct dp_allowance *allowance) {
    assert(asker && queue_pair && allowance);
    assert(allowance->piece_bytes && allowance->piece_bytes <= allowance->window_bytes);
    struct peer *peer = calloc(1, sizeof *peer);
    if (!peer) return 0;
    peer->queue_pair = queue_pair;
    peer->number = number;
    peer->allowance = *allowance;
    peer->end = &peer->first;
    pthread_mutex_lock(&asker->lock);
    uint64_t id = peer->id = ++asker->last_peer;
    peer->next = asker->peers;
    asker->peers = peer;
    pthread_mutex_unlock(&asker->lock);
    return id;
}

void dp_asker_allow(struct dp_asker *asker, uint64_t id, const struct dp_allowance *allowance) {
    assert(asker && allowance);
    assert(allowance->piece_bytes && allowance->piece_bytes <= allowance->window_bytes);
    pthread_mutex_lock(&asker->lock);
    struct peer *peer = peer_of(asker, id);
    if (peer) {
        peer->allowance = *allowance;
        post(asker, peer);
    }
    pthread_mutex_unlock(&asker->lock);
}

int dp_asker_add(struct dp_asker *asker, uint64_t id, const struct dp_range *added) {
    assert(asker && added && added->size_bytes);
    struct range *range = calloc(1, sizeof *range);
    if (!range) return ENOMEM;
    range->is = *added;
    pthread_mutex_lock(&asker->lock);
    struct peer *peer = peer_of(asker, id);
    if (peer) {
        *peer->end = range;
        peer->end = &range->next;
        post(asker, peer);
    } else {
        free(range);
    }
    pthread_mutex_unlock(&asker->lock);
    return 0;
}

uint32_t dp_asker_withdraw(struct dp_asker *asker, uint64_t id, uint64_t range_id) {
    assert(asker);
    uint32_t working = 0;
    pthread_mutex_lock(&asker->lock);
    struct peer *peer = peer_of(asker, id);
    struct range **link = peer ? link_of(peer, range_id) : NULL;
    if (link && *link) {
        for (uint32_t i = 0; i < peer->count; i++)
            working += peer->pieces[(peer->oldest + i) % DP_READ_PIECES_MAX].of == *link;
        if (!working) remove_range(peer, link);
    }
    pthread_mutex_unlock(&asker->lock);
    return working;
}

void dp_asker_end(struct dp_asker *asker, uint64_t id) {
    assert(asker);
    pthread_mutex_lock(&asker->lock);
    remove_peer(asker, id);
    pthread_mutex_unlock(&asker->lock);
}

void dp_asker_look(struct dp_asker *asker, uint64_t id, struct dp_asked *asked) {
    assert(asker && asked);
    *asked = (struct dp_asked){0};
    pthread_mutex_lock(&asker->lock);
    const struct peer *peer = peer_of(asker, id);
    if (peer) {
        asked->in_flight_bytes = peer->in_flight_bytes;
        asked->oldest_ns = peer->count ? peer->pieces[peer->oldest].posted_ns : 0;
        asked->done_ns = peer->done_ns;
    }
    pthread_mutex_unlock(&asker->lock);
}

void dp_asker_take(struct dp_asker *asker) {
    assert(asker);
    pthread_mutex_lock(&asker->lock);
    take(asker);
    pthread_mutex_unlock(&asker->lock);
}

/* What came from one peer, after `told` others. Returns how many there are then. */
static uint32_t drain_peer(struct peer *peer, struct dp_came *came, uint32_t told, uint32_t room) {
    if (told + peer->lessons_count > room) return told; /* the next time */
    for (uint32_t i = 0; i < peer->lessons_count; i++) came[told++] = peer->lessons[i];
    peer->lessons_count = 0;
    peer->lessons_bytes = 0;
    for (struct range **link = &peer->first; *link && told < room;) {
        struct range *range = *link;
        uint64_t bytes = range->done_bytes - range->told_bytes;
        if (bytes) came[told++] = (struct dp_came){.peer = peer->id, .id = range->is.id, .bytes = bytes};
        range->told_bytes = range->done_bytes;
        if (range->done_bytes == range->is.size_bytes)
            remove_range(peer, link);
        else
            link = &range->next;
    }
    if (peer->is_broken && !peer->broken_told && told < room) {
        came[told++] = (struct dp_came){.peer = peer->id, .what = DP_CAME_BROKEN, .status = peer->status};
        peer->broken_told = 1;
    }
    return told;
}

uint32_t dp_asker_drain(struct dp_asker *asker, struct dp_came *came, uint32_t room, uint32_t *broken) {
    assert(asker && came && broken && room >= DP_ASK_ROOM_MIN);
    uint64_t event;
    uint32_t told = 0;
    pthread_mutex_lock(&asker->lock);
    if (asker->woken) (void)!read(asker->config.wake, &event, sizeof event);
    asker->woken = 0;
    for (struct peer *peer = asker->peers; peer && told < room; peer = peer->next)
        told = drain_peer(peer, came, told, room);
    *broken = (uint32_t)asker->is_broken;
    pthread_mutex_unlock(&asker->lock);
    return told;
}

void dp_asker_free(struct dp_asker *asker) {
    assert(asker);
    if (asker->started) {
        __atomic_store_n(&asker->stop, 1, __ATOMIC_RELEASE);
        write_event(asker->interrupt);
        pthread_join(asker->thread, NULL);
    }
    while (asker->peers) remove_peer(asker, asker->peers->id);
    completions_close(&asker->completions);
    pthread_mutex_destroy(&asker->lock);
    if (asker->interrupt >= 0) close(asker->interrupt);
    free(asker);
}
