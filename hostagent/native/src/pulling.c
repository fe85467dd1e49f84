/* See pulling.h. */
#include "pulling.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include "bigendian.h"
#include "proving.h"
#include "threads.h"

#define VERSION_AT 4
#define STATUS_AT 5
#define LOAD_AT 6
#define NUMBER_AT 8
#define SIZE_AT 16

/* ---- what the caller is told ------------------------------------------------------------------------------------- */

static void wake(struct dp_puller *puller) {
    if (!puller->woken) write_event(puller->config.wake);
    puller->woken = 1;
}

void pulling_tell(struct dp_puller *puller, struct told *told, const struct dp_pulled *pulled) {
    told->next = NULL;
    told->pulled = *pulled;
    *puller->told_last = told;
    puller->told_last = &told->next;
    wake(puller);
}

static void finish(struct dp_puller *puller, struct connection *connection, enum dp_pulled_what what, uint8_t status) {
    connection->over = 1;
    epoll_ctl(puller->epoll, EPOLL_CTL_DEL, connection->socket, NULL);
    proving_hurry(puller, connection->id);
    pulling_tell(puller, connection->end,
                 &(struct dp_pulled){.connection = connection->id, .what = (uint8_t)what, .status = status});
    connection->end = NULL;
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

static void watch(struct dp_puller *puller, struct connection *connection) {
    int can_send = connection->unsent && connection->on_wire < puller->config.window;
    uint32_t interest = EPOLLIN | (can_send ? EPOLLOUT : 0);
    if (connection->over || interest == connection->interest) return;
    struct epoll_event event = {.events = interest, .data.u64 = connection->id};
    epoll_ctl(puller->epoll, EPOLL_CTL_MOD, connection->socket, &event);
    connection->interest = interest;
}

/* After a pause the holder's TCP sends little until it has an acknowledgement, and the kernel keeps those of a
 * connection that asks and is answered back for 40 ms. */
static void acknowledge_at_once(const struct connection *connection) {
    int yes = 1;
    setsockopt(connection->socket, IPPROTO_TCP, TCP_QUICKACK, &yes, sizeof yes);
}

/* Sends as many requests as may be on the wire. */
void pulling_send_requests(struct dp_puller *puller, struct connection *connection) {
    int sent_any = 0;
    while (!connection->over && connection->unsent && connection->on_wire < puller->config.window) {
        struct pull *pull = connection->unsent;
        int more = pull->next && connection->on_wire + 1 < puller->config.window ? MSG_MORE : 0;
        ssize_t taken = send(connection->socket, pull->bytes + pull->sent, pull->count - pull->sent,
                             MSG_DONTWAIT | MSG_NOSIGNAL | more);
        if (taken < 0) {
            if (errno != EAGAIN && errno != EINTR) finish(puller, connection, DP_PULLED_ENDED, 0);
            break;
        }
        sent_any = 1;
        pull->sent += (uint32_t)taken;
        if (pull->sent < pull->count) break;
        connection->unsent = pull->next;
        connection->on_wire++;
    }
    if (sent_any && !connection->over) acknowledge_at_once(connection);
    watch(puller, connection);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

void pulling_free_pull(struct pull *pull) {
    if (pull) free(pull->end);
    free(pull);
}

static void set_low_water(const struct dp_puller *puller, struct connection *connection) {
    uint64_t left = connection->in_body ? connection->first->size_bytes - connection->have_bytes : 1;
    int wanted = left < puller->config.low_water_bytes ? (int)left : (int)puller->config.low_water_bytes;
    if (wanted == connection->low_water) return;
    connection->low_water = wanted;
    setsockopt(connection->socket, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
}

static void pull_over(struct dp_puller *puller, struct connection *connection, enum dp_pulled_what what,
                      uint8_t status) {
    struct pull *pull = connection->first;
    connection->first = pull->next;
    if (!connection->first) connection->last = &connection->first;
    connection->on_wire--;
    connection->in_body = 0;
    connection->told_ns = connection->progress_ns;
    struct dp_pulled pulled = {
        .connection = connection->id,
        .number = pull->number,
        .have_bytes = connection->have_bytes,
        .load = connection->load,
        .what = (uint8_t)what,
        .status = status,
    };
    connection->have_bytes = 0;
    if (pull->leaves && what == DP_PULLED_ALL) {
        proving_finish(puller, pull, &pulled);
        return;
    }
    if (pull->into) {
        pulling_tell(puller, pull->end, &pulled);
        pull->end = NULL;
    }
    proving_let_go(puller, pull);
}

/* Without memory nobody hears of a part; the whole is told. */
static void tell_part(struct dp_puller *puller, struct connection *connection) {
    connection->told_bytes = connection->have_bytes;
    connection->told_ns = connection->progress_ns;
    struct told *told = connection->first->into ? malloc(sizeof *told) : NULL;
    if (told)
        pulling_tell(puller, told,
                     &(struct dp_pulled){
                         .connection = connection->id,
                         .number = connection->first->number,
                         .have_bytes = connection->have_bytes,
                         .load = connection->load,
                         .what = DP_PULLED_PART,
                     });
}

/* An answer's head is whole. */
static void take_head(struct dp_puller *puller, struct connection *connection) {
    const uint8_t *head = connection->head;
    uint8_t status = head[STATUS_AT];
    const struct pull *pull = connection->on_wire ? connection->first : NULL;
    connection->head_have = 0;
    connection->load = (uint16_t)(head[LOAD_AT] << 8 | head[LOAD_AT + 1]);
    if (memcmp(head, puller->config.magic, DP_PULL_MAGIC_BYTES)) {
        finish(puller, connection, DP_PULLED_MALFORMED, 0);
    } else if (head[VERSION_AT] != puller->config.version) {
        finish(puller, connection, DP_PULLED_VERSION, head[VERSION_AT]);
    } else if (!pull || get64be(head + NUMBER_AT) != pull->number ||
               (!status && get64be(head + SIZE_AT) != pull->size_bytes)) {
        finish(puller, connection, DP_PULLED_MALFORMED, 0);
    } else if (status) {
        pull_over(puller, connection, DP_PULLED_REFUSED, status);
    } else {
        connection->in_body = 1;
        connection->have_bytes = connection->told_bytes = 0;
        if (connection->load) tell_part(puller, connection);
    }
}

/* Receives once: the rest of a range and the head after it, or a head. Returns recv's result. */
static ssize_t receive(struct dp_puller *puller, struct connection *connection) {
    if (!connection->in_body)
        return recv(connection->socket, connection->head + connection->head_have,
                    DP_PULL_ANSWER_BYTES - connection->head_have, MSG_DONTWAIT);
    uint8_t *into = connection->first->into;
    uint64_t left = connection->first->size_bytes - connection->have_bytes;
    uint64_t room = into ? left : left < SCRATCH_BYTES ? left : SCRATCH_BYTES;
    if (room > puller->config.turn_bytes) room = puller->config.turn_bytes;
    struct iovec parts[2] = {
        {into ? into + connection->have_bytes : puller->scratch, room},
        {connection->head, DP_PULL_ANSWER_BYTES},
    };
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = room == left ? 2 : 1};
    int error;
    connection->receiving = 1;
    pthread_mutex_unlock(&puller->lock);
    ssize_t got = recvmsg(connection->socket, &message, MSG_DONTWAIT);
    error = errno;
    pthread_mutex_lock(&puller->lock);
    connection->receiving = 0;
    pthread_cond_broadcast(&puller->received);
    errno = error;
    return got;
}

/* What one call received. */
static void take(struct dp_puller *puller, struct connection *connection, uint64_t got) {
    connection->progress_ns = now_ns();
    if (connection->in_body) {
        uint64_t left = connection->first->size_bytes - connection->have_bytes;
        uint64_t of_body = got < left ? got : left;
        connection->have_bytes += of_body;
        connection->received_bytes += of_body;
        got -= of_body;
        if (connection->first->leaves) proving_came(puller, connection->first, connection->have_bytes);
        if (of_body == left)
            pull_over(puller, connection, DP_PULLED_ALL, 0);
        else if (connection->have_bytes - connection->told_bytes >= puller->config.tell_bytes &&
                 connection->progress_ns - connection->told_ns >= puller->config.tell_ns)
            tell_part(puller, connection);
    }
    connection->head_have += (uint32_t)got;
    if (connection->head_have == DP_PULL_ANSWER_BYTES) take_head(puller, connection);
}

struct connection *pulling_find(const struct dp_puller *puller, uint64_t id) {
    struct connection *connection = puller->connections;
    while (connection && connection->id != id) connection = connection->next;
    return connection;
}

static struct connection *find_when_nobody_waits(struct dp_puller *puller, uint64_t id) {
    while (puller->waiting) pthread_cond_wait(&puller->resumed, &puller->lock);
    return pulling_find(puller, id);
}

/* Receives what has come, within its turn. */
void pulling_serve(struct dp_puller *puller, uint64_t id) {
    uint64_t turn_bytes = 0;
    struct connection *connection;
    while ((connection = find_when_nobody_waits(puller, id)) && !connection->over) {
        if (!turn_bytes) acknowledge_at_once(connection);
        ssize_t got = turn_bytes < puller->config.turn_bytes ? receive(puller, connection) : -1;
        if (turn_bytes >= puller->config.turn_bytes || (got < 0 && (errno == EAGAIN || errno == EINTR))) {
            set_low_water(puller, connection);
            pulling_send_requests(puller, connection);
            return;
        }
        if (got <= 0) {
            finish(puller, connection, DP_PULLED_ENDED, 0);
            return;
        }
        turn_bytes += (uint64_t)got;
        take(puller, connection, (uint64_t)got);
    }
}
