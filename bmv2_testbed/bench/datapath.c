/* The least that sending and receiving segments costs: sendmmsg and recvmmsg of whole datagrams, nothing looked at. */
#include <arpa/inet.h>
#include <errno.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define PUBLIC __attribute__((visibility("default")))
#define BATCH 64
#define ROW_BYTES 16384
#define HEADER_BYTES 52
#define ICRC_BYTES 4
#define READERS_MAX 64

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

/* Sends `segments` segments of `chunk` to (address, port), never more than `window` ahead of what all readers have
 * acknowledged on the same socket. Returns 0 or an errno; ETIME when something was lost. */
PUBLIC int pair_send(int socket, uint32_t address, uint16_t port, const uint8_t *chunk, uint32_t segment_bytes,
                     uint32_t segments, uint32_t window, uint32_t readers) {
    static uint8_t header[HEADER_BYTES], icrc[ICRC_BYTES];
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(address)}};
    struct iovec parts[BATCH][3];
    struct mmsghdr messages[BATCH];
    uint32_t received[READERS_MAX] = {0}, sent = 0, acknowledged = 0;

    while (sent < segments) {
        while (sent + BATCH > acknowledged + window) {
            acknowledged = hear(socket, received, readers);
            if (acknowledged == UINT32_MAX) return ETIME;
        }
        uint32_t count = segments - sent < BATCH ? segments - sent : BATCH;
        for (uint32_t i = 0; i < count; i++) {
            parts[i][0] = (struct iovec){header, HEADER_BYTES};
            parts[i][1] = (struct iovec){(uint8_t *)chunk + (size_t)(sent + i) * segment_bytes, segment_bytes};
            parts[i][2] = (struct iovec){icrc, ICRC_BYTES};
            messages[i].msg_hdr =
                (struct msghdr){.msg_name = &to, .msg_namelen = sizeof to, .msg_iov = parts[i], .msg_iovlen = 3};
        }
        int taken = sendmmsg(socket, messages, count, 0);
        if (taken < 0 && errno != EAGAIN && errno != EINTR) return errno;
        sent += taken > 0 ? (uint32_t)taken : 0;
    }
    return 0;
}

/* Receives up to `segments` datagrams, and says how many to (address, port) after each batch. Ends when all have come or
 * the socket's timeout passes. Returns how many came. */
PUBLIC uint32_t pair_receive(int socket, uint32_t reader, uint32_t address, uint16_t port, uint32_t segments) {
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
        received += (uint32_t)taken;
        struct acknowledgement all = {reader, received};
        sendto(socket, &all, sizeof all, 0, (struct sockaddr *)&to, sizeof to);
    }
    return received;
}
