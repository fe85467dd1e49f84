/* See telling.h. */
#include "telling.h"

#include <stdlib.h>

#include "threads.h"

static void wake(struct dp_puller *puller) {
    if (!puller->woken) write_event(puller->config.wake);
    puller->woken = 1;
}

void telling_add(struct dp_puller *puller, struct told *told, const struct dp_pulled *pulled) {
    told->next = NULL;
    told->pulled = *pulled;
    *puller->told_last = told;
    puller->told_last = &told->next;
    wake(puller);
}

void telling_free_pull(struct pull *pull) {
    if (pull) free(pull->end);
    free(pull);
}
