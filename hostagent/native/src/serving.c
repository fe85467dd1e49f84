/* See serving.h. */
#include "serving.h"

#include <errno.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "bigendian.h"
#include "threads.h"

#define COPIED_BYTES_MAX 65536 /* up to here a copy into the socket costs less than keeping the chunk longer */
#define TURN_BYTES (1 << 20)   /* sent for one connection before others have their turn */
#define TELLS_LOAD ((uint64_t)1 << 63)
#define WANTED_SHIFT 48
#define LOAD_READERS_SHIFT 10
#define LOAD_READERS_MAX 63
#define LOAD_AT 6

void serving_wake(struct dp_server *server) {
    if (!server->woken) write_event(server->config.wake);
    server->woken = 1;
}

/* ---- what is queued ---------------------------------------------------------------------------------------------- */

static void waits_for(struct dp_server *server, struct connection *connection, uint64_t bytes) {
    server->reads.queued_bytes += bytes - connection->queued_bytes;
    server->reads.readers += (bytes > 0) - (connection->queued_bytes > 0);
    connection->queued_bytes = bytes;
    if (!server->since_ns) server->since_ns = now_ns();
}

static void asked(struct dp_server *server, struct connection *connection, uint64_t bytes, uint64_t request) {
    uint64_t wanted = request & TELLS_LOAD ? server->config.levels[request >> WANTED_SHIFT & (DP_LEVELS - 1)] : 0;
    connection->asked_bytes += bytes;
    waits_for(server, connection, wanted > connection->asked_bytes ? wanted : connection->asked_bytes);
}

static void sent(struct dp_server *server, struct connection *connection, uint64_t bytes) {
    uint64_t rest = connection->queued_bytes > bytes ? connection->queued_bytes - bytes : 0;
    connection->asked_bytes -= bytes;
    server->reads.sent_bytes += bytes;
    if (!connection->asked_bytes)
        rest = 0; /* who asks for nothing more may have given up what it wanted */
    else if (rest < connection->asked_bytes)
        rest = connection->asked_bytes;
    waits_for(server, connection, rest);
}

/* The level of an amount: the nearest one that can be said. */
static uint16_t level_of(const uint64_t *levels, uint64_t bytes) {
    uint32_t low = 0, high = DP_LEVELS - 1;
    if (!bytes) return 0;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (levels[middle] < bytes)
            low = middle + 1;
        else
            high = middle;
    }
    if (low > 1 && bytes - levels[low - 1] < levels[low] - bytes) low--;
    return (uint16_t)low;
}

static void set_load(struct dp_server *server, const struct connection *connection, uint8_t *head) {
    int is_known = now_ns() - server->other_ns < 2 * server->config.tell_ns;
    uint64_t bytes = server->reads.queued_bytes - connection->queued_bytes + (is_known ? server->other_bytes : 0);
    uint32_t readers = server->reads.readers - (connection->queued_bytes > 0) + (is_known ? server->other_readers : 0);
    if (readers > LOAD_READERS_MAX) readers = LOAD_READERS_MAX;
    uint16_t load = (uint16_t)(level_of(server->config.levels, bytes) | readers << LOAD_READERS_SHIFT);
    head[LOAD_AT] = (uint8_t)(load >> 8);
    head[LOAD_AT + 1] = (uint8_t)load;
}

/* ---- one connection ---------------------------------------------------------------------------------------------- */

static struct answer *answer_at(struct connection *connection, uint32_t number) {
    return &connection->answers[number % ANSWERS];
}

static void let_go(struct dp_server *server, struct answer *answer) {
    if (answer->lease != NO_LEASE) leases_give_back(&server->leases, answer->lease);
    answer->lease = NO_LEASE;
}

void serving_give_back(struct connection *connection, enum dp_returned_why why) {
    if (!connection->returning || why != DP_RETURNED_UNKNOWN) connection->why = why;
    connection->returning = 1;
}

