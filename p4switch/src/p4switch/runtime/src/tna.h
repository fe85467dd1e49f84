/* tna.c: what happens to a packet between the functions of a TNA program. */
#ifndef P4SWITCH_TNA_H
#define P4SWITCH_TNA_H

#include "buffer.h"

struct ps_switch;

void ps_tna_ingress(struct ps_switch *sw, struct ps_buffer *frame, uint32_t port); /* owns frame */

#endif
