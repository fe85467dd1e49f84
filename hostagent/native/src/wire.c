#include "wire.h"

#include <assert.h>
#include <pthread.h>

#include "crc32.h"

#define IDENTIFICATION_AT 12 /* in what the ICRC covers */

static uint32_t seed_differences[DP_BUFFER_SEGMENTS_MAX];
static pthread_once_t differences_made = PTHREAD_ONCE_INIT;

static void make_differences(void) {
    uint8_t bytes[DP_MASKED_BYTES - IDENTIFICATION_AT] = {0};
    uint32_t without = dp_crc32(0, bytes, sizeof bytes);
    for (uint16_t identification = 0; identification < DP_BUFFER_SEGMENTS_MAX; identification++) {
        put16(bytes, identification);
        seed_differences[identification] = dp_crc32(0, bytes, sizeof bytes) ^ without;
    }
}

uint32_t wire_seed_difference(uint16_t identification) {
    assert(identification < DP_BUFFER_SEGMENTS_MAX);
    pthread_once(&differences_made, make_differences);
    return seed_differences[identification];
}

/* The bytes before the BTH are the same for all datagrams of one sender to one group. */
static uint32_t seed_of(struct wire *wire, struct wire_ends ends) {
    const struct wire_ends *known = &wire->seed_ends;
    if (ends.source != known->source || ends.destination != known->destination || ends.port != known->port) {
        uint8_t masked[DP_MASKED_BYTES];
        memcpy(masked, wire->masked, sizeof masked);
        put32(masked + DP_MASKED_SOURCE, ends.source);
        if (ends.destination) put32(masked + DP_MASKED_DESTINATION, ends.destination);
        put16(masked + DP_MASKED_SOURCE_PORT, ends.port);
        wire->seed = dp_crc32(0, masked, sizeof masked);
        wire->seed_ends = ends;
    }
    return wire->seed;
}

/* Whether another IP identification explains a difference of two ICRCs. */
static int is_identification(const struct wire *wire, uint32_t difference) {
    for (int bit = 0; bit < DP_IDENTIFICATION_BITS; bit++)
        if (difference & wire->identification[bit][0]) difference ^= wire->identification[bit][1];
    return difference == 0;
}

static int icrc_is_right(struct wire *wire, uint8_t *row, struct wire_ends ends) {
    uint32_t covered = wire_datagram_bytes(wire) - DP_ICRC_BYTES;
    const uint8_t *end = row + covered;
    uint32_t said = (uint32_t)end[3] << 24 | (uint32_t)end[2] << 16 | (uint32_t)end[1] << 8 | end[0];

    row[DP_BTH_RESERVED] = 0xFF;
    uint32_t difference = dp_crc32(seed_of(wire, ends), row, covered) ^ said;
    if (difference == 0) return 1;
    /* Datagrams that leave our sockets alone have identification 0. An RDMA NIC, and whoever cuts a buffer, puts any
     * there; both are known by their source QPNs. */
    return get24(row + DP_DETH_SOURCE_QPN) != wire->source_qpn && is_identification(wire, difference);
}

static enum dp_count check_chunk_header(const struct wire *wire, const uint8_t *row) {
    uint32_t segment = get32(row + DP_KV_SEGMENT), segments = get32(row + DP_KV_SEGMENTS);
    uint32_t bytes = get32(row + DP_KV_LENGTH);

    if (row[DP_KV_VERSION] != DP_WIRE_VERSION) return DP_VERSION;
    if (row[DP_KV_OP] != DP_OP_DATA) return DP_OP;
    if (row[DP_KV_FLAGS] || row[DP_KV_RESERVED]) return DP_RESERVED;
    if (segment >= segments || segments > DP_CHUNK_SEGMENTS_MAX) return DP_SEGMENT;
    if (!bytes || bytes > wire->segment_bytes || (bytes != wire->segment_bytes && segment + 1 != segments))
        return DP_LENGTH;
    return DP_RECEIVED;
}

static enum dp_count check_length(uint32_t length, uint32_t whole) {
    return length < whole ? DP_TRUNCATED : length > whole ? DP_OVERSIZED : DP_RECEIVED;
}

enum dp_count wire_check(struct wire *wire, uint8_t *row, uint32_t length, struct wire_ends ends) {
    enum dp_count verdict = check_length(length, wire_datagram_bytes(wire));
    if (verdict != DP_RECEIVED) return verdict;
    if (row[DP_BTH_OPCODE] != DP_OPCODE_UD_SEND_ONLY || get24(row + DP_BTH_QPN) != DP_QPN_MULTICAST) return DP_OPCODE;
    if (get32(row + DP_DETH_QKEY) != wire->qkey) return DP_QKEY;
    verdict = check_chunk_header(wire, row);
    if (verdict != DP_RECEIVED) return verdict;
    return icrc_is_right(wire, row, ends) ? DP_RECEIVED : DP_ICRC;
}

enum dp_count wire_check_message(const struct wire *wire, const uint8_t *row, uint32_t length) {
    enum dp_count verdict = check_length(length, DP_HEADER_BYTES + wire->segment_bytes);
    return verdict == DP_RECEIVED ? check_chunk_header(wire, row) : verdict;
}
