/* link.c: between the switch and its ports. */
#ifndef P4SWITCH_LINK_H
#define P4SWITCH_LINK_H

#include "port.h"

void ps_port_received(struct ps_port *port, struct ps_buffer *frame); /* owns frame */
void ps_port_transmit(struct ps_port *port, const struct ps_tx *tx);  /* owns tx's references */

#endif
