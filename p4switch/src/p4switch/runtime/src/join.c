/* A super-packet of UDP is cut before a program sees it. Where its datagrams leave together, they leave as one again: the
 * receiving kernel then handles one packet instead of many. Whoever cuts it next, a NIC or a kernel, has to make the very
 * frames that the program sent, so frames are joined only if they differ in nothing but what cutting gives each. Their
 * UDP checksums are given up and computed anew, so each has to be known to be right: the switch itself has computed it,
 * and the program has left alone what it covers. */
#include "join.h"

#include <netinet/in.h>

#include "externs.h"
#include "offload.h"

enum {
    JOINED_MAX = 64, /* the kernel's limit for many years */
    IP_BYTES_MAX = 65535,
    LENGTH_IN_IP = 2, /* offsets in headers */
    IDENTIFICATION_IN_IP = 4,
    FRAGMENT_IN_IP = 6,
    CHECKSUM_IN_IP = 10,
    LENGTH_IN_UDP = 4,
    CHECKSUM_IN_UDP = 6,
    ADDRESSES_BYTES = 8,
};

void ps_cut_carry(const struct ps_buffer *in, struct ps_tx *tx) {
    struct layers l;
    if (!ps_find_layers(in->bytes, in->length, &l) || l.v6) return;
    uint32_t covered_at = l.l4 - ADDRESSES_BYTES, covered = in->length - covered_at;
    if (ps_tx_bytes(tx) < covered) return;
    /* The payload is that of `in`. */
    if (covered > tx->payload_bytes) {
        uint32_t part = covered - tx->payload_bytes;
        if (memcmp(tx->head->bytes + tx->head_bytes - part, in->bytes + covered_at, part) != 0) return;
    }
    tx->cut = in->cut;
}

/* ------------------------------------------------------------------ joining */

struct opened {
    uint8_t header[PS_JOINED_HEADER_BYTES];
    struct layers l;
    uint32_t bytes; /* of the frame */
    uint16_t identification;
};

/* Reads the headers of a packet. False: it is not a datagram that can be joined to others. */
static bool open_datagram(const struct ps_tx *tx, struct opened *out) {
    uint32_t first = (uint32_t)ps_min64(tx->head_bytes, sizeof out->header);
    uint32_t second = (uint32_t)ps_min64(tx->payload_bytes, sizeof out->header - first);
    memcpy(out->header, tx->head->bytes, first);
    if (second) memcpy(out->header + first, tx->payload, second);
    if (!ps_find_layers(out->header, first + second, &out->l) || out->l.v6 || out->l.protocol != IPPROTO_UDP)
        return false;
    out->bytes = ps_tx_bytes(tx);
    const uint8_t *ip = out->header + out->l.l3, *udp = out->header + out->l.l4;
    out->identification = ps_load16(ip + IDENTIFICATION_IN_IP);
    return ps_load16(ip + LENGTH_IN_IP) == out->bytes - out->l.l3 &&
           ps_load16(udp + LENGTH_IN_UDP) == out->bytes - out->l.l4 && !(ps_load16(ip + FRAGMENT_IN_IP) & 0x3fff) &&
           ps_csum16(ip, out->l.l4 - out->l.l3) == 0 && ps_load16(udp + CHECKSUM_IN_UDP) != 0;
}

/* Whether cutting gives the `place`-th frame behind `first` the headers of `next`. Changes `next`. */
static bool continues(const struct opened *first, struct opened *next, uint32_t place) {
    if (next->identification != (uint16_t)(first->identification + place)) return false;
    if (next->l.l3 != first->l.l3 || next->l.payload != first->l.payload) return false;
    const uint8_t *ip = first->header + first->l.l3, *udp = first->header + first->l.l4;
    uint8_t *next_ip = next->header + first->l.l3, *next_udp = next->header + first->l.l4;
    memcpy(next_ip + LENGTH_IN_IP, ip + LENGTH_IN_IP, 2);
    memcpy(next_ip + IDENTIFICATION_IN_IP, ip + IDENTIFICATION_IN_IP, 2);
    memcpy(next_ip + CHECKSUM_IN_IP, ip + CHECKSUM_IN_IP, 2);
    memcpy(next_udp + LENGTH_IN_UDP, udp + LENGTH_IN_UDP, 2);
    memcpy(next_udp + CHECKSUM_IN_UDP, udp + CHECKSUM_IN_UDP, 2);
    return memcmp(first->header, next->header, first->l.payload) == 0;
}

/* `payload_bytes`: of all datagrams. */
static void describe(const struct opened *first, uint32_t payload_bytes, struct ps_joined *out) {
    const struct layers *l = &first->l;
    out->header_bytes = l->payload;
    memcpy(out->header, first->header, l->payload);
    uint8_t *ip = out->header + l->l3, *udp = out->header + l->l4;
    uint32_t l4_bytes = l->payload - l->l4 + payload_bytes;
    ps_store16(ip + LENGTH_IN_IP, (uint16_t)(l->l4 - l->l3 + l4_bytes));
    ps_store16(ip + CHECKSUM_IN_IP, 0);
    ps_store16(ip + CHECKSUM_IN_IP, ps_csum16(ip, l->l4 - l->l3));
    ps_store16(udp + LENGTH_IN_UDP, (uint16_t)l4_bytes);
    ps_store16(udp + CHECKSUM_IN_UDP, ps_inet_sum(NULL, 0, ps_pseudo_header_sum(out->header, l, l4_bytes)));
    out->vnet = (struct virtio_net_hdr){
        .flags = VIRTIO_NET_HDR_F_NEEDS_CSUM,
        .gso_type = GSO_UDP_L4,
        .hdr_len = (uint16_t)l->payload,
        .gso_size = (uint16_t)(first->bytes - l->payload),
        .csum_start = (uint16_t)l->l4,
        .csum_offset = CHECKSUM_IN_UDP,
    };
}

uint32_t ps_join(const struct ps_tx *items, uint32_t count, uint32_t frame_bytes_max, struct ps_joined *out) {
    struct opened first, next;
    if (count < 2 || !items[0].cut.of || items[1].cut.of != items[0].cut.of || !open_datagram(&items[0], &first))
        return 1;
    uint32_t step = first.bytes - first.l.payload, all = step, joined = 1;
    if (step == 0 || first.bytes > frame_bytes_max) return 1;
    for (; joined < count && joined < JOINED_MAX; joined++) {
        const struct ps_tx *item = &items[joined];
        if (item->cut.of != items[0].cut.of || item->cut.place != items[0].cut.place + joined) break;
        if (!open_datagram(item, &next) || next.bytes > first.bytes || !continues(&first, &next, joined)) break;
        uint32_t more = next.bytes - next.l.payload;
        if (more == 0 || first.l.payload - first.l.l3 + all + more > IP_BYTES_MAX) break;
        all += more;
        if (more < step) {
            joined++;
            break;
        }
    }
    if (joined > 1) describe(&first, all, out);
    return joined;
}
