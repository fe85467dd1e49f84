/* join.c: frames that were cut out of one super-packet and leave together. */
#ifndef P4SWITCH_JOIN_H
#define P4SWITCH_JOIN_H

#include "buffer.h"

enum { PS_JOINED_HEADER_BYTES = 128 };

/* A super-packet made of frames: its headers; behind them the frames' payloads. */
struct ps_joined {
    struct virtio_net_hdr vnet;
    uint32_t header_bytes; /* of it, and of each frame */
    uint8_t header[PS_JOINED_HEADER_BYTES];
};

/* Notes in `tx`, made from `in`, that it was cut out of a super-packet, if what its checksum covers is as it was. */
void ps_cut_carry(const struct ps_buffer *in, struct ps_tx *tx);
/* How many of these packets, from the first one on, can leave as one; if it is more than one, `out` describes that.
 * Longer frames than `frame_bytes_max` leave alone: the kernel refuses them. */
uint32_t ps_join(const struct ps_tx *items, uint32_t count, uint32_t frame_bytes_max, struct ps_joined *out);

#endif
