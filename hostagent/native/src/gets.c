/* See gets.h. One lock guards all; it is not held while a peer is asked. */
#include "gets.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bigendian.h"
#include "blake3.h"
#include "offers.h"
#include "threads.h"

#define EVENTS 32
#define READ_BYTES 48
#define ANSWER_BYTES 24
#define QUICK_BYTES 8192 /* beyond, the peer's TCP may wait for an acknowledgement */
#define TELLS_LOAD ((uint64_t)1 << 63)
#define NUMBER_MASK (((uint64_t)1 << 48) - 1)
#define LOAD_AT 6
#define LOAD_LEVEL_MASK 1023
#define BUSY_NS 100000000 /* for so long a peer counts as busy that had others to serve */
#define DEAR_FACTOR 2     /* computing has to take so many times as long, because transfers may be under way */

_Static_assert(DP_LONE_SLOT_BYTES <= BLAKE3_BYTES_MAX, "a slot's chunk has one leaf");

/* As kvclient.lone has them, in the machine's own order. */
struct request {
    uint64_t number;
    uint64_t recompute_ns; /* UINT64_MAX: fetch whatever it takes */
    uint32_t slot;
    uint32_t reserved;
    uint8_t key[DP_KEY_BYTES];
};

struct answer {
    uint64_t number;
    uint32_t size_bytes; /* 0: declined */
    uint32_t reserved;
};

struct engine {
    struct engine *next;
    uint64_t id;
    int socket;
    uint8_t *landing;
};

/* An answer, as far as it has come. */
struct taken {
    uint64_t number, size_bytes; /* of the request */
    uint64_t have;
    uint8_t head[ANSWER_BYTES];
};

struct peer {
    int socket;      /* -1: none */
    int wished;      /* somebody wanted it, and there was no connection */
    int told;        /* and the caller knows */
    int asked;       /* the thread uses the socket, without the lock */
    int parted;      /* while it did */
    uint64_t number; /* of the last request */
    int64_t busy_ns; /* when it last said that others wait for it */
    int64_t owes_ns; /* since when it owes the answer to a request that nobody waits for any more; 0: it does not */
    struct taken owed;
};

struct dp_getter {
    struct dp_getter_config config;
    struct blake3_mode plain, derived;
    int epoll, interrupt;
    pthread_t thread;
    int started, stop;

    pthread_mutex_t lock;
    struct offers offers;
    struct engine *engines;
    struct peer peers[DP_GET_PEERS];
    uint8_t *bytes; /* of all buffers, and of one more for what nobody wants */
    uint32_t *free_buffers, free_count;
    struct dp_got *got; /* a ring of `buffers`, from `got_first` */
    uint32_t got_first, got_count;
    double overhead_ns, ns_per_byte;
    uint64_t counts[DP_GET_COUNTS];
    int64_t since_ns; /* since when something waits to be drained, 0: nothing */
    int woken;
};

static void wake(struct dp_getter *getter) {
    if (!getter->woken) write_event(getter->config.wake);
    getter->woken = 1;
}

/* ---- digests ----------------------------------------------------------------------------------------------------- */

/* See hostagent.tree: a chunk of one piece. */
static void digest_of(const struct blake3_mode *plain, const struct blake3_mode *derived, const uint8_t *bytes,
                      uint64_t size_bytes, uint8_t *digest) {
    uint8_t bound[12 + BLAKE3_OUT_BYTES];
    put64be(bound, size_bytes);
    for (int i = 0; i < 4; i++) bound[8 + i] = (uint8_t)(DP_PIECE_BYTES >> (24 - 8 * i));
    blake3_hash(plain, bytes, size_bytes, bound + 12);
    blake3_hash(derived, bound, sizeof bound, digest);
}

