/* port_packet.c, port_datagram.c, port_memory.c: the kinds of ports. */
#ifndef P4SWITCH_PORT_KINDS_H
#define P4SWITCH_PORT_KINDS_H

#include "port.h"

int ps_packet_port_open(struct ps_port *port, const char *name, char *error, size_t error_bytes);
bool ps_port_is_packet(const struct ps_port *port);
void ps_packet_port_link_changed(struct ps_port *port);
void ps_packet_port_size_kernel_queue(struct ps_port *port);
int ps_unix_port_open(struct ps_port *port, const char *local, const char *peer, char *error, size_t error_bytes);
int ps_udp_port_open(struct ps_port *port, const char *local_host, uint16_t *local_port, const char *peer_host,
                     uint16_t peer_port, char *error, size_t error_bytes);
int ps_memory_port_open(struct ps_port *port, bool discard);

#endif