/* Answers one request, later. 0: it is not the server's, or there is no lease. */
static int take_request(struct dp_server *server, struct connection *connection, const uint8_t *request) {
    const struct dp_server_config *config = &server->config;
    if (memcmp(request, config->request_head, DP_REQUEST_HEAD_BYTES)) return 0;
    uint64_t number = get64be(request + 8), offset = get64be(request + 16), bytes = get64be(request + 24);
    uint64_t at, chunk_bytes;
    uint32_t lease = bytes ? leases_take(&server->leases, request + 32, &at, &chunk_bytes) : NO_LEASE;
    const struct arriving *of = NULL;
    if (lease == NO_LEASE) {
        of = bytes ? arriving_find(&server->arrivings, request + 32) : NULL;
        if (!of || !arriving_has(of, offset, bytes)) return 0;
        at = of->offset;
    } else if (offset > chunk_bytes || bytes > chunk_bytes - offset) {
        leases_give_back(&server->leases, lease);
        return 0;
    }
    struct answer *answer = answer_at(connection, connection->end++);
    *answer = (struct answer){.request = number, .offset = at + offset, .left_bytes = bytes, .of = of, .lease = lease};
    answer->copied = of || bytes <= COPIED_BYTES_MAX || config->pool_file < 0;
    memcpy(answer->head, config->answer_head, DP_ANSWER_HEAD_BYTES);
    put64be(answer->head + 8, number);
    put64be(answer->head + 16, bytes);
    asked(server, connection, bytes, number);
    /* A reader reads a chunk in stripes: it counts once, with the first. */
    if (!offset && server->reads.keys_count < DP_READ_KEYS)
        memcpy(server->reads.keys[server->reads.keys_count++], request + 32, DP_KEY_BYTES);
    return 1;
}

static void take_requests(struct dp_server *server, struct connection *connection) {
    uint32_t at = 0;
    while (!connection->returning && connection->have_bytes - at >= DP_REQUEST_BYTES &&
           connection->end - connection->first < ANSWERS) {
        if (take_request(server, connection, connection->bytes + at))
            at += DP_REQUEST_BYTES;
        else
            serving_give_back(connection, DP_RETURNED_UNKNOWN);
    }
    connection->have_bytes -= at;
    memmove(connection->bytes, connection->bytes + at, connection->have_bytes);
}

static void receive(struct connection *connection) {
    uint32_t room = DP_READ_BYTES - connection->have_bytes;
    if (!room) return;
    ssize_t got = recv(connection->socket, connection->bytes + connection->have_bytes, room, MSG_DONTWAIT);
    if (got > 0)
        connection->have_bytes += (uint32_t)got;
    else if (!got || (errno != EAGAIN && errno != EINTR))
        serving_give_back(connection, DP_RETURNED_ENDED);
    if (got > 0) connection->used_ns = now_ns();
}

/* Hands some of an answer to the socket. Returns how many bytes of the chunk; -1: errno says why not. */
static ssize_t send_some(struct dp_server *server, struct connection *connection, struct answer *answer) {
    uint64_t bytes = answer->left_bytes < TURN_BYTES ? answer->left_bytes : TURN_BYTES;
    uint32_t head_left = DP_ANSWER_BYTES - answer->head_sent;
    struct iovec parts[2] = {
        {answer->head + answer->head_sent, head_left},
        {(uint8_t *)server->config.pool + answer->offset, bytes},
    };
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = answer->copied ? 2 : 1};
    if (!answer->copied && !head_left) {
        off_t from = (off_t)answer->offset;
        return sendfile(connection->socket, server->config.pool_file, &from, bytes);
    }
    int more = answer->copied ? 0 : MSG_MORE;
    ssize_t taken = sendmsg(connection->socket, &message, MSG_DONTWAIT | MSG_NOSIGNAL | more);
    if (taken < 0) return -1;
    uint32_t of_head = taken < head_left ? (uint32_t)taken : head_left;
    answer->head_sent += (uint8_t)of_head;
    connection->sent_bytes += of_head;
    return taken - of_head;
}

/* Sends the next answer, or a part. 0: the socket takes nothing now, or is broken. */
static int write_answer(struct dp_server *server, struct connection *connection, uint64_t *turn_bytes) {
    struct answer *answer = answer_at(connection, connection->unsent);
    if (!answer->head_sent && answer->request & TELLS_LOAD) set_load(server, connection, answer->head);
    uint8_t head_before = answer->head_sent;
    ssize_t taken = send_some(server, connection, answer);
    if (taken < 0 || (!taken && answer->head_sent == head_before)) {
        if (!taken || (errno != EAGAIN && errno != EINTR)) serving_give_back(connection, DP_RETURNED_ENDED);
        return 0;
    }
    answer->offset += (uint64_t)taken;
    answer->left_bytes -= (uint64_t)taken;
    connection->sent_bytes += (uint64_t)taken;
    *turn_bytes += (uint64_t)taken;
    if (taken) sent(server, connection, (uint64_t)taken);
    if (!answer->left_bytes) {
        answer->end_bytes = connection->sent_bytes;
        if (answer->copied) let_go(server, answer);
        connection->unsent++;
    }
    return 1;
}

