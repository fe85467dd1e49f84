/* See pulls.h. One lock guards all; it is never held while bytes of a range are received. */
#include "pulls.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "proving.h"
#include "pulling.h"
#include "telling.h"
#include "threads.h"

#define EVENTS 32

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* Somebody asked for something. */
static void look(struct dp_puller *puller) {
    uint64_t count;
    (void)!read(puller->interrupt, &count, sizeof count);
    if (!puller->is_kicked) return;
    puller->is_kicked = 0;
    for (struct connection *connection = puller->connections; connection; connection = connection->next)
        pulling_send_requests(puller, connection);
}

static void handle_event(struct dp_puller *puller, const struct epoll_event *event) {
    pthread_mutex_lock(&puller->lock);
    if (event->data.u64)
        pulling_serve(puller, event->data.u64);
    else
        look(puller);
    pthread_mutex_unlock(&puller->lock);
}

/* While nothing comes. Returns whether there was something to prove. */
static int prove_some(struct dp_puller *puller) {
    pthread_mutex_lock(&puller->lock);
    int proved = proving_some(puller);
    pthread_mutex_unlock(&puller->lock);
    return proved;
}

static void *run(void *argument) {
    struct dp_puller *puller = argument;
    struct epoll_event events[EVENTS];
    int can_prove = 0;
    prctl(PR_SET_NAME, "kvcast-pulls");
    while (!__atomic_load_n(&puller->stop, __ATOMIC_ACQUIRE)) {
        int count = epoll_wait(puller->epoll, events, EVENTS, can_prove ? 0 : -1);
        for (int i = 0; i < count; i++) handle_event(puller, &events[i]);
        can_prove = count > 0 || prove_some(puller);
    }
    return NULL;
}

/* ---- interface --------------------------------------------------------------------------------------------------- */

struct dp_puller *dp_puller_new(const struct dp_puller_config *config) {
    assert(config && config->wake >= 0 && config->window && config->turn_bytes);
    struct dp_puller *puller = calloc(1, sizeof *puller);
    if (!puller) return NULL;
    puller->config = *config;
    puller->told_last = &puller->told;
    puller->plain = blake3_plain();
    pthread_mutex_init(&puller->lock, NULL);
    pthread_cond_init(&puller->received, NULL);
    pthread_cond_init(&puller->resumed, NULL);
    pthread_cond_init(&puller->provable, NULL);
    puller->epoll = epoll_create1(EPOLL_CLOEXEC);
    puller->interrupt = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN};
    if (puller->epoll < 0 || puller->interrupt < 0 ||
        epoll_ctl(puller->epoll, EPOLL_CTL_ADD, puller->interrupt, &event)) {
        dp_puller_free(puller);
        return NULL;
    }
    return puller;
}

int dp_puller_start(struct dp_puller *puller) {
    assert(puller && !puller->started);
    int error = 0;
    while (!error && puller->provers_count < puller->config.provers && puller->provers_count < PROVERS_MAX) {
        error = pthread_create(&puller->provers[puller->provers_count], NULL, proving_run, puller);
        puller->provers_count += !error;
    }
    if (!error) error = pthread_create(&puller->thread, NULL, run, puller);
    puller->started = !error;
    return error;
}

int dp_puller_lend(struct dp_puller *puller, int socket, uint64_t id) {
    assert(puller && socket >= 0 && id);
    struct connection *connection = calloc(1, sizeof *connection);
    struct told *end = malloc(sizeof *end);
    if (!connection || !end) {
        free(connection);
        free(end);
        return ENOMEM;
    }
    connection->end = end;
    connection->id = id;
    connection->socket = socket;
    connection->last = &connection->first;
    connection->low_water = 1;
    connection->progress_ns = now_ns();
    connection->interest = EPOLLIN;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = id};
    pthread_mutex_lock(&puller->lock);
    int error = epoll_ctl(puller->epoll, EPOLL_CTL_ADD, socket, &event) ? errno : 0;
    if (!error) {
        connection->next = puller->connections;
        puller->connections = connection;
    }
    pthread_mutex_unlock(&puller->lock);
    if (error) {
        free(end);
        free(connection);
    }
    return error;
}

