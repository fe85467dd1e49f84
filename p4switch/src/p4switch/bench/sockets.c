/* Measures what it costs to send frames through a packet socket, by each way that the kernel offers: sendmmsg,
 * PACKET_QDISC_BYPASS, PACKET_TX_RING (packet(7)). The switch uses the first way. */
#include <errno.h>
#include <linux/if_packet.h>
#include <net/ethernet.h>
#include <net/if.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

enum {
    BATCH = 64,
    SLOT_BYTES = 16384,
    BLOCK_BYTES = 1 << 16,
    BLOCKS = 64,
    SLOTS = BLOCKS * (BLOCK_BYTES / SLOT_BYTES)
};
enum { RING_DATA = TPACKET2_HDRLEN - sizeof(struct sockaddr_ll), RING_BYTES = BLOCKS * BLOCK_BYTES };
enum way { BYPASS = 1, RING = 2 };

static uint64_t cpu_ns(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int open_socket(const char *name, int way) {
    int one = 1, bytes = 16 << 20, version = TPACKET_V2;
    struct tpacket_req ring = {BLOCK_BYTES, BLOCKS, SLOT_BYTES, SLOTS};
    struct sockaddr_ll address = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(name)};
    int fd = socket(AF_PACKET, SOCK_RAW | SOCK_CLOEXEC, 0);
    if (fd < 0) return -1;
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUFFORCE, &bytes, sizeof bytes);
    if ((!(way & BYPASS) || setsockopt(fd, SOL_PACKET, PACKET_QDISC_BYPASS, &one, sizeof one) == 0) &&
        (!(way & RING) || (setsockopt(fd, SOL_PACKET, PACKET_VERSION, &version, sizeof version) == 0 &&
                           setsockopt(fd, SOL_PACKET, PACKET_TX_RING, &ring, sizeof ring) == 0)) &&
        bind(fd, (struct sockaddr *)&address, sizeof address) == 0)
        return fd;
    close(fd);
    return -1;
}

static uint64_t by_messages(int fd, const uint8_t *frame, uint64_t length, uint64_t count) {
    struct mmsghdr messages[BATCH] = {0};
    struct iovec part = {(void *)(uintptr_t)frame, length};
    for (int i = 0; i < BATCH; i++) messages[i].msg_hdr = (struct msghdr){.msg_iov = &part, .msg_iovlen = 1};
    uint64_t sent = 0;
    while (sent < count) {
        int n = sendmmsg(fd, messages, BATCH, 0);
        if (n < 0 && errno != ENOBUFS && errno != EINTR) return 0;
        sent += n > 0 ? (uint64_t)n : 0;
    }
    return sent;
}

static uint64_t by_ring(int fd, uint8_t *ring, const uint8_t *frame, uint64_t length, uint64_t count) {
    uint64_t sent = 0;
    while (sent < count) {
        for (int i = 0; i < BATCH; i++) {
            uint8_t *slot = ring + sent % SLOTS * SLOT_BYTES;
            struct tpacket2_hdr *head = (struct tpacket2_hdr *)(void *)slot;
            if (__atomic_load_n(&head->tp_status, __ATOMIC_ACQUIRE) != TP_STATUS_AVAILABLE) break;
            memcpy(slot + RING_DATA, frame, length);
            head->tp_len = (uint32_t)length;
            __atomic_store_n(&head->tp_status, TP_STATUS_SEND_REQUEST, __ATOMIC_RELEASE);
            sent++;
        }
        if (send(fd, NULL, 0, 0) < 0 && errno != ENOBUFS && errno != EINTR) return 0;
    }
    return sent;
}

/* Sends `count` frames or a few more in one way (a sum of enum way). Returns the nanoseconds of processor time per
 * frame; 0 when the kernel refuses. */
EXPORT double bench_send(const char *name, int way, const uint8_t *frame, uint64_t length, uint64_t count) {
    int fd = open_socket(name, way);
    if (fd < 0 || length > SLOT_BYTES - RING_DATA) return 0;
    uint8_t *ring = way & RING ? mmap(NULL, RING_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : NULL;
    uint64_t sent = 0, started = cpu_ns();
    if (ring != MAP_FAILED)
        sent = ring ? by_ring(fd, ring, frame, length, count) : by_messages(fd, frame, length, count);
    uint64_t taken = cpu_ns() - started;
    if (ring && ring != MAP_FAILED) munmap(ring, RING_BYTES);
    close(fd);
    return sent ? (double)taken / (double)sent : 0;
}
