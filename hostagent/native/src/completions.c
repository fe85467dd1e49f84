#include "completions.h"

#include <errno.h>
#include <stdlib.h>

int completions_open(struct completions *completions, const struct dp_completion_queue *queue, uint32_t room) {
    *completions = (struct completions){.queue = *queue, .room = room};
    completions->taken = calloc(room, sizeof *completions->taken);
    return completions->taken ? 0 : ENOMEM;
}

int completions_look(struct completions *completions) {
    const struct dp_completion_queue *queue = &completions->queue;
    if (completions->next == completions->count) {
        completions->next = completions->count = 0;
        int count = ((verbs_poll *)queue->poll)(queue->queue, (int)completions->room, completions->taken);
        if (count < 0) return -1;
        completions->count = (uint32_t)count;
    }
    return (int)(completions->count - completions->next);
}

int completions_arm(struct completions *completions) {
    const struct dp_completion_queue *queue = &completions->queue;
    if (completions->armed) return 0;
    if (((verbs_request_notify *)queue->request_notify)(queue->queue, 0)) return -1;
    completions->armed = 1;
    return 0;
}

int completions_woken(struct completions *completions) {
    const struct dp_completion_queue *queue = &completions->queue;
    void *of, *context;
    if (((verbs_get_event *)queue->get_event)(queue->channel, &of, &context))
        return errno == EAGAIN || errno == EINTR ? 0 : -1;
    ((verbs_acknowledge *)queue->acknowledge)(of, 1);
    completions->armed = 0;
    return 0;
}

void completions_close(struct completions *completions) { free(completions->taken); }