/* NULL when there is no memory. */
static struct pull *make_pull(const struct dp_puller *puller, uint64_t id, const struct dp_pull *asked) {
    struct pull *pull = malloc(sizeof *pull + asked->bytes_count);
    struct told *end = malloc(sizeof *end);
    if (!pull || !end) {
        free(pull);
        free(end);
        return NULL;
    }
    *pull = (struct pull){
        .end = end,
        .connection = id,
        .number = asked->number,
        .into = asked->into,
        .size_bytes = asked->size_bytes,
        .leaves = puller->provers_count ? asked->leaves : NULL,
        .pieces = (uint32_t)((asked->size_bytes + DP_PIECE_BYTES - 1) / DP_PIECE_BYTES),
        .count = asked->bytes_count,
    };
    memcpy(pull->bytes, asked->bytes, asked->bytes_count);
    return pull;
}

/* What is the first to be asked leaves at once. The thread, which is awake soon anyhow, sends what follows. */
static void send_soon(struct dp_puller *puller, struct connection *connection) {
    if (!connection->on_wire) {
        pulling_send_requests(puller, connection);
    } else if (connection->on_wire < puller->config.window && !puller->is_kicked) {
        puller->is_kicked = 1;
        write_event(puller->interrupt);
    }
}

int dp_puller_ask(struct dp_puller *puller, uint64_t id, const struct dp_pull *pulls, uint32_t count) {
    assert(puller && (pulls || !count));
    struct pull *made = NULL, **last = &made;
    int error = 0;
    for (uint32_t i = 0; i < count && !error; i++) {
        *last = make_pull(puller, id, &pulls[i]);
        error = *last ? 0 : ENOMEM;
        last = *last ? &(*last)->next : last;
    }
    pthread_mutex_lock(&puller->lock);
    struct connection *connection = pulling_find(puller, id);
    if (made && !error && connection && !connection->over) {
        for (struct pull *pull = made; pull; pull = pull->next) pull->is_held = 1;
        if (!connection->first) connection->progress_ns = now_ns();
        *connection->last = made;
        connection->last = last;
        if (!connection->unsent) connection->unsent = made;
        made = NULL;
        send_soon(puller, connection);
    }
    pthread_mutex_unlock(&puller->lock);
    while (made) {
        struct pull *pull = made;
        made = pull->next;
        telling_free_pull(pull);
    }
    return error;
}

/* Waits until the thread writes to nothing of a connection, which may have ended meanwhile. */
static struct connection *when_still(struct dp_puller *puller, uint64_t id) {
    struct connection *connection;
    puller->waiting++;
    while ((connection = pulling_find(puller, id)) && connection->receiving)
        pthread_cond_wait(&puller->received, &puller->lock);
    if (!--puller->waiting) pthread_cond_signal(&puller->resumed);
    return connection;
}

/* Takes away a pull that nothing has been sent of; of another one, what comes will be thrown away. */
static void give_up(struct dp_puller *puller, struct connection *connection, uint64_t number) {
    int is_sent = 1;
    struct pull **link = &connection->first;
    while (*link) {
        struct pull *pull = *link;
        if (pull == connection->unsent) is_sent = 0;
        if (pull->number == number) {
            pull->into = NULL;
            proving_give_up(puller, pull);
            if (is_sent || pull->sent) return;
            *link = pull->next;
            if (connection->unsent == pull) connection->unsent = pull->next;
            if (connection->last == &pull->next) connection->last = link;
            proving_let_go(puller, pull);
            return;
        }
        link = &pull->next;
    }
}

/* Bytes on their way that nobody wants; 0 where somebody wants any. */
static uint64_t unwanted_bytes(const struct connection *connection) {
    uint64_t bytes = 0;
    for (const struct pull *pull = connection->first; pull; pull = pull->next) {
        if (pull->into) return 0;
        bytes += pull->size_bytes;
    }
    return bytes - (connection->in_body ? connection->have_bytes : 0);
}

