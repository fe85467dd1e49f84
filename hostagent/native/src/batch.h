/* Datagrams of casts, composed for one call of the kernel: headers come from a template, the ICRC is computed while the
 * payload passes through the cache, and the kernel gathers the parts.
 *
 * Consecutive segments of a job leave by one buffer, which the kernel or the NIC cuts into datagrams (UDP_SEGMENT): a
 * way through the kernel costs about as much as ten segments. Whoever cuts a buffer numbers the IP identifications in it,
 * from 0, and the ICRC covers them. */
#pragma once

#include <netinet/in.h>
#include <stdint.h>
#include <sys/socket.h>

#include "datapath.h"

#define BATCH 64      /* datagrams */
#define BATCH_PARTS 5 /* of a datagram at most: prefix, header, payload, padding, ICRC */

/* What is a datagram's own. In an array of them the ICRC of one lies before the header of the next, as in a buffer with
 * both, so that the kernel gathers the two as one part. */
struct outgoing {
    uint8_t header[DP_HEADER_BYTES];
    uint8_t icrc[DP_ICRC_BYTES];
};

/* What the kernel takes as one: one datagram or several. */
struct buffer {
    struct sockaddr_in to;
    uint32_t segments;
    union {
        struct cmsghdr align;
        uint8_t bytes[CMSG_SPACE(sizeof(uint16_t))];
    } control;
};

struct batch {
    uint32_t count; /* of buffers */
    uint32_t datagrams, pieces_count;
    struct outgoing outgoing[BATCH];
    uint8_t prefixes[BATCH][DP_PREFIX_BYTES_MAX];
    struct iovec pieces[BATCH * BATCH_PARTS];
    struct buffer buffers[BATCH];
    struct mmsghdr messages[BATCH]; /* one a buffer */
};

/* UDP payload of each of the job's datagrams. */
static inline uint32_t batch_datagram_bytes(const struct dp_job *job) {
    return job->prefix_bytes + DP_HEADER_BYTES + job->segment_bytes + DP_ICRC_BYTES;
}

void batch_clear(struct batch *batch);

/* Composes segments of a job for one of its groups, up to `most` by each buffer. They have to fit. `again`: the batch ends
 * with the same ones for the group before, whose ICRCs are corrected and not computed. */
void batch_add(struct batch *batch, const struct dp_job *job, uint32_t first, uint32_t count, uint32_t most,
               uint32_t group, int again);

/* What the first so many buffers carry. */
uint32_t batch_segments(const struct batch *batch, uint32_t buffers);
uint64_t batch_bytes(const struct batch *batch, uint32_t buffers);
