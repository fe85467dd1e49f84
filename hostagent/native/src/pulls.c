/* See pulls.h. One lock guards all; it is never held while bytes of a range are received. */
#include "pulls.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include "bigendian.h"
#include "threads.h"

#define EVENTS 32
#define SCRATCH_BYTES 65536
#define VERSION_AT 4
#define STATUS_AT 5
#define LOAD_AT 6
#define NUMBER_AT 8
#define SIZE_AT 16

struct told {
    struct told *next;
    struct dp_pulled pulled;
};

struct pull {
    struct pull *next;
    struct told *end;   /* room to tell that it is over */
    uint64_t number;
    uint8_t *into;      /* NULL: nobody wants it any more */
    uint64_t size_bytes;
    uint32_t count;
    uint32_t sent;      /* of `bytes` */
    uint8_t bytes[];
};

struct connection {
    struct connection *next;
    uint64_t id;
    int socket;
    int over;             /* nothing is received or sent any more */
    uint32_t interest;    /* what epoll watches for */
    int low_water;        /* of the socket */
    struct pull *first, **last; /* in the order of asking; the first is the one that is being answered */
    struct pull *unsent;  /* the first of those that are not sent, whole or in part */
    uint32_t on_wire;     /* pulls before `unsent` */
    int receiving;        /* the thread writes into the first pull, without the lock */
    uint32_t head_have;
    int in_body;
    uint64_t have_bytes;  /* of the first pull */
    uint64_t told_bytes;
    uint64_t received_bytes;
    int64_t progress_ns;
    uint16_t load;        /* from the head of the first pull's answer */
    struct told *end;     /* room to tell that it is over */
    uint8_t head[DP_PULL_ANSWER_BYTES];
};

struct dp_puller {
    struct dp_puller_config config;
    int epoll, interrupt;
    pthread_t thread;
    int started, stop;

    pthread_mutex_t lock;
    pthread_cond_t received, resumed;
    int waiting;          /* threads that wait until the thread writes to nothing; it lets them go first */
    struct connection *connections;
    struct told *told, **told_last;
    int woken;
    uint8_t scratch[SCRATCH_BYTES];
};

/* ---- what the caller is told ------------------------------------------------------------------------------------- */

static void wake(struct dp_puller *puller)
{
    if (!puller->woken)
        write_event(puller->config.wake);
    puller->woken = 1;
}

static void tell(struct dp_puller *puller, struct told *told, const struct dp_pulled *pulled)
{
    told->next = NULL;
    told->pulled = *pulled;
    *puller->told_last = told;
    puller->told_last = &told->next;
    wake(puller);
}

static void finish(struct dp_puller *puller, struct connection *connection, enum dp_pulled_what what, uint8_t status)
{
    connection->over = 1;
    epoll_ctl(puller->epoll, EPOLL_CTL_DEL, connection->socket, NULL);
    tell(puller, connection->end,
         &(struct dp_pulled){.connection = connection->id, .what = (uint8_t)what, .status = status});
    connection->end = NULL;
}

/* ---- asking ------------------------------------------------------------------------------------------------------ */

static void watch(struct dp_puller *puller, struct connection *connection)
{
    int can_send = connection->unsent && connection->on_wire < puller->config.window;
    uint32_t interest = EPOLLIN | (can_send ? EPOLLOUT : 0);
    if (connection->over || interest == connection->interest)
        return;
    struct epoll_event event = {.events = interest, .data.u64 = connection->id};
    epoll_ctl(puller->epoll, EPOLL_CTL_MOD, connection->socket, &event);
    connection->interest = interest;
}

/* After a pause the holder's TCP sends little until it has an acknowledgement, and the kernel keeps those of a
 * connection that asks and is answered back for 40 ms. */
static void acknowledge_at_once(const struct connection *connection)
{
    int yes = 1;
    setsockopt(connection->socket, IPPROTO_TCP, TCP_QUICKACK, &yes, sizeof yes);
}

/* Sends as many requests as may be on the wire. */
static void send_requests(struct dp_puller *puller, struct connection *connection)
{
    int sent_any = 0;
    while (!connection->over && connection->unsent && connection->on_wire < puller->config.window) {
        struct pull *pull = connection->unsent;
        ssize_t taken = send(connection->socket, pull->bytes + pull->sent, pull->count - pull->sent,
                             MSG_DONTWAIT | MSG_NOSIGNAL);
        if (taken < 0) {
            if (errno != EAGAIN && errno != EINTR)
                finish(puller, connection, DP_PULLED_ENDED, 0);
            break;
        }
        sent_any = 1;
        pull->sent += (uint32_t)taken;
        if (pull->sent < pull->count)
            break;
        connection->unsent = pull->next;
        connection->on_wire++;
    }
    if (sent_any && !connection->over)
        acknowledge_at_once(connection);
    watch(puller, connection);
}

