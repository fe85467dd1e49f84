/* ports.c: attaching and detaching ports. */
#ifndef P4SWITCH_PORTS_H
#define P4SWITCH_PORTS_H

#include "switch.h"

PS_EXPORT int ps_remove_port(struct ps_switch *sw, uint32_t id);

#endif