/* Lets go of what the reader has. */
void serving_look_at_acknowledged(struct dp_server *server, struct connection *connection) {
    int on_way = 0;
    if (ioctl(connection->socket, TIOCOUTQ, &on_way) < 0) return;
    uint64_t acknowledged = connection->sent_bytes - (uint64_t)on_way;
    if (acknowledged != connection->acknowledged_bytes) {
        connection->acknowledged_bytes = acknowledged;
        connection->used_ns = now_ns();
    }
    while (connection->first != connection->unsent) {
        struct answer *answer = answer_at(connection, connection->first);
        if (answer->lease != NO_LEASE && answer->end_bytes > acknowledged) break;
        let_go(server, answer);
        connection->first++;
    }
}

static void watch(struct dp_server *server, struct connection *connection) {
    uint32_t interest = connection->unsent != connection->end ? EPOLLOUT : 0;
    if (!connection->returning && connection->have_bytes < DP_READ_BYTES &&
        connection->end - connection->first < ANSWERS)
        interest |= EPOLLIN;
    if (interest == connection->interest) return;
    struct epoll_event event = {.events = interest, .data.u64 = connection->id};
    epoll_ctl(server->epoll, EPOLL_CTL_MOD, connection->socket, &event);
    connection->interest = interest;
}

/* The server has nothing to do with a connection any more. */
void serving_forget(struct dp_server *server, struct connection *connection) {
    for (struct connection **link = &server->connections; *link; link = &(*link)->next) {
        if (*link == connection) {
            *link = connection->next;
            break;
        }
    }
    epoll_ctl(server->epoll, EPOLL_CTL_DEL, connection->socket, NULL);
    for (uint32_t number = connection->first; number != connection->end; number++)
        let_go(server, answer_at(connection, number));
    waits_for(server, connection, 0);
}

/* Gives a connection back if its time has come. */
static void maybe_return(struct dp_server *server, struct connection *connection) {
    if (!connection->returning || (connection->why == DP_RETURNED_UNKNOWN && connection->first != connection->end))
        return;
    serving_forget(server, connection);
    connection->next = server->returned;
    server->returned = connection;
    serving_wake(server);
}

/* Whether nothing more is answered. */
static int is_over(const struct connection *connection) {
    return connection->returning && connection->why != DP_RETURNED_UNKNOWN;
}

/* Everything that can be done for a connection now, within its turn. */
void serving_serve(struct dp_server *server, struct connection *connection, int is_readable) {
    uint64_t turn_bytes = 0;
    if (is_readable && !connection->returning) receive(connection);
    if (connection->first != connection->unsent) serving_look_at_acknowledged(server, connection);
    do {
        take_requests(server, connection);
        while (connection->unsent != connection->end && turn_bytes < TURN_BYTES && !is_over(connection) &&
               write_answer(server, connection, &turn_bytes));
        while (connection->first != connection->unsent && answer_at(connection, connection->first)->lease == NO_LEASE)
            connection->first++;
        /* Requests that waited for room among the answers may have it now. */
    } while (!connection->returning && connection->unsent == connection->end && turn_bytes < TURN_BYTES &&
             connection->have_bytes >= DP_REQUEST_BYTES && connection->end - connection->first < ANSWERS);
    watch(server, connection);
    maybe_return(server, connection);
}

void serving_arrived(struct dp_server *server, const struct arriving *chunk) {
    struct connection *next;
    for (struct connection *connection = server->connections; connection; connection = next) {
        int is_cut = 0;
        next = connection->next;
        for (uint32_t number = connection->unsent; number != connection->end; number++) {
            struct answer *answer = answer_at(connection, number);
            uint64_t at, chunk_bytes;
            if (answer->of != chunk) continue;
            answer->of = NULL;
            answer->lease = leases_take(&server->leases, chunk->key, &at, &chunk_bytes);
            is_cut |= answer->lease == NO_LEASE || at != chunk->offset;
        }
        if (!is_cut) continue;
        serving_give_back(connection, DP_RETURNED_ENDED);
        serving_serve(server, connection, 0);
    }
}

int serving_waits(const struct connection *connection) { return connection->first != connection->end; }
