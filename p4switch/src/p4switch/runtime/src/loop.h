/* loop.c: the packet thread, and its work for switches without one. */
#ifndef P4SWITCH_LOOP_H
#define P4SWITCH_LOOP_H

#include "switch.h"

enum { PS_PENDING_BUDGET = 64 }; /* recirculated packets between two bursts */

/* Opens what the thread waits for. -1: no file descriptors left; ps_loop_close() must be called all the same. */
int ps_loop_open(struct ps_switch *sw);
void ps_loop_close(struct ps_switch *sw);
void ps_loop_wake(struct ps_switch *sw);
/* Runs up to a budget of the resubmitted and recirculated packets that wait. Returns how many. */
int ps_loop_rounds(struct ps_switch *sw);
PS_EXPORT void ps_stop(struct ps_switch *sw);

#endif
