#include "sendings.h"

#include <stdlib.h>

#include "threads.h"

#define UNREPORTED_MIN 32 /* the caller's side is woken for no fewer, unless nothing is left to send */

void sendings_open(struct sendings *sendings, int wake, uint32_t enough) {
    *sendings = (struct sendings){.wake = wake, .enough = enough};
    sendings->end = &sendings->first;
}

int sendings_add(struct sendings *sendings, struct sending *added) {
    *sendings->end = added;
    sendings->end = &added->next;
    sendings->left += added->count;
    return !sendings->unsent++;
}

void sendings_record(struct sendings *sendings, struct sending *sending, uint32_t sent, uint32_t failed) {
    sending->sent += sent;
    sending->failed += failed;
    sendings->unreported += sent + failed;
    sendings->left -= sent + failed;
    if (sent + failed && !sending_rest(sending)) sendings->unsent--;
}

void sendings_tell(struct sendings *sendings) {
    uint32_t wanted = sendings->left < sendings->enough ? sendings->left : sendings->enough;
    int is_due = sendings->unreported >= wanted && sendings->unreported >= UNREPORTED_MIN;
    if (sendings->unreported && (is_due || !sendings->unsent) && !sendings->woken) {
        sendings->woken = 1;
        write_event(sendings->wake);
    }
}

uint32_t sendings_drain(struct sendings *sendings, struct dp_outcome *outcomes, uint32_t room) {
    uint32_t count = 0;
    uint64_t event;
    if (sendings->woken) (void)!read(sendings->wake, &event, sizeof event);
    sendings->woken = 0;
    sendings->unreported = 0;
    struct sending **link = &sendings->first;
    while (*link && count < room) {
        struct sending *sending = *link;
        uint32_t sent = sending->sent - sending->told;
        int over = !sending_rest(sending);
        if (sent || over)
            outcomes[count++] = (struct dp_outcome){sending->id, sent, over ? sending->failed : 0, over, 0};
        sending->told = sending->sent;
        if (over) {
            *link = sending->next;
            free(sending);
        } else {
            link = &sending->next;
        }
    }
    if (!*link) sendings->end = link;
    return count;
}

void sendings_close(struct sendings *sendings) {
    while (sendings->first) {
        struct sending *sending = sendings->first;
        sendings->first = sending->next;
        free(sending);
    }
}
