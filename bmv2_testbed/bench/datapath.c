/* The least that sending and receiving segments costs: whole datagrams, nothing looked at. They pass the kernel one by
 * one (sendmmsg, recvmmsg), or as many by one buffer as fit it (UDP_SEGMENT, UDP_GRO). */
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <netinet/udp.h>

#define PUBLIC __attribute__((visibility("default")))
#define BATCH 64
#define ROW_BYTES 65536
#define HEADER_BYTES 52
#define ICRC_BYTES 4
#define READERS_MAX 64

union control {
    struct cmsghdr align;
    uint8_t bytes[CMSG_SPACE(sizeof(int))];
};

struct acknowledgement {
    uint32_t reader, received;
};

/* What all readers have received, after hearing one of them. */
static uint32_t hear(int socket, uint32_t received[READERS_MAX], uint32_t readers) {
    struct acknowledgement heard;
    uint32_t least = UINT32_MAX;
    int fine = recv(socket, &heard, sizeof heard, 0) == sizeof heard && heard.reader < readers;
    if (fine && heard.received > received[heard.reader]) received[heard.reader] = heard.received;
    for (uint32_t i = 0; i < readers; i++) least = received[i] < least ? received[i] : least;
    return fine ? least : UINT32_MAX;
}

/* Has the kernel cut the message's bytes into datagrams of this size. */
static void ask_segments(struct msghdr *message, union control *control, uint32_t datagram_bytes) {
    message->msg_control = control->bytes;
    message->msg_controllen = CMSG_SPACE(sizeof(uint16_t));
    struct cmsghdr *part = CMSG_FIRSTHDR(message);
    uint16_t bytes = (uint16_t)datagram_bytes;
    *part = (struct cmsghdr){CMSG_LEN(sizeof bytes), IPPROTO_UDP, UDP_SEGMENT};
    memcpy(CMSG_DATA(part), &bytes, sizeof bytes);
}

/* Sends `segments` segments of `chunk` to (address, port), `each` by one buffer, never more than `window` ahead of what
 * all readers have acknowledged on the same socket. Returns 0 or an errno; ETIME when something was lost. */
PUBLIC int pair_send(int socket, uint32_t address, uint16_t port, const uint8_t *chunk, uint32_t segment_bytes,
                     uint32_t segments, uint32_t window, uint32_t readers, uint32_t each) {
    static uint8_t header[HEADER_BYTES], icrc[ICRC_BYTES];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(address)}};
    struct iovec parts[BATCH * 3];
    struct mmsghdr messages[BATCH];
    union control controls[BATCH];
    uint32_t received[READERS_MAX] = {0}, sent = 0, acknowledged = 0;

    while (sent < segments) {
        while (sent + BATCH > acknowledged + window) {
            acknowledged = hear(socket, received, readers);
            if (acknowledged == UINT32_MAX) return ETIME;
        }
        uint32_t count = segments - sent < BATCH ? segments - sent : BATCH, buffers = 0;
        for (uint32_t i = 0; i < count; i++) {
            struct iovec *part = parts + (size_t)i * 3;
            part[0] = (struct iovec){header, HEADER_BYTES};
            part[1] = (struct iovec){(uint8_t *)chunk + (size_t)(sent + i) * segment_bytes, segment_bytes};
            part[2] = (struct iovec){icrc, ICRC_BYTES};
            if (i % each == 0)
                messages[buffers++].msg_hdr =
                    (struct msghdr){.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = part, .msg_iovlen = 0};
            struct msghdr *message = &messages[buffers - 1].msg_hdr;
            message->msg_iovlen += 3;
            if (i % each == 1) ask_segments(message, &controls[buffers - 1], HEADER_BYTES + segment_bytes + ICRC_BYTES);
        }
        int taken = sendmmsg(socket, messages, buffers, 0);
        if (taken < 0 && errno != EAGAIN && errno != EINTR) return errno;
        for (int i = 0; i < taken; i++) sent += (uint32_t)messages[i].msg_hdr.msg_iovlen / 3;
    }
    return 0;
}

/* How many datagrams of this size the kernel brought by one buffer. */
static uint32_t datagrams_in(const struct mmsghdr *message, uint32_t datagram_bytes) {
    return message->msg_len > datagram_bytes ? (message->msg_len + datagram_bytes - 1) / datagram_bytes : 1;
}

/* Receives up to `segments` datagrams, and says how many to (address, port) after each batch. Ends when all have come or
 * the socket's timeout passes. Returns how many came. */
PUBLIC uint32_t pair_receive(int socket, uint32_t reader, uint32_t address, uint16_t port, uint32_t segment_bytes,
                             uint32_t segments) {
    static uint8_t rows[BATCH][ROW_BYTES];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(address)}};
    struct iovec parts[BATCH];
    struct mmsghdr messages[BATCH];
    uint32_t received = 0;

    memset(messages, 0, sizeof messages);
    for (int i = 0; i < BATCH; i++) {
        parts[i] = (struct iovec){rows[i], ROW_BYTES};
        messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
    }
    while (received < segments) {
        int taken = recvmmsg(socket, messages, BATCH, MSG_WAITFORONE, NULL);
        if (taken <= 0) break;
        for (int i = 0; i < taken; i++)
            received += datagrams_in(&messages[i], HEADER_BYTES + segment_bytes + ICRC_BYTES);
        struct acknowledgement all = {reader, received};
        sendto(socket, &all, sizeof all, 0, (struct sockaddr *)&to, sizeof to);
    }
    return received;
}
