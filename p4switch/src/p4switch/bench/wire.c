/* What a benchmark over interfaces needs apart from the switch: a sender that floods, and a bare loop that only moves
 * frames from one AF_PACKET socket to others in batches. The switch is measured against that loop. */
#include <arpa/inet.h>
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <poll.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#ifndef PACKET_IGNORE_OUTGOING
#define PACKET_IGNORE_OUTGOING 23
#endif

#define EXPORT __attribute__((visibility("default")))

enum { BATCH = 64, FRAME_BYTES = 10240, SOCKET_BUFFER_BYTES = 16 << 20, SOCKETS_MAX = 16 };

static uint64_t now_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int open_socket(const char *name) {
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1, bytes = SOCKET_BUFFER_BYTES;
    struct sockaddr_ll address = {
        .sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_ALL), .sll_ifindex = (int)if_nametoindex(name)};
    if (fd < 0) return -1;
    setsockopt(fd, SOL_PACKET, PACKET_IGNORE_OUTGOING, &one, sizeof one);
    setsockopt(fd, SOL_SOCKET, SO_RCVBUFFORCE, &bytes, sizeof bytes);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    if (bind(fd, (struct sockaddr *)&address, sizeof address) == 0) return fd;
    close(fd);
    return -1;
}

/* Sends one frame repeatedly for `seconds`. Returns how many were sent, -1 if the interface cannot be used. */
EXPORT int64_t bench_flood(const char *name, const uint8_t *frame, uint64_t length, double seconds) {
    struct mmsghdr messages[BATCH] = {0};
    struct iovec part = {(void *)(uintptr_t)frame, length};
    int fd = open_socket(name);
    int64_t sent = 0;
    if (fd < 0) return -1;
    for (int i = 0; i < BATCH; i++) messages[i].msg_hdr = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1};
    uint64_t end = now_ns() + (uint64_t)(seconds * 1e9);
    while (now_ns() < end) {
        int n = sendmmsg(fd, messages, BATCH, 0);
        if (n > 0) sent += n;
    }
    close(fd);
    return sent;
}

/* Receives a burst from one socket and sends it to each of the others. */
static int64_t move(int from, const int *to, int to_count, struct mmsghdr *messages, struct iovec *parts) {
    for (int i = 0; i < BATCH; i++) parts[i].iov_len = FRAME_BYTES;
    int n = recvmmsg(from, messages, BATCH, MSG_DONTWAIT, NULL);
    if (n <= 0) return 0;
    for (int i = 0; i < n; i++) parts[i].iov_len = messages[i].msg_len;
    for (int k = 0; k < to_count; k++)
        for (int i = 0; i < n;) {
            int sent = sendmmsg(to[k], messages + i, (unsigned)(n - i), MSG_DONTWAIT);
            i += sent > 0 ? sent : 1;
        }
    return n;
}

static int64_t loop(const int *sockets, int count, struct mmsghdr *messages, struct iovec *parts, double seconds) {
    struct pollfd ready[SOCKETS_MAX];
    int64_t moved = 0;
    for (uint64_t end = now_ns() + (uint64_t)(seconds * 1e9); now_ns() < end;) {
        for (int i = 0; i < count; i++) ready[i] = (struct pollfd){.fd = sockets[i], .events = POLLIN};
        if (poll(ready, (nfds_t)count, 20) <= 0) continue;
        if (ready[0].revents) moved += move(sockets[0], sockets + 1, count - 1, messages, parts);
        for (int i = 1; i < count; i++)
            if (ready[i].revents) moved += move(sockets[i], sockets, 1, messages, parts);
    }
    return moved;
}

/* Forwards for `seconds`: from the first interface to all others, and from the others to the first. Returns frames
 * received, -1 if an interface cannot be used. */
EXPORT int64_t bench_bare_loop(const char *const *names, int count, double seconds) {
    static struct mmsghdr messages[BATCH];
    static struct iovec parts[BATCH];
    int sockets[SOCKETS_MAX], opened = 0;
    uint8_t *frames = malloc((size_t)BATCH * FRAME_BYTES);
    int64_t moved = -1;
    while (opened < count && count <= SOCKETS_MAX && (sockets[opened] = open_socket(names[opened])) >= 0) opened++;
    if (opened == count && frames) {
        for (int i = 0; i < BATCH; i++) {
            parts[i] = (struct iovec){frames + (size_t)i * FRAME_BYTES, FRAME_BYTES};
            messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
        }
        moved = loop(sockets, count, messages, parts, seconds);
    }
    free(frames);
    for (int i = 0; i < opened; i++) close(sockets[i]);
    return moved;
}
