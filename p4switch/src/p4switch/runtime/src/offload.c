/* Work that senders leave to a NIC: a transport checksum to fill in (NEEDS_CSUM), and TCP or UDP super-packets to cut
 * into frames (GSO). A virtio_net_hdr describes both. Between two ports that carry such headers the packets pass as
 * they are; everywhere else the switch does the work here. */
#include <netinet/in.h>

#include "externs.h"
#include "offload.h"

enum { ETH_BYTES = 14, VLAN_BYTES = 4 };

bool ps_find_layers(const uint8_t *f, uint32_t length, struct layers *out) {
    uint32_t at = 12;
    if (length < ETH_BYTES) return false;
    uint16_t type = ps_load16(f + at);
    while ((type == 0x8100 || type == 0x88a8) && at + 2 + VLAN_BYTES + 2 <= length) {
        at += VLAN_BYTES;
        type = ps_load16(f + at);
    }
    out->l3 = at + 2;
    if (type == 0x0800 && out->l3 + 20 <= length) {
        out->v6 = false;
        out->l4 = out->l3 + (f[out->l3] & 15u) * 4u;
        out->protocol = f[out->l3 + 9];
    } else if (type == 0x86dd && out->l3 + 40 <= length) {
        out->v6 = true;
        out->l4 = out->l3 + 40;
        out->protocol = f[out->l3 + 6];
    } else {
        return false;
    }
    if (out->protocol == IPPROTO_TCP && out->l4 + 20 <= length)
        out->payload = out->l4 + (f[out->l4 + 12] >> 4) * 4u;
    else if (out->protocol == IPPROTO_UDP && out->l4 + 8 <= length)
        out->payload = out->l4 + 8;
    else
        return false;
    return out->payload <= length;
}

bool ps_complete_checksum(struct ps_buffer *b) {
    uint32_t start = b->vnet.csum_start, at = start + b->vnet.csum_offset;
    if (start >= b->length || at + 2 > b->length) return false;
    uint16_t sum = (uint16_t)~ps_inet_sum(b->bytes + start, b->length - start, 0);
    if (sum == 0 && b->vnet.csum_offset == 6) sum = 0xffff; /* in UDP zero means that there is no checksum */
    ps_store16(b->bytes + at, sum);
    b->vnet.flags &= (uint8_t)~VIRTIO_NET_HDR_F_NEEDS_CSUM;
    b->vnet.csum_start = b->vnet.csum_offset = 0;
    return true;
}

uint32_t ps_pseudo_header_sum(const uint8_t *f, const struct layers *l, uint32_t l4_bytes) {
    uint32_t sum = l->v6 ? ps_inet_sum(f + l->l3 + 8, 32, 0) : ps_inet_sum(f + l->l3 + 12, 8, 0);
    return sum + l->protocol + (l4_bytes & 0xffff) + (l4_bytes >> 16);
}

static void finish_segment(uint8_t *f, const struct layers *l, uint32_t length, uint32_t index, uint32_t sent,
                           bool last) {
    uint32_t l4_bytes = length - l->l4;
    if (l->v6) {
        ps_store16(f + l->l3 + 4, (uint16_t)(length - l->l3 - 40));
    } else {
        ps_store16(f + l->l3 + 2, (uint16_t)(length - l->l3));
        ps_store16(f + l->l3 + 4, (uint16_t)(ps_load16(f + l->l3 + 4) + index));
        ps_store16(f + l->l3 + 10, 0);
        ps_store16(f + l->l3 + 10, ps_csum16(f + l->l3, l->l4 - l->l3));
    }
    uint32_t checksum_at = l->l4 + 16;
    if (l->protocol == IPPROTO_TCP) {
        ps_store32(f + l->l4 + 4, ps_load32(f + l->l4 + 4) + sent);
        if (!last) f[l->l4 + 13] &= (uint8_t)~(0x01 | 0x08); /* FIN and PSH stay on the last frame only */
        if (index > 0) f[l->l4 + 13] &= (uint8_t)~0x80;      /* CWR stays on the first frame only */
    } else {
        ps_store16(f + l->l4 + 4, (uint16_t)l4_bytes);
        checksum_at = l->l4 + 6;
    }
    ps_store16(f + checksum_at, 0);
    uint16_t sum = (uint16_t)~ps_inet_sum(f + l->l4, l4_bytes, ps_pseudo_header_sum(f, l, l4_bytes));
    if (sum == 0 && l->protocol == IPPROTO_UDP) sum = 0xffff;
    ps_store16(f + checksum_at, sum);
}

int ps_segment(struct ps_buffer_pool *pool, const struct ps_buffer *super, void (*each)(void *, struct ps_buffer *),
               void *arg) {
    struct layers l;
    uint32_t step = super->vnet.gso_size;
    if (step == 0 || !ps_find_layers(super->bytes, super->length, &l)) return -1;
    uint8_t kind = super->vnet.gso_type & (uint8_t)~VIRTIO_NET_HDR_GSO_ECN;
    bool tcp = kind == VIRTIO_NET_HDR_GSO_TCPV4 || kind == VIRTIO_NET_HDR_GSO_TCPV6;
    if (tcp != (l.protocol == IPPROTO_TCP) || (!tcp && kind != GSO_UDP_L4)) return -1;
    uint32_t total = super->length - l.payload, index = 0, of = tcp ? 0 : ps_pool_next_cut(pool);
    for (uint32_t sent = 0; sent < total; sent += step, index++) {
        struct ps_buffer *b = ps_buffer_get(pool);
        if (!b) return (int)index;
        uint32_t part = (uint32_t)ps_min64(step, total - sent);
        memcpy(b->bytes, super->bytes, l.payload);
        memcpy(b->bytes + l.payload, super->bytes + l.payload + sent, part);
        b->length = l.payload + part;
        b->cut = (struct ps_cut){of, index};
        finish_segment(b->bytes, &l, b->length, index, sent, sent + part == total);
        each(arg, b);
    }
    return (int)index;
}

/* How many bytes directly before the transport header its checksum covers, too. */
static uint32_t addresses_bytes(const struct ps_buffer *in, uint32_t l4) {
    if (l4 >= ETH_BYTES + 40 && ps_load16(in->bytes + l4 - 42) == 0x86dd) return 32;
    return l4 < 8 ? l4 : 8;
}

/* The transport header may be parsed and emitted, but neither it nor the addresses of its pseudo header may change;
 * otherwise the partial checksum in it would be wrong. */
bool ps_vnet_carry(const struct ps_buffer *in, uint32_t consumed, struct ps_tx *tx) {
    const struct virtio_net_hdr *h = &in->vnet;
    tx->vnet = *h;
    int64_t shift = (int64_t)tx->head_bytes - consumed;
    int64_t start = (int64_t)h->csum_start + shift;
    if (start < 0 || start > UINT16_MAX) return false;
    if (consumed > h->csum_start) {
        uint32_t tail = consumed - h->csum_start, guard = addresses_bytes(in, h->csum_start);
        if (tx->head_bytes < tail + guard || consumed > in->length) return false;
        if (memcmp(tx->head->bytes + tx->head_bytes - tail - guard, in->bytes + h->csum_start - guard, tail + guard) !=
            0)
            return false;
    }
    tx->vnet.csum_start = (uint16_t)start;
    if (tx->vnet.hdr_len) {
        int64_t headers = (int64_t)h->hdr_len + shift;
        tx->vnet.hdr_len = headers > 0 && headers <= UINT16_MAX ? (uint16_t)headers : 0;
    }
    return true;
}