/* Leaves out what is told of one pull, or (number 0) of all of a connection. */
static void untell(struct dp_puller *puller, uint64_t id, uint64_t number) {
    struct told **link = &puller->told;
    while (*link) {
        struct told *told = *link;
        if (told->pulled.connection == id && (!number || told->pulled.number == number)) {
            *link = told->next;
            free(told);
        } else {
            link = &told->next;
        }
    }
    puller->told_last = link;
}

void dp_puller_cancel(struct dp_puller *puller, uint64_t id, uint64_t number) {
    assert(puller);
    pthread_mutex_lock(&puller->lock);
    struct connection *connection = when_still(puller, id);
    if (connection) give_up(puller, connection, number);
    proving_forget(puller, id, number);
    untell(puller, id, number);
    pthread_mutex_unlock(&puller->lock);
}

void dp_puller_look(struct dp_puller *puller, uint64_t id, struct dp_pulls *pulls) {
    assert(puller && pulls);
    *pulls = (struct dp_pulls){0};
    pthread_mutex_lock(&puller->lock);
    const struct connection *connection = pulling_find(puller, id);
    if (connection) {
        pulls->received_bytes = connection->received_bytes;
        pulls->progress_ns = connection->progress_ns;
        pulls->unwanted_bytes = unwanted_bytes(connection);
        for (const struct pull *pull = connection->first; pull; pull = pull->next) pulls->unanswered++;
    }
    pthread_mutex_unlock(&puller->lock);
}

/* Frees a connection, which has its place in no list. */
static void discard(struct dp_puller *puller, struct connection *connection) {
    if (!connection->over) epoll_ctl(puller->epoll, EPOLL_CTL_DEL, connection->socket, NULL);
    while (connection->first) {
        struct pull *pull = connection->first;
        connection->first = pull->next;
        proving_let_go(puller, pull);
    }
    free(connection->end);
    free(connection);
}

void dp_puller_end(struct dp_puller *puller, uint64_t id) {
    assert(puller);
    pthread_mutex_lock(&puller->lock);
    struct connection *connection = when_still(puller, id);
    if (connection) {
        struct connection **link = &puller->connections;
        while (*link != connection) link = &(*link)->next;
        *link = connection->next;
        discard(puller, connection);
    }
    proving_forget(puller, id, 0);
    untell(puller, id, 0);
    pthread_mutex_unlock(&puller->lock);
}

uint32_t dp_puller_drain(struct dp_puller *puller, struct dp_pulled *pulled, uint32_t room) {
    assert(puller && pulled && room);
    uint32_t count = 0;
    uint64_t event;
    pthread_mutex_lock(&puller->lock);
    while (puller->told && count < room) {
        struct told *told = puller->told;
        pulled[count++] = told->pulled;
        puller->told = told->next;
        free(told);
    }
    if (!puller->told) {
        puller->told_last = &puller->told;
        if (puller->woken) (void)!read(puller->config.wake, &event, sizeof event);
        puller->woken = 0;
    }
    pthread_mutex_unlock(&puller->lock);
    return count;
}

void dp_puller_free(struct dp_puller *puller) {
    assert(puller);
    pthread_mutex_lock(&puller->lock);
    __atomic_store_n(&puller->stop, 1, __ATOMIC_RELEASE);
    pthread_cond_broadcast(&puller->provable);
    pthread_mutex_unlock(&puller->lock);
    if (puller->started) {
        write_event(puller->interrupt);
        pthread_join(puller->thread, NULL);
    }
    for (uint32_t i = 0; i < puller->provers_count; i++) pthread_join(puller->provers[i], NULL);
    while (puller->connections) {
        struct connection *connection = puller->connections;
        puller->connections = connection->next;
        discard(puller, connection);
    }
    while (puller->told) {
        struct told *told = puller->told;
        puller->told = told->next;
        free(told);
    }
    while (puller->proofs) proving_let_go(puller, puller->proofs);
    pthread_cond_destroy(&puller->provable);
    pthread_cond_destroy(&puller->resumed);
    pthread_cond_destroy(&puller->received);
    pthread_mutex_destroy(&puller->lock);
    if (puller->epoll >= 0) close(puller->epoll);
    if (puller->interrupt >= 0) close(puller->interrupt);
    free(puller);
}
