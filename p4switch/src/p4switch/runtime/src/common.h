/* What every file of the runtime needs: the contract with programs, limits, small helpers. */
#ifndef P4SWITCH_COMMON_H
#define P4SWITCH_COMMON_H

#include <stdbool.h>

#include "p4switch_abi.h"

#define PS_EXPORT __attribute__((visibility("default")))

enum {
    PS_PORTS_MAX = 512,               /* 9-bit port numbers */
    PS_FRAME_BYTES_MAX = 65536 + 256, /* a GSO super-packet with its link header */
    PS_BUFFER_HEADROOM = 192,         /* room for a virtio header, a restored VLAN tag, alignment */
    PS_BUFFER_SLACK = 128,            /* readable bytes behind a frame (ABI) */
    PS_BUFFERS = 8192,                /* virtual; pages are touched as buffers are used */
    PS_BURST = 64,                    /* frames received from one port before the next port gets its turn */
    PS_PENDING_MAX = 1024,            /* recirculated and resubmitted packets that may wait */
    PS_RECIRCULATION_PORTS = 4,
    PS_EXCLUSIONS = 512,         /* 9-bit level-2 exclusion ids of TNA */
    PS_RECIRCULATING_MAX = 6144, /* that may wait at recirculation ports: the other buffers stay free */
    PS_CLONE_DEPTH_MAX = 8,      /* depth of clones of clones */
    PS_TX_BATCH = 64,
    PS_TIMERS_MAX = 16384,       /* packets that delay and reordering may hold */
    PS_BUFFERS_UNDELAYED = 1024, /* buffers that delayed packets must leave free */
    PS_BACKLOG_BYTES = 4 << 20,  /* that a port keeps while its socket is full */
    PS_BACKLOG_ITEMS = 2048,
    PS_ENTRIES_MAX = 1 << 24,     /* of one table */
    PS_TABLE_SIZE_DEFAULT = 1024, /* entries of a table that declares no size, as in bmv2 */
    PS_KEY_WORDS_MAX = 512,       /* 8 bytes each */
    PS_SLOTS_MIN = 16,
    PS_GROUP_SLOTS_MAX = 1 << 16, /* sum of a selector group's weights */
};

static inline uint64_t ps_min64(uint64_t a, uint64_t b) { return a < b ? a : b; }

struct ps_rng {
    uint64_t s;
};
static inline uint64_t ps_rng_next(struct ps_rng *r) { /* splitmix64 */
    uint64_t z = (r->s += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