/* ---- answers ----------------------------------------------------------------------------------------------------- */

static void free_pull(struct pull *pull)
{
    if (pull)
        free(pull->end);
    free(pull);
}

static void set_low_water(const struct dp_puller *puller, struct connection *connection)
{
    uint64_t left = connection->in_body ? connection->first->size_bytes - connection->have_bytes : 1;
    int wanted = left < puller->config.low_water_bytes ? (int)left : (int)puller->config.low_water_bytes;
    if (wanted == connection->low_water)
        return;
    connection->low_water = wanted;
    setsockopt(connection->socket, SOL_SOCKET, SO_RCVLOWAT, &wanted, sizeof wanted);
}

static void pull_over(struct dp_puller *puller, struct connection *connection, enum dp_pulled_what what,
                      uint8_t status)
{
    struct pull *pull = connection->first;
    connection->first = pull->next;
    if (!connection->first)
        connection->last = &connection->first;
    connection->on_wire--;
    connection->in_body = 0;
    if (pull->into) {
        tell(puller, pull->end, &(struct dp_pulled){
            .connection = connection->id,
            .number = pull->number,
            .have_bytes = connection->have_bytes,
            .load = connection->load,
            .what = (uint8_t)what,
            .status = status,
        });
        pull->end = NULL;
    }
    connection->have_bytes = 0;
    free_pull(pull);
}

/* Without memory nobody hears of a part; the whole is told. */
static void tell_part(struct dp_puller *puller, struct connection *connection)
{
    connection->told_bytes = connection->have_bytes;
    struct told *told = connection->first->into ? malloc(sizeof *told) : NULL;
    if (told)
        tell(puller, told, &(struct dp_pulled){
            .connection = connection->id,
            .number = connection->first->number,
            .have_bytes = connection->have_bytes,
            .load = connection->load,
            .what = DP_PULLED_PART,
        });
}

/* An answer's head is whole. */
static void take_head(struct dp_puller *puller, struct connection *connection)
{
    const uint8_t *head = connection->head;
    uint8_t status = head[STATUS_AT];
    const struct pull *pull = connection->on_wire ? connection->first : NULL;
    connection->head_have = 0;
    connection->load = (uint16_t)(head[LOAD_AT] << 8 | head[LOAD_AT + 1]);
    if (memcmp(head, puller->config.magic, DP_PULL_MAGIC_BYTES)) {
        finish(puller, connection, DP_PULLED_MALFORMED, 0);
    } else if (head[VERSION_AT] != puller->config.version) {
        finish(puller, connection, DP_PULLED_VERSION, head[VERSION_AT]);
    } else if (!pull || get64be(head + NUMBER_AT) != pull->number
               || (!status && get64be(head + SIZE_AT) != pull->size_bytes)) {
        finish(puller, connection, DP_PULLED_MALFORMED, 0);
    } else if (status) {
        pull_over(puller, connection, DP_PULLED_REFUSED, status);
    } else {
        connection->in_body = 1;
        connection->have_bytes = connection->told_bytes = 0;
        if (connection->load)
            tell_part(puller, connection);
    }
}

