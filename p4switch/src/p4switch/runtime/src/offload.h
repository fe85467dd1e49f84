/* offload.c: checksums and segmentation that senders leave to the NIC. */
#ifndef P4SWITCH_OFFLOAD_H
#define P4SWITCH_OFFLOAD_H

#include "buffer.h"

enum { GSO_UDP_L4 = 5 /* VIRTIO_NET_HDR_GSO_UDP_L4, newer than some headers */ };

struct layers {
    uint32_t l3, l4, payload; /* offsets */
    bool v6;
    uint8_t protocol;
};

/* Where the headers of a frame of TCP or UDP lie. False: it is none. */
bool ps_find_layers(const uint8_t *frame, uint32_t length, struct layers *out);
/* The part of a transport checksum that NICs expect in its field, if they are to complete it. Not folded. */
uint32_t ps_pseudo_header_sum(const uint8_t *frame, const struct layers *l, uint32_t l4_bytes);

static inline bool ps_vnet_plain(const struct virtio_net_hdr *h) {
    return !(h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) && h->gso_type == VIRTIO_NET_HDR_GSO_NONE;
}
/* Fills in the checksum that the sender left to the NIC, so that the frame is plain. False: the header is wrong. */
bool ps_complete_checksum(struct ps_buffer *b);
/* Cuts a GSO super-packet into frames of its gso_size with their checksums. Calls `each` for every frame, with a
 * buffer that `each` then owns. Returns the number of frames, -1 if the headers do not fit together; then `each` was
 * not called. */
int ps_segment(struct ps_buffer_pool *pool, const struct ps_buffer *super, void (*each)(void *arg, struct ps_buffer *b),
               void *arg);
/* Copies the virtio header of the input to the packet made from it. True: it still fits. */
bool ps_vnet_carry(const struct ps_buffer *in, uint32_t consumed, struct ps_tx *tx);

#endif
