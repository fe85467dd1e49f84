/* Between the switch and its ports: counting, capture of what arrives, software offloads, and the faults and shaping
 * that a port may have. */
#include "link.h"

#include "offload.h"
#include "switch.h"

/* ------------------------------------------------------------------ receiving */

static void receive_one(void *arg, struct ps_buffer *b) {
    struct ps_port *port = arg;
    if (PS_UNLIKELY(port->faults[PS_RX].config.enabled)) {
        struct ps_tx tx = {.head = b, .head_bytes = b->length, .vnet = b->vnet};
        if (ps_faults_apply(port, PS_RX, &tx)) return;
    }
    ps_port_deliver(port, b);
}

void ps_port_received(struct ps_port *port, struct ps_buffer *b) {
    port->stats.rx_packets++;
    port->stats.rx_bytes += b->length;
    port->sw->stats.received++;
    if (PS_UNLIKELY(port->pcap[PS_RX] != NULL)) {
        struct iovec part = {b->bytes, b->length};
        ps_pcap_write(port->pcap[PS_RX], port->sw->epoch_us + port->sw->now_us, &part, 1);
    }
    /* A program must see every datagram of a UDP super-packet, and a fault must hit single frames, not a whole TCP
     * super-packet. */
    if (PS_UNLIKELY(b->vnet.gso_type != VIRTIO_NET_HDR_GSO_NONE) &&
        (b->vnet.gso_type == GSO_UDP_L4 || port->faults[PS_RX].config.enabled))
        ps_port_soften(&port->sw->pool, b, receive_one, port);
    else
        receive_one(port, b);
}

/* ------------------------------------------------------------------ sending */

static void transmit_soft(void *arg, struct ps_buffer *b) {
    struct ps_tx tx = {.head = b, .head_bytes = b->length};
    ps_port_transmit(arg, &tx);
}

void ps_port_transmit(struct ps_port *port, const struct ps_tx *tx) {
    struct ps_buffer_pool *pool = &port->sw->pool;
    if (PS_UNLIKELY(!port->up)) {
        port->stats.tx_dropped++;
        ps_tx_put(pool, tx);
        return;
    }
    bool shaped = port->shape.rate_bits != 0, faulty = port->faults[PS_TX].config.enabled;
    if (PS_UNLIKELY(!ps_vnet_plain(&tx->vnet)) && (!port->carries_vnet || shaped || faulty)) {
        struct ps_buffer *b = ps_tx_flatten(pool, tx);
        ps_tx_put(pool, tx);
        if (b)
            ps_port_soften(pool, b, transmit_soft, port);
        else
            port->sw->stats.no_buffer++;
        return;
    }
    if (PS_UNLIKELY(shaped))
        ps_shape_send(port, tx);
    else if (PS_UNLIKELY(faulty)) {
        if (!ps_faults_apply(port, PS_TX, tx)) ps_port_emit(port, tx);
    } else
        ps_port_emit(port, tx);
}
