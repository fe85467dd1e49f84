/* offload.c: checksums and segmentation that senders leave to the NIC. */
#ifndef P4SWITCH_OFFLOAD_H
#define P4SWITCH_OFFLOAD_H

#include "buffer.h"

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
