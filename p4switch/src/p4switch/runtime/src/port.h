/* port.c: what all ports share. */
#ifndef P4SWITCH_PORT_H
#define P4SWITCH_PORT_H

#include "egress_queue.h"
#include "faults.h"
#include "pcap.h"

/* As Python reads it. */
struct ps_port_stats {
    uint64_t rx_packets, rx_bytes, tx_packets, tx_bytes;
    uint64_t rx_dropped;       /* arrived damaged, was too long, or found no buffer */
    uint64_t tx_dropped;       /* the socket refused it, or the port is down */
    uint64_t tx_queue_dropped; /* queue full */
    uint64_t rx_lost, rx_duplicated, rx_reordered, rx_corrupted, rx_delayed;
    uint64_t tx_lost, tx_duplicated, tx_reordered, tx_corrupted, tx_delayed;
    uint64_t up;
};

struct ps_port_ops {
    /* Receives up to PS_BURST frames and hands each to ps_port_received(). Returns the number of frames. */
    int (*receive)(struct ps_port *port);
    /* Sends up to `count` packets. Returns how many the caller may forget, sent or not; fewer than count: the socket
     * is full. */
    int (*send)(struct ps_port *port, const struct ps_tx *items, int count);
    void (*close)(struct ps_port *port);
    void (*tick)(struct ps_port *port); /* called about every 100 ms, to reopen or reconnect */
};

struct ps_port {
    struct ps_switch *sw;
    uint32_t id;
    const struct ps_port_ops *ops;
    int rx_fd, tx_fd; /* -1: none */
    bool rx_registered, tx_watched;
    bool carries_vnet;
    bool up;
    bool dirty; /* whether out[] has packets */
    struct ps_port_stats stats;
    struct ps_tx out[PS_TX_BATCH];
    int out_count;
    struct ps_tx_queue backlog;
    struct ps_shape_state shape;
    struct ps_egress_queue waiting;
    void (*has_room)(struct ps_port *port); /* the shaper or the socket takes packets again */
    struct ps_fault_state faults[2];
    FILE *pcap[2];
    void *impl;
};

void ps_port_flush(struct ps_port *port);
void ps_port_writable(struct ps_port *port);
/* Hands on the frames of `b`, cut and completed if the sender left that to a NIC. Owns b. */
void ps_port_soften(struct ps_buffer_pool *pool, struct ps_buffer *b, void (*each)(void *, struct ps_buffer *),
                    void *arg);
void ps_port_set_up(struct ps_port *port, bool up);
void ps_port_emit(struct ps_port *port, const struct ps_tx *tx); /* after shaping and faults */
void ps_port_deliver(struct ps_port *port, struct ps_buffer *b); /* after faults, into the switch */
int ps_port_register(struct ps_port *port);
void ps_port_unregister(struct ps_port *port);

int ps_queue_push(const struct ps_buffer_pool *pool, struct ps_tx_queue *q, const struct ps_tx *tx);
bool ps_queue_pop(struct ps_tx_queue *q, struct ps_tx *tx);
void ps_queue_clear(struct ps_buffer_pool *pool, struct ps_tx_queue *q);

#endif