/* Receives once: the rest of a range and the head after it, or a head. Returns recv's result. */
static ssize_t receive(struct dp_puller *puller, struct connection *connection)
{
    if (!connection->in_body)
        return recv(connection->socket, connection->head + connection->head_have,
                    DP_PULL_ANSWER_BYTES - connection->head_have, MSG_DONTWAIT);
    uint8_t *into = connection->first->into;
    uint64_t left = connection->first->size_bytes - connection->have_bytes;
    uint64_t room = into ? left : left < SCRATCH_BYTES ? left : SCRATCH_BYTES;
    if (room > puller->config.turn_bytes)
        room = puller->config.turn_bytes;
    struct iovec parts[2] = {
        {into ? into + connection->have_bytes : puller->scratch, room}, {connection->head, DP_PULL_ANSWER_BYTES},
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
static void take(struct dp_puller *puller, struct connection *connection, uint64_t got)
{
    connection->progress_ns = now_ns();
    if (connection->in_body) {
        uint64_t left = connection->first->size_bytes - connection->have_bytes;
        uint64_t of_body = got < left ? got : left;
        connection->have_bytes += of_body;
        connection->received_bytes += of_body;
        got -= of_body;
        if (of_body == left)
            pull_over(puller, connection, DP_PULLED_ALL, 0);
        else if (connection->have_bytes - connection->told_bytes >= puller->config.tell_bytes)
            tell_part(puller, connection);
    }
    connection->head_have += (uint32_t)got;
    if (connection->head_have == DP_PULL_ANSWER_BYTES)
        take_head(puller, connection);
}

static struct connection *find(const struct dp_puller *puller, uint64_t id)
{
    struct connection *connection = puller->connections;
    while (connection && connection->id != id)
        connection = connection->next;
    return connection;
}

static struct connection *find_when_nobody_waits(struct dp_puller *puller, uint64_t id)
{
    while (puller->waiting)
        pthread_cond_wait(&puller->resumed, &puller->lock);
    return find(puller, id);
}

/* Receives what has come, within its turn. */
static void serve(struct dp_puller *puller, uint64_t id)
{
    uint64_t turn_bytes = 0;
    struct connection *connection;
    while ((connection = find_when_nobody_waits(puller, id)) && !connection->over) {
        if (!turn_bytes)
            acknowledge_at_once(connection);
        ssize_t got = turn_bytes < puller->config.turn_bytes ? receive(puller, connection) : -1;
        if (turn_bytes >= puller->config.turn_bytes || (got < 0 && (errno == EAGAIN || errno == EINTR))) {
            set_low_water(puller, connection);
            send_requests(puller, connection);
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

/* ---- the thread -------------------------------------------------------------------------------------------------- */

static void handle_event(struct dp_puller *puller, const struct epoll_event *event)
{
    uint64_t count;
    if (!event->data.u64) {
        (void)!read(puller->interrupt, &count, sizeof count);
        return;
    }
    pthread_mutex_lock(&puller->lock);
    serve(puller, event->data.u64);
    pthread_mutex_unlock(&puller->lock);
}

static void *run(void *argument)
{
    struct dp_puller *puller = argument;
    struct epoll_event events[EVENTS];
    prctl(PR_SET_NAME, "kvcast-pulls");
    while (!__atomic_load_n(&puller->stop, __ATOMIC_ACQUIRE)) {
        int count = epoll_wait(puller->epoll, events, EVENTS, -1);
        for (int i = 0; i < count; i++)
            handle_event(puller, &events[i]);
    }
    return NULL;
}

/* ---- interface --------------------------------------------------------------------------------------------------- */

struct dp_puller *dp_puller_new(const struct dp_puller_config *config)
{
    struct dp_puller *puller = calloc(1, sizeof *puller);
    if (!puller)
        return NULL;
    puller->config = *config;
    puller->told_last = &puller->told;
    pthread_mutex_init(&puller->lock, NULL);
    pthread_cond_init(&puller->received, NULL);
    pthread_cond_init(&puller->resumed, NULL);
    puller->epoll = epoll_create1(EPOLL_CLOEXEC);
    puller->interrupt = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    struct epoll_event event = {.events = EPOLLIN};
    if (puller->epoll < 0 || puller->interrupt < 0
        || epoll_ctl(puller->epoll, EPOLL_CTL_ADD, puller->interrupt, &event)) {
        dp_puller_free(puller);
        return NULL;
    }
    return puller;
}

int dp_puller_start(struct dp_puller *puller)
{
    int error = pthread_create(&puller->thread, NULL, run, puller);
    puller->started = !error;
    return error;
}

int dp_puller_lend(struct dp_puller *puller, int socket, uint64_t id)
{
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

int dp_puller_ask(struct dp_puller *puller, uint64_t id, const struct dp_pull *asked)
{
    struct pull *pull = malloc(sizeof *pull + asked->bytes_count);
    struct told *end = malloc(sizeof *end);
    if (!pull || !end) {
        free(pull);
        free(end);
        return ENOMEM;
    }
    *pull = (struct pull){
        .end = end,
        .number = asked->number,
        .into = asked->into,
        .size_bytes = asked->size_bytes,
        .count = asked->bytes_count,
    };
    memcpy(pull->bytes, asked->bytes, asked->bytes_count);
    pthread_mutex_lock(&puller->lock);
    struct connection *connection = find(puller, id);
    if (connection && !connection->over) {
        if (!connection->first)
            connection->progress_ns = now_ns();
        *connection->last = pull;
        connection->last = &pull->next;
        if (!connection->unsent)
            connection->unsent = pull;
        send_requests(puller, connection);
        pull = NULL;
    }
    pthread_mutex_unlock(&puller->lock);
    free_pull(pull);
    return 0;
}

/* Waits until the thread writes to nothing of a connection, which may have ended meanwhile. */
static struct connection *when_still(struct dp_puller *puller, uint64_t id)
{
    struct connection *connection;
    puller->waiting++;
    while ((connection = find(puller, id)) && connection->receiving)
        pthread_cond_wait(&puller->received, &puller->lock);
    if (!--puller->waiting)
        pthread_cond_signal(&puller->resumed);
    return connection;
}

/* Takes away a pull that nothing has been sent of; of another one, what comes will be thrown away. */
static void give_up(struct connection *connection, uint64_t number)
{
    int is_sent = 1;
    struct pull **link = &connection->first;
    while (*link) {
        struct pull *pull = *link;
        if (pull == connection->unsent)
            is_sent = 0;
        if (pull->number == number) {
            pull->into = NULL;
            if (is_sent || pull->sent)
                return;
            *link = pull->next;
            if (connection->unsent == pull)
                connection->unsent = pull->next;
            if (connection->last == &pull->next)
                connection->last = link;
            free_pull(pull);
            return;
        }
        link = &pull->next;
    }
}

/* Bytes on their way that nobody wants; 0 where somebody wants any. */
static uint64_t unwanted_bytes(const struct connection *connection)
{
    uint64_t bytes = 0;
    for (const struct pull *pull = connection->first; pull; pull = pull->next) {
        if (pull->into)
            return 0;
        bytes += pull->size_bytes;
    }
    return bytes - (connection->in_body ? connection->have_bytes : 0);
}

/* Leaves out what is told of one pull, or (number 0) of all of a connection. */
static void untell(struct dp_puller *puller, uint64_t id, uint64_t number)
{
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

void dp_puller_cancel(struct dp_puller *puller, uint64_t id, uint64_t number)
{
    pthread_mutex_lock(&puller->lock);
    struct connection *connection = when_still(puller, id);
    if (connection)
        give_up(connection, number);
    untell(puller, id, number);
    pthread_mutex_unlock(&puller->lock);
}

void dp_puller_look(struct dp_puller *puller, uint64_t id, struct dp_pulls *pulls)
{
    *pulls = (struct dp_pulls){0};
    pthread_mutex_lock(&puller->lock);
    const struct connection *connection = find(puller, id);
    if (connection) {
        pulls->received_bytes = connection->received_bytes;
        pulls->progress_ns = connection->progress_ns;
        pulls->unwanted_bytes = unwanted_bytes(connection);
        for (const struct pull *pull = connection->first; pull; pull = pull->next)
            pulls->unanswered++;
    }
    pthread_mutex_unlock(&puller->lock);
}

/* Frees a connection, which has its place in no list. */
static void discard(struct dp_puller *puller, struct connection *connection)
{
    if (!connection->over)
        epoll_ctl(puller->epoll, EPOLL_CTL_DEL, connection->socket, NULL);
    while (connection->first) {
        struct pull *pull = connection->first;
        connection->first = pull->next;
        free_pull(pull);
    }
    free(connection->end);
    free(connection);
}

void dp_puller_end(struct dp_puller *puller, uint64_t id)
{
    pthread_mutex_lock(&puller->lock);
    struct connection *connection = when_still(puller, id);
    if (connection) {
        struct connection **link = &puller->connections;
        while (*link != connection)
            link = &(*link)->next;
        *link = connection->next;
        discard(puller, connection);
    }
    untell(puller, id, 0);
    pthread_mutex_unlock(&puller->lock);
}

uint32_t dp_puller_drain(struct dp_puller *puller, struct dp_pulled *pulled, uint32_t room)
{
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
        if (puller->woken)
            (void)!read(puller->config.wake, &event, sizeof event);
        puller->woken = 0;
    }
    pthread_mutex_unlock(&puller->lock);
    return count;
}

void dp_puller_free(struct dp_puller *puller)
{
    if (puller->started) {
        __atomic_store_n(&puller->stop, 1, __ATOMIC_RELEASE);
        write_event(puller->interrupt);
        pthread_join(puller->thread, NULL);
    }
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
    pthread_cond_destroy(&puller->resumed);
    pthread_cond_destroy(&puller->received);
    pthread_mutex_destroy(&puller->lock);
    if (puller->epoll >= 0)
        close(puller->epoll);
    if (puller->interrupt >= 0)
        close(puller->interrupt);
    free(puller);
}

const uint32_t dp_pull_structure_bytes[4] = {
    sizeof(struct dp_puller_config), sizeof(struct dp_pull), sizeof(struct dp_pulled), sizeof(struct dp_pulls),
};
