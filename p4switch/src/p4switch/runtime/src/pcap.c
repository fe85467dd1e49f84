/* Capture files: classic pcap, Ethernet, microseconds. */
#include "pcap.h"

#include "common.h"

struct file_header {
    uint32_t magic;
    uint16_t major, minor;
    int32_t zone;
    uint32_t accuracy, snap_bytes, link_type;
};

struct record_header {
    uint32_t seconds, microseconds, captured_bytes, frame_bytes;
};

FILE *ps_pcap_open(const char *path) {
    FILE *f = fopen(path, "wb");
    if (!f) return NULL;
    setvbuf(f, NULL, _IOFBF, 1 << 18);
    struct file_header header = {0xa1b2c3d4u, 2, 4, 0, 0, PS_FRAME_BYTES_MAX, 1};
    if (fwrite(&header, sizeof header, 1, f) != 1) {
        fclose(f);
        return NULL;
    }
    return f;
}

void ps_pcap_write(FILE *f, uint64_t epoch_us, const struct iovec *parts, int count) {
    uint32_t bytes = 0;
    for (int i = 0; i < count; i++) bytes += (uint32_t)parts[i].iov_len;
    struct record_header header = {(uint32_t)(epoch_us / 1000000), (uint32_t)(epoch_us % 1000000), bytes, bytes};
    (void)fwrite(&header, sizeof header, 1, f); /* a full disk loses captures, never packets */
    for (int i = 0; i < count; i++) (void)fwrite(parts[i].iov_base, 1, parts[i].iov_len, f);
}