void dp_get_digest(const uint8_t *context, uint32_t context_bytes, const uint8_t *bytes, uint64_t size_bytes,
                   uint8_t *digest) {
    assert(context && (bytes || !size_bytes) && digest && size_bytes <= DP_LONE_SLOT_BYTES);
    struct blake3_mode plain = blake3_plain(), derived = blake3_of_context(context, context_bytes);
    digest_of(&plain, &derived, bytes, size_bytes, digest);
}

/* ---- a peer, without the lock ------------------------------------------------------------------------------------ */

/* Receives what there is, sleeping only when nothing has come for a while. Until then it gives way with each look: the
 * peer's side may wait for this very processor. Returns recvmsg's result; 0: nothing came until `end_ns`, errno is
 * ETIMEDOUT, or the peer went away, errno is 0. */
static ssize_t receive(const struct dp_getter *getter, int socket, struct msghdr *message, int64_t end_ns) {
    int64_t spin_until_ns = now_ns() + getter->config.spin_ns;
    for (;;) {
        errno = 0;
        ssize_t taken = recvmsg(socket, message, MSG_DONTWAIT);
        if (taken >= 0 || (errno != EAGAIN && errno != EINTR)) return taken;
        int64_t at_ns = now_ns();
        if (at_ns < spin_until_ns && at_ns < end_ns) {
            sched_yield();
            continue;
        }
        struct pollfd watched = {.fd = socket, .events = POLLIN};
        int64_t left_ns = end_ns > at_ns ? end_ns - at_ns : 0;
        struct timespec left = {.tv_sec = left_ns / 1000000000, .tv_nsec = left_ns % 1000000000};
        if (!left_ns || !ppoll(&watched, 1, &left, NULL)) {
            errno = ETIMEDOUT;
            return 0;
        }
    }
}

/* Receives the rest of an answer. DP_GET_SERVED: all of it is there. */
static enum dp_get_count take(const struct dp_getter *getter, int socket, struct taken *answer, uint8_t *into,
                              int64_t end_ns) {
    while (answer->have < ANSWER_BYTES + answer->size_bytes) {
        uint64_t of_body = answer->have > ANSWER_BYTES ? answer->have - ANSWER_BYTES : 0;
        uint64_t of_head = answer->have < ANSWER_BYTES ? answer->have : ANSWER_BYTES;
        struct iovec parts[2] = {
            {answer->head + of_head, ANSWER_BYTES - of_head},
            {into + of_body, answer->size_bytes - of_body},
        };
        struct msghdr message = {.msg_iov = parts, .msg_iovlen = 2};
        ssize_t taken = receive(getter, socket, &message, end_ns);
        if (taken <= 0) return !taken && errno == ETIMEDOUT ? DP_GET_LATE : DP_GET_REFUSED;
        answer->have += (uint64_t)taken;
        /* What is refused has no body to wait for. */
        if (answer->have >= ANSWER_BYTES &&
            (memcmp(answer->head, getter->config.answer_head, DP_GET_ANSWER_HEAD_BYTES) ||
             get64be(answer->head + 8) != answer->number || get64be(answer->head + 16) != answer->size_bytes))
            return DP_GET_REFUSED;
    }
    return DP_GET_SERVED;
}

