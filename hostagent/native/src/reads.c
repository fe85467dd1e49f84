/* See reads.h. One lock guards all; the thread lets go of it between connections, and does a bounded part for each. */
#include "reads.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include "serving.h"
#include "threads.h"

#define EVENTS 32
#define TICK_NS 20000000      /* how often a chunk is looked at that a reader may have acknowledged */
#define TICK_NS_HURRY 1000000 /* the same for a connection that is to go back */

static struct connection *find(struct connection *connection, uint64_t id) {
    while (connection && connection->id != id) connection = connection->next;
    return connection;
}

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* Looks at the connections for which no event may come. */
static void tick(struct dp_server *server, int64_t at_ns) {
    struct connection *next;
    server->tick_ns = 0;
    for (struct connection *connection = server->connections; connection; connection = next) {
        next = connection->next;
        if (!serving_waits(connection) && !connection->returning) continue;
        serving_look_at_acknowledged(server, connection);
        if (serving_waits(connection) && at_ns - connection->used_ns >= server->config.stall_ns)
            serving_give_back(connection, DP_RETURNED_STALLED);
        serving_serve(server, connection, 0);
    }
}

/* Returns milliseconds until something is due; -1: nothing is. */
static int next_wait(struct dp_server *server, int64_t at_ns) {
    int64_t tick_ns = 0;
    for (struct connection *connection = server->connections; connection; connection = connection->next) {
        if (connection->returning)
            tick_ns = TICK_NS_HURRY;
        else if (serving_waits(connection) && !tick_ns)
            tick_ns = TICK_NS;
    }
    if (!tick_ns || !server->tick_ns || server->tick_ns > at_ns + tick_ns)
        server->tick_ns = tick_ns ? at_ns + tick_ns : 0;
    int64_t due_ns = server->tick_ns;
    if (server->since_ns && !server->woken) {
        int64_t tell_ns = server->since_ns + server->config.tell_ns;
        due_ns = !due_ns || tell_ns < due_ns ? tell_ns : due_ns;
    }
    if (!due_ns) return -1;
    return due_ns <= at_ns ? 0 : (int)((due_ns - at_ns) / 1000000) + 1;
}

static void handle_event(struct dp_server *server, const struct epoll_event *event) {
    uint64_t count;
    if (!event->data.u64) {
        (void)!read(server->interrupt, &count, sizeof count);
        return;
    }
    pthread_mutex_lock(&server->lock);
    struct connection *connection = find(server->connections, event->data.u64);
    if (connection) {
        if (event->events & (EPOLLERR | EPOLLHUP)) serving_give_back(connection, DP_RETURNED_ENDED);
        serving_serve(server, connection, event->events & EPOLLIN);
    }
    pthread_mutex_unlock(&server->lock);
}

static void *run(void *argument) {
    struct dp_server *server = argument;
    struct epoll_event events[EVENTS];
    int wait_ms = -1;
    prctl(PR_SET_NAME, "kvcast-reads");
    while (!__atomic_load_n(&server->stop, __ATOMIC_ACQUIRE)) {
        int count = epoll_wait(server->epoll, events, EVENTS, wait_ms);
        for (int i = 0; i < count; i++) handle_event(server, &events[i]);
        pthread_mutex_lock(&server->lock);
        int64_t at_ns = now_ns();
        if (server->tick_ns && at_ns >= server->tick_ns) tick(server, at_ns);
        if (server->since_ns && at_ns - server->since_ns >= server->config.tell_ns) serving_wake(server);
        wait_ms = next_wait(server, at_ns);
        pthread_mutex_unlock(&server->lock);
    }
    return NULL;
}

/* ---- interface --------------------------------------------------------------------------------------------------- */

struct dp_server *dp_server_new(const struct dp_server_config *config) {
    assert(config && config->pool && config->catalog && config->table && config->levels && config->wake >= 0);
    struct dp_server *server = calloc(1, sizeof *server);
    if (!server) return NULL;
    server->config = *config;
    pthread_mutex_init(&server->lock, NULL);
    leases_begin(&server->leases, config->catalog, config->table, config->pool_bytes);
    server->epoll = epoll_create1(EPOLL_CLOEXEC);
    server->interrupt = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN};
    if (server->epoll < 0 || server->interrupt < 0 ||
        epoll_ctl(server->epoll, EPOLL_CTL_ADD, server->interrupt, &event)) {
        dp_server_free(server);
        return NULL;
    }
    return server;
}

int dp_server_start(struct dp_server *server) {
    assert(server && !server->started);
    int error = pthread_create(&server->thread, NULL, run, server);
    server->started = !error;
    return error;
}

