/* Datagrams from a UDP socket, many by one call. The kernel may bring consecutive ones of a sender, all of one length but
 * the last, by one buffer (UDP_GRO): they were sent so, or a NIC's driver has joined them. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <netinet/in.h>
#include <netinet/udp.h>

#include "intake.h"

#define CONTROL_BYTES 128
#define BUFFER_BYTES 65536 /* holds whatever one IPv4 packet carries */
/* Buffers begin on cache lines, but not all on the same lines of a cache. */
#define STRIDE_BYTES (BUFFER_BYTES + 3 * 64)

/* What the kernel brought by one buffer. */
struct slot {
    struct sockaddr_in from;
    uint8_t control[CONTROL_BYTES] __attribute__((aligned(8)));
    struct iovec piece;
    uint32_t datagram_bytes; /* of each, but the last may be shorter */
    uint32_t destination;    /* 0: not told */
    int from_switch;
};

struct socket_intake {
    struct intake intake;
    uint32_t from_switch_dscp;
    uint32_t wanted;      /* buffers asked of the kernel by one call: datagrams of a batch, or they leave the cache */
    int filled_all;       /* it filled as many at the last call */
    uint32_t taken, next; /* slots that it filled, and the one that is handed out next, */
    uint32_t at;          /* from this byte on */
    struct slot slots[INTAKE_BATCH];
    struct mmsghdr messages[INTAKE_BATCH];
    uint8_t *memory;
};

static void read_control(struct socket_intake *from, struct slot *slot, struct mmsghdr *message) {
    struct msghdr *header = &message->msg_hdr;
    uint8_t tos = 0;
    int joined_bytes = 0;
    struct in_pktinfo to = {0};
    for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
        if (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_TOS)
            tos = *CMSG_DATA(part);
        else if (part->cmsg_level == IPPROTO_UDP && part->cmsg_type == UDP_GRO)
            memcpy(&joined_bytes, CMSG_DATA(part), sizeof joined_bytes);
        else if (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_PKTINFO)
            memcpy(&to, CMSG_DATA(part), sizeof to);
        else if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SO_RXQ_OVFL)
            memcpy(&from->intake.overflows, CMSG_DATA(part), sizeof from->intake.overflows);
    }
    slot->from_switch = (uint32_t)(tos >> 2) == from->from_switch_dscp;
    slot->destination = ntohl(to.ipi_addr.s_addr);
    slot->datagram_bytes = joined_bytes > 0 ? (uint32_t)joined_bytes : message->msg_len;
}

/* Has the kernel fill slots. */
static void refill(struct socket_intake *from) {
    for (uint32_t i = 0; i < from->wanted; i++) {
        struct msghdr *header = &from->messages[i].msg_hdr;
        header->msg_namelen = sizeof from->slots[i].from;
        header->msg_controllen = CONTROL_BYTES;
    }
    int taken = recvmmsg(from->intake.fd, from->messages, from->wanted, MSG_DONTWAIT, NULL);
    /* An error is one of an earlier send (ICMP) or of a full system; either way there is nothing to take now. */
    from->taken = taken > 0 ? (uint32_t)taken : 0;
    from->next = from->at = 0;
    from->filled_all = from->taken == from->wanted;
    for (uint32_t i = 0; i < from->taken; i++) read_control(from, &from->slots[i], &from->messages[i]);
}

/* Hands out the datagrams of the slots, up to INTAKE_BATCH; returns how many. */
static uint32_t hand_out(struct socket_intake *from, struct intake_row *rows) {
    uint32_t count = 0;
    while (from->next < from->taken && count < INTAKE_BATCH) {
        const struct slot *slot = &from->slots[from->next];
        uint32_t rest = from->messages[from->next].msg_len - from->at;
        uint32_t length = rest < slot->datagram_bytes ? rest : slot->datagram_bytes;
        rows[count++] = (struct intake_row){
            .bytes = (uint8_t *)slot->piece.iov_base + from->at,
            .length = length,
            .source = ntohl(slot->from.sin_addr.s_addr),
            .destination = slot->destination,
            .port = ntohs(slot->from.sin_port),
            .from_switch = slot->from_switch,
        };
        from->at += length;
        if (length == rest) {
            from->next++;
            from->at = 0;
        }
    }
    return count;
}

static uint32_t take(struct intake *intake, struct intake_row *rows) {
    struct socket_intake *from = (struct socket_intake *)intake;
    if (from->next == from->taken) refill(from);
    uint32_t before = from->next, count = hand_out(from, rows), emptied = from->next - before;
    intake->has_more = from->next < from->taken || from->filled_all;
    if (count) from->wanted = emptied ? INTAKE_BATCH * emptied / count : 1;
    return count;
}

static enum dp_count check(struct wire *wire, const struct intake_row *row) {
    return wire_check(wire, row->bytes, row->length, (struct wire_ends){row->source, row->destination, row->port});
}

/* The kernel tells of what came before the wait, too, but not of what it has handed over. */
static int may_wait(struct intake *intake) {
    struct socket_intake *from = (struct socket_intake *)intake;
    return from->next == from->taken;
}

static void wake(struct intake *intake) { (void)intake; }

static void free_socket(struct intake *intake) {
    free(((struct socket_intake *)intake)->memory);
    free(intake);
}

static const struct intake_kind kind = {take, check, may_wait, wake, free_socket};

struct intake *socket_intake_new(int socket, uint32_t from_switch_dscp) {
    struct socket_intake *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->memory = aligned_alloc(64, (size_t)INTAKE_BATCH * STRIDE_BYTES);
    if (!made->memory) {
        free(made);
        return NULL;
    }
    made->intake = (struct intake){.kind = &kind, .fd = socket};
    made->from_switch_dscp = from_switch_dscp;
    made->wanted = INTAKE_BATCH;
    for (int i = 0; i < INTAKE_BATCH; i++) {
        struct slot *slot = &made->slots[i];
        struct msghdr *header = &made->messages[i].msg_hdr;
        slot->piece = (struct iovec){made->memory + (size_t)i * STRIDE_BYTES, BUFFER_BYTES};
        header->msg_name = &slot->from;
        header->msg_iov = &slot->piece;
        header->msg_iovlen = 1;
        header->msg_control = slot->control;
    }
    return &made->intake;
}
