/* Datagrams from a UDP socket, many by one call. */
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <netinet/in.h>

#include "intake.h"

#define CONTROL_BYTES 64

struct slot {
    struct sockaddr_in from;
    uint8_t control[CONTROL_BYTES] __attribute__((aligned(8)));
    struct iovec piece;
};

struct socket_intake {
    struct intake intake;
    uint32_t from_switch_dscp;
    struct slot slots[INTAKE_BATCH];
    struct mmsghdr messages[INTAKE_BATCH];
    uint8_t *memory;
};

static void read_control(struct socket_intake *from, struct intake_row *row, struct msghdr *header) {
    uint8_t tos = 0;
    for (struct cmsghdr *part = CMSG_FIRSTHDR(header); part; part = CMSG_NXTHDR(header, part)) {
        if (part->cmsg_level == IPPROTO_IP && part->cmsg_type == IP_TOS)
            tos = *CMSG_DATA(part);
        else if (part->cmsg_level == SOL_SOCKET && part->cmsg_type == SO_RXQ_OVFL)
            memcpy(&from->intake.overflows, CMSG_DATA(part), sizeof from->intake.overflows);
    }
    row->from_switch = (uint32_t)(tos >> 2) == from->from_switch_dscp;
}

static uint32_t take(struct intake *intake, struct intake_row *rows) {
    struct socket_intake *from = (struct socket_intake *)intake;
    for (int i = 0; i < INTAKE_BATCH; i++) {
        struct msghdr *header = &from->messages[i].msg_hdr;
        header->msg_namelen = sizeof from->slots[i].from;
        header->msg_controllen = CONTROL_BYTES;
    }
    int taken = recvmmsg(intake->fd, from->messages, INTAKE_BATCH, MSG_DONTWAIT, NULL);
    for (int i = 0; i < taken; i++) {
        struct msghdr *header = &from->messages[i].msg_hdr;
        rows[i].bytes = from->slots[i].piece.iov_base;
        rows[i].length = header->msg_flags & MSG_TRUNC ? 0 : from->messages[i].msg_len;
        rows[i].source = ntohl(from->slots[i].from.sin_addr.s_addr);
        rows[i].port = ntohs(from->slots[i].from.sin_port);
        read_control(from, &rows[i], header);
    }
    /* An error is one of an earlier send (ICMP) or of a full system; either way there is nothing to take now. */
    return taken > 0 ? (uint32_t)taken : 0;
}

static enum dp_count check(struct wire *wire, const struct intake_row *row) {
    return wire_check(wire, row->bytes, row->length, row->source, row->port);
}

/* The kernel tells of what came before the wait, too. */
static int may_wait(struct intake *intake) {
    (void)intake;
    return 1;
}

static void wake(struct intake *intake) { (void)intake; }

static void free_socket(struct intake *intake) {
    free(((struct socket_intake *)intake)->memory);
    free(intake);
}

static const struct intake_kind kind = {take, check, may_wait, wake, free_socket};

struct intake *socket_intake_new(int socket, uint32_t from_switch_dscp, uint32_t datagram_bytes) {
    /* A byte more than a datagram, so that a longer one shows; rows begin on cache lines. */
    size_t row_bytes = (datagram_bytes + 1 + 63) / 64 * 64;
    struct socket_intake *made = calloc(1, sizeof *made);
    if (!made) return NULL;
    made->memory = aligned_alloc(64, INTAKE_BATCH * row_bytes);
    if (!made->memory) {
        free(made);
        return NULL;
    }
    memset(made->memory, 0, INTAKE_BATCH * row_bytes);
    made->intake = (struct intake){.kind = &kind, .fd = socket};
    made->from_switch_dscp = from_switch_dscp;
    for (int i = 0; i < INTAKE_BATCH; i++) {
        struct slot *slot = &made->slots[i];
        struct msghdr *header = &made->messages[i].msg_hdr;
        slot->piece = (struct iovec){made->memory + (size_t)i * row_bytes, row_bytes};
        header->msg_name = &slot->from;
        header->msg_iov = &slot->piece;
        header->msg_iovlen = 1;
        header->msg_control = slot->control;
    }
    return &made->intake;
}