int dp_server_lend(struct dp_server *server, int socket, uint64_t id) {
    assert(server && socket >= 0 && id);
    struct connection *connection = calloc(1, sizeof *connection);
    if (!connection) return ENOMEM;
    connection->id = id;
    connection->socket = socket;
    connection->used_ns = now_ns();
    connection->interest = EPOLLIN;
    struct epoll_event event = {.events = EPOLLIN, .data.u64 = id};
    pthread_mutex_lock(&server->lock);
    int error = epoll_ctl(server->epoll, EPOLL_CTL_ADD, socket, &event) ? errno : 0;
    if (!error) {
        connection->next = server->connections;
        server->connections = connection;
    }
    pthread_mutex_unlock(&server->lock);
    if (error) free(connection);
    return error;
}

void dp_server_recall(struct dp_server *server, uint64_t id) {
    assert(server);
    pthread_mutex_lock(&server->lock);
    struct connection *connection = find(server->connections, id);
    if (connection) {
        serving_give_back(connection, DP_RETURNED_UNKNOWN);
        serving_serve(server, connection, 0);
    }
    pthread_mutex_unlock(&server->lock);
    write_event(server->interrupt);
}

void dp_server_end(struct dp_server *server, uint64_t id) {
    assert(server);
    pthread_mutex_lock(&server->lock);
    struct connection *connection = find(server->connections, id);
    if (connection) {
        serving_forget(server, connection);
    } else {
        struct connection **link = &server->returned;
        while (*link && (*link)->id != id) link = &(*link)->next;
        connection = *link;
        if (connection) *link = connection->next;
    }
    pthread_mutex_unlock(&server->lock);
    free(connection);
}

int dp_server_is_idle(struct dp_server *server, uint64_t id, int64_t *used_ns) {
    assert(server && used_ns);
    pthread_mutex_lock(&server->lock);
    struct connection *connection = find(server->connections, id);
    if (connection && connection->first != connection->unsent) serving_look_at_acknowledged(server, connection);
    int is_idle = connection && !connection->returning && !serving_waits(connection);
    *used_ns = connection ? connection->used_ns : 0;
    pthread_mutex_unlock(&server->lock);
    return is_idle;
}

void dp_server_set_other_load(struct dp_server *server, uint64_t bytes, uint32_t readers) {
    assert(server);
    pthread_mutex_lock(&server->lock);
    server->other_bytes = bytes;
    server->other_readers = readers;
    server->other_ns = now_ns();
    pthread_mutex_unlock(&server->lock);
}

int dp_server_show(struct dp_server *server, const struct dp_part *part) {
    assert(server && part && part->offset <= server->config.pool_bytes &&
           part->size_bytes <= server->config.pool_bytes - part->offset);
    struct arriving chunk = {.offset = part->offset, .size_bytes = part->size_bytes};
    memcpy(chunk.key, part->key, sizeof chunk.key);
    pthread_mutex_lock(&server->lock);
    int error = arriving_show(&server->arrivings, &chunk, part->first, part->count);
    pthread_mutex_unlock(&server->lock);
    return error;
}

void dp_server_hide(struct dp_server *server, const uint8_t *key) {
    assert(server && key);
    pthread_mutex_lock(&server->lock);
    struct arriving *chunk = arriving_take(&server->arrivings, key);
    if (chunk) serving_arrived(server, chunk);
    pthread_mutex_unlock(&server->lock);
    free(chunk);
}

int dp_server_take_returned(struct dp_server *server, struct dp_returned *returned) {
    assert(server && returned);
    pthread_mutex_lock(&server->lock);
    struct connection *connection = server->returned;
    if (connection) server->returned = connection->next;
    pthread_mutex_unlock(&server->lock);
    if (!connection) return 0;
    returned->id = connection->id;
    returned->why = connection->why;
    returned->size_bytes = connection->have_bytes;
    memcpy(returned->bytes, connection->bytes, connection->have_bytes);
    free(connection);
    return 1;
}

void dp_server_drain(struct dp_server *server, struct dp_reads *reads) {
    assert(server && reads);
    uint64_t event;
    pthread_mutex_lock(&server->lock);
    if (server->woken) (void)!read(server->config.wake, &event, sizeof event);
    server->woken = 0;
    server->since_ns = 0;
    uint32_t count = server->reads.keys_count;
    memcpy(reads, &server->reads, offsetof(struct dp_reads, keys) + (size_t)count * DP_KEY_BYTES);
    server->reads.keys_count = 0;
    pthread_mutex_unlock(&server->lock);
}

void dp_server_free(struct dp_server *server) {
    assert(server);
    if (server->started) {
        __atomic_store_n(&server->stop, 1, __ATOMIC_RELEASE);
        write_event(server->interrupt);
        pthread_join(server->thread, NULL);
    }
    while (server->connections) {
        struct connection *connection = server->connections;
        serving_forget(server, connection);
        free(connection);
    }
    while (server->returned) {
        struct connection *connection = server->returned;
        server->returned = connection->next;
        free(connection);
    }
    arriving_free_all(&server->arrivings);
    pthread_mutex_destroy(&server->lock);
    if (server->epoll >= 0) close(server->epoll);
    if (server->interrupt >= 0) close(server->interrupt);
    free(server);
}