/* Asks for a whole chunk and receives it. Returns what became of it; DP_GET_SERVED: it is there, and right. */
static enum dp_get_count pull(const struct dp_getter *getter, int socket, const struct offer *offer,
                              struct taken *answer, uint8_t *into) {
    uint8_t asked[READ_BYTES] = {0}, found[DP_GET_DIGEST_BYTES];
    int64_t end_ns = now_ns() + getter->config.wait_ns;
    memcpy(asked, getter->config.request_head, DP_GET_REQUEST_HEAD_BYTES);
    put64be(asked + 8, answer->number);
    put64be(asked + 24, offer->size_bytes);
    memcpy(asked + 32, offer->key, DP_KEY_BYTES);
    if (send(socket, asked, sizeof asked, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof asked) return DP_GET_REFUSED;
    if (ANSWER_BYTES + offer->size_bytes > QUICK_BYTES) {
        int yes = 1;
        setsockopt(socket, IPPROTO_TCP, TCP_QUICKACK, &yes, sizeof yes);
    }
    enum dp_get_count outcome = take(getter, socket, answer, into, end_ns);
    if (outcome != DP_GET_SERVED) return outcome;
    digest_of(&getter->plain, &getter->derived, into, offer->size_bytes, found);
    return memcmp(found, offer->digest, sizeof found) ? DP_GET_WRONG : DP_GET_SERVED;
}

/* ---- requests ---------------------------------------------------------------------------------------------------- */

static struct engine *find(const struct dp_getter *getter, uint64_t id) {
    struct engine *engine = getter->engines;
    while (engine && engine->id != id) engine = engine->next;
    return engine;
}

/* Forgets an engine, if it is there. */
static void leave(struct dp_getter *getter, uint64_t id) {
    struct engine **link = &getter->engines;
    while (*link && (*link)->id != id) link = &(*link)->next;
    struct engine *engine = *link;
    if (!engine) return;
    *link = engine->next;
    close(engine->socket);
    free(engine);
}

/* An engine that takes no answers is served no more. */
static void answer(struct dp_getter *getter, const struct engine *engine, const struct request *request,
                   uint64_t size_bytes) {
    struct answer made = {.number = request->number, .size_bytes = (uint32_t)size_bytes};
    if (send(engine->socket, &made, sizeof made, MSG_DONTWAIT | MSG_NOSIGNAL) != sizeof made) leave(getter, engine->id);
}

static void close_peer(struct peer *peer) {
    if (peer->socket >= 0) close(peer->socket);
    peer->socket = -1;
    peer->owes_ns = 0;
}

static uint8_t *bytes_of(const struct dp_getter *getter, uint32_t buffer) {
    return getter->bytes + (size_t)buffer * DP_LONE_SLOT_BYTES;
}

/* Takes in what a peer owes, as far as it has come, and throws it away. Returns whether it still owes something; one
 * that has done so for long, or answers wrongly, is left. */
static int still_owes(struct dp_getter *getter, struct peer *peer) {
    if (!peer->owes_ns) return 0;
    uint8_t *nowhere = bytes_of(getter, getter->config.buffers);
    enum dp_get_count outcome = take(getter, peer->socket, &peer->owed, nowhere, 0);
    if (outcome == DP_GET_LATE && now_ns() - peer->owes_ns < getter->config.owed_ns) return 1;
    if (outcome == DP_GET_SERVED)
        peer->owes_ns = 0;
    else
        close_peer(peer);
    return 0;
}

/* Whether a request can be tried; DP_GET_SERVED: yes. */
static enum dp_get_count consider(struct dp_getter *getter, const struct request *request, const struct offer *offer) {
    if (!offer) return DP_GET_UNKNOWN;
    struct peer *peer = &getter->peers[offer->peer];
    if (request->recompute_ns != UINT64_MAX) {
        double takes_ns = getter->overhead_ns + getter->ns_per_byte * (double)offer->size_bytes;
        int is_busy = peer->busy_ns && now_ns() - peer->busy_ns < BUSY_NS;
        if (is_busy || DEAR_FACTOR * takes_ns >= (double)request->recompute_ns) return DP_GET_DEAR;
    }
    if (still_owes(getter, peer)) return DP_GET_LATE;
    if (peer->socket < 0) {
        peer->wished = 1;
        if (!peer->told) wake(getter);
        return DP_GET_UNCONNECTED;
    }
    return getter->free_count ? DP_GET_SERVED : DP_GET_FULL;
}

/* Has a chunk brought for an engine that may be gone afterwards. */
static void bring(struct dp_getter *getter, uint64_t engine_id, const struct request *request,
                  const struct offer *known) {
    struct offer offer = *known;
    struct peer *peer = &getter->peers[offer.peer];
    uint32_t buffer = getter->free_buffers[--getter->free_count];
    struct taken taken = {
        .number = TELLS_LOAD | (++peer->number & NUMBER_MASK),
        .size_bytes = offer.size_bytes,
    };
    int socket = peer->socket;
    int64_t began_ns = now_ns();
    peer->asked = 1;
    pthread_mutex_unlock(&getter->lock);
    enum dp_get_count outcome = pull(getter, socket, &offer, &taken, bytes_of(getter, buffer));
    pthread_mutex_lock(&getter->lock);
    peer->asked = 0;
    if (outcome == DP_GET_SERVED && (taken.head[LOAD_AT] << 8 | taken.head[LOAD_AT + 1]) & LOAD_LEVEL_MASK)
        peer->busy_ns = now_ns();
    if (outcome == DP_GET_LATE) {
        peer->owes_ns = now_ns();
        peer->owed = taken;
    }
    if ((outcome != DP_GET_SERVED && outcome != DP_GET_LATE) || peer->parted) close_peer(peer);
    peer->parted = 0;
    getter->counts[outcome]++;
    const struct engine *engine = find(getter, engine_id);
    if (outcome != DP_GET_SERVED) {
        getter->free_buffers[getter->free_count++] = buffer;
        if (engine) answer(getter, engine, request, 0);
        return;
    }
    struct dp_got *got = &getter->got[(getter->got_first + getter->got_count++) % getter->config.buffers];
    *got = (struct dp_got){
        .engine = engine_id,
        .size_bytes = offer.size_bytes,
        .took_ns = now_ns() - began_ns,
        .bytes = bytes_of(getter, buffer),
        .buffer = buffer,
        .peer = offer.peer,
    };
    memcpy(got->key, offer.key, sizeof got->key);
    memcpy(got->digest, offer.digest, sizeof got->digest);
    if (!getter->since_ns) getter->since_ns = now_ns();
    if (engine) {
        memcpy(engine->landing + (size_t)request->slot * DP_LONE_SLOT_BYTES, got->bytes, offer.size_bytes);
        answer(getter, engine, request, offer.size_bytes);
    }
}

static void serve(struct dp_getter *getter, uint64_t id) {
    struct request request;
    const struct engine *engine = find(getter, id);
    if (!engine) return;
    ssize_t taken = recv(engine->socket, &request, sizeof request, MSG_DONTWAIT | MSG_TRUNC);
    if (taken < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (taken != sizeof request || request.slot >= DP_LONE_SLOTS) {
        leave(getter, id);
        return;
    }
    const struct offer *offer = offers_find(&getter->offers, request.key);
    enum dp_get_count outcome = consider(getter, &request, offer);
    if (outcome == DP_GET_SERVED) {
        bring(getter, id, &request, offer);
    } else {
        getter->counts[outcome]++;
        answer(getter, engine, &request, 0);
    }
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* Returns milliseconds until the caller should hear of what was got; -1: there is nothing to hear. */
static int next_wait(struct dp_getter *getter) {
    if (!getter->since_ns || getter->woken) return -1;
    int64_t left_ns = getter->since_ns + getter->config.tell_ns - now_ns();
    if (left_ns > 0) return (int)(left_ns / 1000000) + 1;
    wake(getter);
    return -1;
}

static void *run(void *argument) {
    struct dp_getter *getter = argument;
    struct epoll_event events[EVENTS];
    int wait_ms = -1;
    prctl(PR_SET_NAME, "kvcast-gets");
    while (!__atomic_load_n(&getter->stop, __ATOMIC_ACQUIRE)) {
        int count = epoll_wait(getter->epoll, events, EVENTS, wait_ms);
        pthread_mutex_lock(&getter->lock);
        for (int i = 0; i < count; i++) {
            uint64_t event;
            if (events[i].data.u64)
                serve(getter, events[i].data.u64);
            else
                (void)!read(getter->interrupt, &event, sizeof event);
        }
        wait_ms = next_wait(getter);
        pthread_mutex_unlock(&getter->lock);
    }
    return NULL;
}

/* ---- interface --------------------------------------------------------------------------------------------------- */

struct dp_getter *dp_getter_new(const struct dp_getter_config *config) {
    assert(config && config->context && config->buffers && config->wake >= 0);
    struct dp_getter *getter = calloc(1, sizeof *getter);
    if (!getter) return NULL;
    getter->config = *config;
    getter->plain = blake3_plain();
    getter->derived = blake3_of_context(config->context, config->context_bytes);
    pthread_mutex_init(&getter->lock, NULL);
    for (int i = 0; i < DP_GET_PEERS; i++) getter->peers[i].socket = -1;
    getter->bytes = calloc(config->buffers + (size_t)1, DP_LONE_SLOT_BYTES);
    getter->free_buffers = calloc(config->buffers, sizeof *getter->free_buffers);
    getter->got = calloc(config->buffers, sizeof *getter->got);
    getter->epoll = epoll_create1(EPOLL_CLOEXEC);
    getter->interrupt = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN};
    if (offers_begin(&getter->offers) || !getter->bytes || !getter->free_buffers || !getter->got || getter->epoll < 0 ||
        getter->interrupt < 0 || epoll_ctl(getter->epoll, EPOLL_CTL_ADD, getter->interrupt, &event)) {
        dp_getter_free(getter);
        return NULL;
    }
    while (getter->free_count < config->buffers) {
        getter->free_buffers[getter->free_count] = getter->free_count;
        getter->free_count++;
    }
    return getter;
}

int dp_getter_start(struct dp_getter *getter) {
    assert(getter && !getter->started);
    int error = pthread_create(&getter->thread, NULL, run, getter);
    getter->started = !error;
    return error;
}

int dp_getter_admit(struct dp_getter *getter, int socket, uint8_t *landing, uint64_t id) {
    assert(getter && socket >= 0 && landing && id);
    struct engine *engine = calloc(1, sizeof *engine);
    if (!engine) {
        close(socket);
        return ENOMEM;
    }
    *engine = (struct engine){.id = id, .socket = socket, .landing = landing};
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = id};
    pthread_mutex_lock(&getter->lock);
    int error = epoll_ctl(getter->epoll, EPOLL_CTL_ADD, socket, &event) ? errno : 0;
    if (!error) {
        engine->next = getter->engines;
        getter->engines = engine;
    }
    pthread_mutex_unlock(&getter->lock);
    if (error) {
        close(socket);
        free(engine);
    }
    return error;
}

void dp_getter_leave(struct dp_getter *getter, uint64_t id) {
    assert(getter);
    pthread_mutex_lock(&getter->lock);
    leave(getter, id);
    pthread_mutex_unlock(&getter->lock);
}

int dp_getter_offer(struct dp_getter *getter, const uint8_t *key, uint64_t size_bytes, const uint8_t *digest,
                    uint32_t peer) {
    assert(getter && key && digest && size_bytes <= DP_LONE_SLOT_BYTES && peer < DP_GET_PEERS);
    int error = 0;
    pthread_mutex_lock(&getter->lock);
    struct offer *offer = offers_find(&getter->offers, key);
    if (!offer && getter->offers.count >= getter->config.chunks_max)
        error = ENOSPC;
    else if (!offer && !(offer = offers_add(&getter->offers, key)))
        error = ENOMEM;
    if (!error) {
        offer->size_bytes = size_bytes;
        offer->peer = peer;
        memcpy(offer->digest, digest, sizeof offer->digest);
    }
    pthread_mutex_unlock(&getter->lock);
    return error;
}

void dp_getter_withdraw(struct dp_getter *getter, const uint8_t *key) {
    assert(getter && key);
    pthread_mutex_lock(&getter->lock);
    offers_remove(&getter->offers, key);
    pthread_mutex_unlock(&getter->lock);
}

static void part(struct peer *peer) {
    if (peer->asked)
        peer->parted = 1;
    else
        close_peer(peer);
}

void dp_getter_connect(struct dp_getter *getter, uint32_t number, int socket) {
    assert(getter && number < DP_GET_PEERS && socket >= 0);
    pthread_mutex_lock(&getter->lock);
    struct peer *peer = &getter->peers[number];
    if (peer->asked) {
        close(socket); /* the one that is there goes on, or ends soon */
    } else {
        close_peer(peer);
        peer->socket = socket;
    }
    peer->wished = peer->told = 0;
    pthread_mutex_unlock(&getter->lock);
}

void dp_getter_part(struct dp_getter *getter, uint32_t number) {
    assert(getter && number < DP_GET_PEERS);
    pthread_mutex_lock(&getter->lock);
    part(&getter->peers[number]);
    getter->peers[number].wished = getter->peers[number].told = 0;
    pthread_mutex_unlock(&getter->lock);
}

void dp_getter_set_costs(struct dp_getter *getter, double overhead_ns, double ns_per_byte) {
    assert(getter);
    pthread_mutex_lock(&getter->lock);
    getter->overhead_ns = overhead_ns;
    getter->ns_per_byte = ns_per_byte;
    pthread_mutex_unlock(&getter->lock);
}

uint32_t dp_getter_drain(struct dp_getter *getter, struct dp_got *got, uint32_t room) {
    assert(getter && got && room);
    uint32_t count = 0;
    uint64_t event;
    pthread_mutex_lock(&getter->lock);
    if (getter->woken) (void)!read(getter->config.wake, &event, sizeof event);
    getter->woken = 0;
    while (getter->got_count && count < room) {
        got[count++] = getter->got[getter->got_first];
        getter->got_first = (getter->got_first + 1) % getter->config.buffers;
        getter->got_count--;
    }
    if (!getter->got_count) getter->since_ns = 0;
    pthread_mutex_unlock(&getter->lock);
    return count;
}

uint32_t dp_getter_take_wishes(struct dp_getter *getter, uint32_t peers[DP_GET_PEERS]) {
    assert(getter && peers);
    uint32_t count = 0;
    pthread_mutex_lock(&getter->lock);
    for (uint32_t number = 0; number < DP_GET_PEERS; number++) {
        if (getter->peers[number].wished && !getter->peers[number].told) {
            getter->peers[number].told = 1;
            peers[count++] = number;
        }
    }
    pthread_mutex_unlock(&getter->lock);
    return count;
}

void dp_getter_give_back(struct dp_getter *getter, uint32_t buffer) {
    assert(getter && buffer < getter->config.buffers);
    pthread_mutex_lock(&getter->lock);
    getter->free_buffers[getter->free_count++] = buffer;
    pthread_mutex_unlock(&getter->lock);
}

void dp_getter_read_counts(struct dp_getter *getter, uint64_t *counts) {
    assert(getter && counts);
    pthread_mutex_lock(&getter->lock);
    memcpy(counts, getter->counts, sizeof getter->counts);
    pthread_mutex_unlock(&getter->lock);
}

void dp_getter_free(struct dp_getter *getter) {
    assert(getter);
    if (getter->started) {
        __atomic_store_n(&getter->stop, 1, __ATOMIC_RELEASE);
        write_event(getter->interrupt);
        pthread_join(getter->thread, NULL);
    }
    while (getter->engines) leave(getter, getter->engines->id);
    for (int i = 0; i < DP_GET_PEERS; i++) close_peer(&getter->peers[i]);
    offers_end(&getter->offers);
    pthread_mutex_destroy(&getter->lock);
    if (getter->epoll >= 0) close(getter->epoll);
    if (getter->interrupt >= 0) close(getter->interrupt);
    free(getter->bytes);
    free(getter->free_buffers);
    free(getter->got);
    free(getter);
}
