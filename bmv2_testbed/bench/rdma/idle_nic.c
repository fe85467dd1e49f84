/* A NIC that has done everything before it is asked: its library's part, at no cost. For figures of the data path's own
 * work.
 *
 * Receiving: each posted row is complete at once, in order, as many as `left` says. Sending, and READs: each request is
 * complete as soon as it is posted; there is one queue of completions for all. Its callers take turns. */
#include <stddef.h>
#include <stdint.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

struct idle_nic {
    uint32_t rows_count;
    uint32_t next_row;
    uint32_t posted;
    uint32_t left;
    uint32_t bytes;
    uint32_t number;
};

struct completion { /* struct ibv_wc */
    uint64_t work_id;
    uint32_t status, opcode, vendor_error, bytes, immediate, queue_pair, source_queue_pair, flags;
    uint64_t rest;
};

struct receive { /* struct ibv_recv_wr */
    uint64_t work_id;
    struct receive *next;
};

PUBLIC int idle_poll(void *queue, int room, struct completion *completions) {
    struct idle_nic *nic = queue;
    int count = 0;
    for (; count < room && nic->left && nic->posted; count++, nic->left--, nic->posted--) {
        completions[count] =
            (struct completion){.work_id = nic->next_row, .bytes = nic->bytes, .queue_pair = nic->number};
        nic->next_row = (nic->next_row + 1) % nic->rows_count;
    }
    return count;
}

PUBLIC int idle_request_notify(void *queue, int solicited_only) {
    (void)queue, (void)solicited_only;
    return 0;
}

PUBLIC int idle_post_receive(void *queue_pair, struct receive *first, struct receive **bad) {
    struct idle_nic *nic = queue_pair;
    (void)bad;
    for (; first; first = first->next) nic->posted++;
    return 0;
}

/* ---- sending, and READs ------------------------------------------------------------------------------------------ */

#define DONE_MAX 4096
#define SIGNALED 2

struct send { /* struct ibv_send_wr */
    uint64_t work_id;
    struct send *next;
    void *pieces;
    int32_t pieces_count;
    uint32_t opcode, flags;
};

static struct {
    uint64_t work_ids[DONE_MAX];
    uint64_t posted, polled;
    int armed, fd;
    uint32_t number, batch;
} sends;

/* `fd`: an eventfd, the channel; `number`: of the queue pair; `batch`: completions told of by one call, at most. */
PUBLIC void idle_sends_begin(int fd, uint32_t number, uint32_t batch) {
    sends.posted = sends.polled = 0;
    sends.armed = 0;
    sends.fd = fd;
    sends.number = number;
    sends.batch = batch;
}

PUBLIC int idle_post_send(void *queue_pair, struct send *first, struct send **bad) {
    (void)queue_pair, (void)bad;
    for (; first; first = first->next)
        if (first->flags & SIGNALED) sends.work_ids[sends.posted++ % DONE_MAX] = first->work_id;
    if (sends.armed && sends.posted != sends.polled) {
        uint64_t one = 1;
        sends.armed = 0;
        (void)!write(sends.fd, &one, sizeof one);
    }
    return 0;
}

PUBLIC int idle_poll_sends(void *queue, int room, struct completion *completions) {
    int count = 0;
    (void)queue;
    for (; count < room && count < (int)sends.batch && sends.polled != sends.posted; count++)
        completions[count] =
            (struct completion){.work_id = sends.work_ids[sends.polled++ % DONE_MAX], .queue_pair = sends.number};
    return count;
}

PUBLIC int idle_arm_sends(void *queue, int solicited_only) {
    (void)queue, (void)solicited_only;
    sends.armed = 1;
    return 0;
}

PUBLIC int idle_get_event(void *channel, void **queue, void **context) {
    uint64_t count;
    (void)channel;
    *queue = *context = NULL;
    return read(sends.fd, &count, sizeof count) < 0 ? -1 : 0;
}

PUBLIC void idle_acknowledge(void *queue, unsigned count) { (void)queue, (void)count; }
