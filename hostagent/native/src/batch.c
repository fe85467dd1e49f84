#include "batch.h"

#include <assert.h>
#include <netinet/udp.h>
#include <string.h>

#include "crc32.h"
#include "wire.h"

static const uint8_t zeros[DP_SEGMENT_BYTES_MAX];

static uint32_t payload_bytes(const struct dp_job *job, uint32_t segment) {
    uint64_t left = job->size_bytes - (uint64_t)segment * job->segment_bytes;
    return left < job->segment_bytes ? (uint32_t)left : job->segment_bytes;
}

/* `place`: in the buffer, of `count` segments. Its IP header gets that for an identification, or whatever the NIC that
 * cuts the buffer prefers: the source QPN tells readers so. */
static void frame(struct outgoing *out, const struct dp_job *job, uint32_t segment, uint32_t place, uint32_t count) {
    const uint8_t *payload = job->chunk + (uint64_t)segment * job->segment_bytes;
    uint32_t bytes = payload_bytes(job, segment);
    memcpy(out->header, job->header, DP_HEADER_BYTES);
    if (count > 1) put24(out->header + DP_DETH_SOURCE_QPN, DP_QPN_NUMBERED);
    put24(out->header + DP_BTH_PSN, segment & 0xFFFFFF);
    put32(out->header + DP_KV_SEGMENT, segment);
    put32(out->header + DP_KV_LENGTH, bytes);

    uint8_t masked[DP_HEADER_BYTES];
    memcpy(masked, out->header, DP_HEADER_BYTES);
    masked[DP_BTH_RESERVED] = 0xFF;
    uint32_t crc = dp_crc32(job->icrc_seed ^ wire_seed_difference((uint16_t)place), masked, DP_HEADER_BYTES);
    crc = dp_crc32(crc, payload, bytes);
    crc = dp_crc32(crc, zeros, job->segment_bytes - bytes);
    for (int i = 0; i < DP_ICRC_BYTES; i++) out->icrc[i] = (uint8_t)(crc >> 8 * i);
}

/* Makes the datagram for another group of one that is made. */
static void correct(struct outgoing *out, uint32_t difference) {
    for (int i = 0; i < DP_ICRC_BYTES; i++) out->icrc[i] ^= (uint8_t)(difference >> 8 * i);
}

/* Has the kernel cut the message into datagrams of this size. */
static void ask_segments(struct msghdr *message, struct buffer *buffer, uint32_t bytes) {
    uint16_t size = (uint16_t)bytes;
    message->msg_control = buffer->control.bytes;
    message->msg_controllen = sizeof buffer->control.bytes;
    struct cmsghdr *part = CMSG_FIRSTHDR(message);
    part->cmsg_level = IPPROTO_UDP;
    part->cmsg_type = UDP_SEGMENT;
    part->cmsg_len = CMSG_LEN(sizeof size);
    memcpy(CMSG_DATA(part), &size, sizeof size);
}

/* What leaves for which group. `made`: the same for the group before; NULL: it is not there. */
struct leaving {
    const struct dp_job *job;
    uint32_t group;
    const struct outgoing *made;
};

/* Writes the datagrams' own bytes, and their parts from `pieces` on; returns how many parts. */
static uint32_t gather(struct batch *batch, const struct leaving *leaving, uint32_t segment, uint32_t count,
                       struct iovec *pieces) {
    const struct dp_job *job = leaving->job;
    const struct dp_group *group = &job->groups[leaving->group];
    struct outgoing *out = &batch->outgoing[batch->datagrams];
    struct iovec *next = pieces;
    if (job->prefix_bytes) {
        uint8_t *prefix = batch->prefixes[batch->count];
        memcpy(prefix, job->prefix, job->prefix_bytes);
        put32(prefix + job->prefix_segment, segment);
        *next++ = (struct iovec){prefix, job->prefix_bytes};
    }
    *next++ = (struct iovec){out->header, DP_HEADER_BYTES};
    for (uint32_t i = 0; i < count; i++, segment++) {
        if (leaving->made) {
            out[i] = leaving->made[i];
            correct(&out[i], group[-1].difference ^ group->difference);
        } else {
            frame(&out[i], job, segment, i, count);
            correct(&out[i], group->difference);
        }
        uint32_t bytes = payload_bytes(job, segment), padding = job->segment_bytes - bytes;
        *next++ = (struct iovec){(uint8_t *)job->chunk + (uint64_t)segment * job->segment_bytes, bytes};
        if (padding) *next++ = (struct iovec){(uint8_t *)zeros, padding};
        *next++ = (struct iovec){out[i].icrc, i + 1 < count ? sizeof *out : DP_ICRC_BYTES};
    }
    return (uint32_t)(next - pieces);
}

static void add_buffer(struct batch *batch, const struct leaving *leaving, uint32_t segment, uint32_t count) {
    const struct dp_job *job = leaving->job;
    struct iovec *pieces = &batch->pieces[batch->pieces_count];
    uint32_t parts = gather(batch, leaving, segment, count, pieces);
    struct buffer *buffer = &batch->buffers[batch->count];
    struct msghdr *message = &batch->messages[batch->count].msg_hdr;
    buffer->to = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(job->port)};
    buffer->to.sin_addr.s_addr = htonl(job->groups[leaving->group].address);
    buffer->segments = count;
    *message = (struct msghdr){
        .msg_name = &buffer->to,
        .msg_namelen = sizeof buffer->to,
        .msg_iov = pieces,
        .msg_iovlen = parts,
    };
    if (count > 1) ask_segments(message, buffer, batch_datagram_bytes(job));
    batch->count++;
    batch->datagrams += count;
    batch->pieces_count += parts;
}

void batch_clear(struct batch *batch) { batch->count = batch->datagrams = batch->pieces_count = 0; }

void batch_add(struct batch *batch, const struct dp_job *job, uint32_t first, uint32_t count, uint32_t most,
               uint32_t group, int again) {
    assert(most && batch->datagrams + count <= BATCH && (most == 1 || !job->prefix_bytes));
    assert(group < job->groups_count && (!again || (group && batch->datagrams >= count)));
    for (uint32_t at = 0; at < count; at += most) {
        const struct outgoing *made = again ? &batch->outgoing[batch->datagrams - count] : NULL;
        struct leaving leaving = {job, group, made};
        add_buffer(batch, &leaving, first + at, count - at < most ? count - at : most);
    }
}

uint32_t batch_segments(const struct batch *batch, uint32_t buffers) {
    uint32_t segments = 0;
    for (uint32_t i = 0; i < buffers; i++) segments += batch->buffers[i].segments;
    return segments;
}

uint64_t batch_bytes(const struct batch *batch, uint32_t buffers) {
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < buffers; i++) bytes += batch->messages[i].msg_len;
    return bytes;
}
