/* The contract between a compiled P4 program and the p4switch runtime.
 *
 * The compiler turns a P4 program into one C file that includes this header (and nothing else of the
 * runtime) and exports one function, p4switch_program(), which returns the program's descriptor. The
 * runtime loads the shared object, builds tables, registers, counters and meters from the descriptor,
 * and calls the program's functions for every packet. The program needs no symbol of the runtime:
 * what is not inlined here it reaches through ps_ctx.api.
 *
 * Rules that hold everywhere:
 *
 *  - One thread runs packets. No function here is called by two threads at once on one program
 *    instance, and the control plane changes tables only between two packets; @atomic needs nothing.
 *  - Table keys are packed big-endian: field i takes ceil(width/8) bytes at its offset, pad bits and
 *    all bytes up to key_bytes (a multiple of 8) are zero.
 *  - Action parameters, register cells and digest fields are packed as the program likes: each has
 *    an enum ps_order. A PS_NATIVE value is a uint8_t, uint16_t, uint32_t or uint64_t (or
 *    unsigned __int128, 16 bytes) of the machine, naturally aligned or not; a PS_BIG value is
 *    ceil(width/8) bytes big-endian. Unused bits are zero.
 *  - int<W> travels as its W-bit two's complement pattern, bool as bit<1>, enums as their numbers.
 *  - The per-packet state (PHV) is one block of phv_bytes, aligned to 64:
 *        [0, sizeof(struct ps_standard_metadata))  standard metadata
 *        [.., metadata_bytes)                      user metadata
 *        [metadata_bytes, zero_bytes)              validity bits, stack indexes and whatever must start as 0
 *        [zero_bytes, phv_bytes)                   header fields: undefined until extracted or set
 *    The runtime zeroes [0, zero_bytes) before parse().
 */
#ifndef P4SWITCH_ABI_H
#define P4SWITCH_ABI_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
#error "p4switch_abi.h is C"
#endif

#define PS_ABI_VERSION 3

#define PS_LIKELY(x) __builtin_expect(!!(x), 1)
#define PS_UNLIKELY(x) __builtin_expect(!!(x), 0)

/* ------------------------------------------------------------------ per packet */

/* Standard metadata of v1model, each field in a machine word, always masked to its P4 width. */
struct ps_standard_metadata {
    uint16_t ingress_port;             /* bit<9> */
    uint16_t egress_spec;              /* bit<9>; 511 drops */
    uint16_t egress_port;              /* bit<9> */
    uint16_t mcast_grp;                /* bit<16> */
    uint16_t egress_rid;               /* bit<16> */
    uint8_t checksum_error;            /* bit<1> */
    uint8_t priority;                  /* bit<3> */
    uint32_t instance_type;            /* bit<32>; enum ps_instance_type */
    uint32_t packet_length;            /* bit<32>, bytes */
    uint32_t parser_error;             /* enum ps_error, then the program's own errors */
    uint32_t enq_timestamp;            /* bit<32>, us */
    uint32_t enq_qdepth;               /* bit<19> */
    uint32_t deq_timedelta;            /* bit<32>, us */
    uint32_t deq_qdepth;               /* bit<19> */
    uint64_t ingress_global_timestamp; /* bit<48>, us since the switch started */
    uint64_t egress_global_timestamp;  /* bit<48>, us since the switch started */
};

enum ps_instance_type {
    PS_INSTANCE_NORMAL = 0,
    PS_INSTANCE_INGRESS_CLONE = 1,
    PS_INSTANCE_EGRESS_CLONE = 2,
    PS_INSTANCE_COALESCED = 3,
    PS_INSTANCE_RECIRCULATED = 4,
    PS_INSTANCE_REPLICATED = 5,
    PS_INSTANCE_RESUBMITTED = 6,
};

/* The errors of core.p4 in their order; a program's own errors follow from PS_ERROR_FIRST_USER. */
enum ps_error {
    PS_ERROR_NO_ERROR = 0,
    PS_ERROR_PACKET_TOO_SHORT = 1,
    PS_ERROR_NO_MATCH = 2,
    PS_ERROR_STACK_OUT_OF_BOUNDS = 3,
    PS_ERROR_HEADER_TOO_SHORT = 4,
    PS_ERROR_PARSER_TIMEOUT = 5,
    PS_ERROR_PARSER_INVALID_ARGUMENT = 6,
    PS_ERROR_FIRST_USER = 7,
};

/* Intrinsic metadata of the Tofino Native Architecture: one struct for each of its P4 structs, with the same fields,
 * each masked to its P4 width. The PHV of ingress begins with those of ingress in this order, the PHV of egress with
 * those of egress. The headers ingress_intrinsic_metadata_t and egress_intrinsic_metadata_t are bytes in front of the
 * packet. */
struct ps_ingress_from_parser {
    uint64_t global_tstamp; /* bit<48>, ns since the switch started */
    uint32_t global_ver;
    uint16_t parser_err;
};
struct ps_ingress_for_deparser {
    uint8_t drop_ctl; /* bit<3>; bit 0: no unicast, no multicast */
    uint8_t digest_type, resubmit_type, mirror_type;
};
struct ps_ingress_for_tm {
    uint16_t ucast_egress_port;        /* bit<9>; PS_PORT_DROP, as at the start: no unicast copy */
    uint16_t mcast_grp_a, mcast_grp_b; /* bit<16>; 0: none */
    uint16_t rid;                      /* bit<16> */
    uint16_t level1_mcast_hash, level2_mcast_hash, level1_exclusion_id, level2_exclusion_id;
    uint8_t bypass_egress, deflect_on_drop, ingress_cos, qid, icos_for_copy_to_cpu, copy_to_cpu, packet_color;
    uint8_t disable_ucast_cutthru, enable_mcast_cutthru;
};
struct ps_egress_from_parser {
    uint64_t global_tstamp;
    uint32_t global_ver;
    uint16_t parser_err;
};
struct ps_egress_for_deparser {
    uint8_t drop_ctl, mirror_type, coalesce_flush, coalesce_length;
};
struct ps_egress_for_output_port {
    uint8_t capture_tstamp_on_tx, update_delay_on_tx;
};

struct ps_tna_ingress {
    struct ps_ingress_from_parser from_parser;
    struct ps_ingress_for_deparser for_deparser;
    struct ps_ingress_for_tm for_tm;
};
struct ps_tna_egress {
    struct ps_egress_from_parser from_parser;
    struct ps_egress_for_deparser for_deparser;
    struct ps_egress_for_output_port for_output_port;
};

enum { PS_TNA_MIRROR_HEADER_MAX = 32 }; /* bytes in front of a mirrored packet */

#define PS_PORT_DROP 511u
/* The index of an action that does nothing: of an empty selector group, or of a table without a default action. */
#define PS_NO_ACTION UINT32_MAX

/* ------------------------------------------------------------------ tables */

/* What a table entry does. `index` counts in ps_program.actions; params are packed as that action says. */
struct ps_action {
    uint32_t index;
    uint32_t member_id; /* of an action profile; 0 for an action of the entry itself */
    _Alignas(8) uint8_t params[];
};

struct ps_counter_cell {
    uint64_t packets;
    uint64_t bytes;
};

enum ps_meter_color { PS_GREEN = 0, PS_YELLOW = 1, PS_RED = 2, PS_COLORS = 3 };

/* Two-rate three-colour marker, RFC 2698. Tokens in units of 1e-6, rates in units per second. Not configured: green. */
struct ps_meter_cell {
    uint64_t cir, cburst, pir, pburst;
    uint64_t committed_utokens, peak_utokens;
    uint64_t updated_us;
    uint32_t configured;
    uint32_t by_packets;                      /* unit: 0 bytes, 1 packets */
    struct ps_counter_cell colors[PS_COLORS]; /* what it has marked */
};

/* A group of an action selector, spread by weight: slots[hash % slot_count]. */
struct ps_group {
    uint32_t id;
    uint32_t slot_count; /* 0: empty group */
    const struct ps_action **slots;
};

/* What only entries of tables with a meter, idle timeouts or an action profile need. */
struct ps_entry_extra {
    const struct ps_group *group; /* NULL: the entry has an action or a member */
    uint64_t last_hit_us;
    uint64_t timeout_us; /* 0: never */
    uint64_t notified_us;
    struct ps_meter_cell meter;
};

/* Laid out so that an entry with a key and parameters of up to 8 bytes each is one cache line. */
struct ps_entry {
    const struct ps_action *action; /* NULL: a selector group, in extra */
    struct ps_entry_extra *extra;   /* NULL: the table needs none */
    struct ps_counter_cell counter; /* direct counter */
    uint32_t priority;
    uint32_t number; /* position in the table's slab; UINT32_MAX: default entry */
    uint8_t body[];  /* key value | key mask (not for exact tables) | struct ps_action */
};

struct ps_slot {
    uint32_t tag;    /* 0: free, else the hash's upper half with bit 31 set */
    uint32_t number; /* of the entry */
};

struct ps_table_desc;

struct ps_table {
    /* exact: open addressing with linear probing */
    const struct ps_slot *slots;
    uint64_t slot_mask;
    uint8_t *entries;     /* slab; an entry's address never changes while it lives */
    uint32_t entry_bytes; /* multiple of 64 */
    uint32_t key_bytes;
    struct ps_entry *default_entry; /* never NULL; its action may be PS_NO_ACTION */
    /* other kinds */
    struct ps_entry *(*lookup)(const struct ps_table *table, const uint8_t *key);
    const void *matcher;
    const struct ps_table_desc *desc;
};

/* ------------------------------------------------------------------ arrays */

struct ps_register {
    uint8_t *cells;
    uint64_t count;
    uint32_t cell_bytes;
    uint32_t pad;
};

struct ps_counter {
    struct ps_counter_cell *cells;
    uint64_t count;
};

struct ps_meter {
    struct ps_meter_cell *cells;
    uint64_t count;
};

/* ------------------------------------------------------------------ the context of a packet */

struct ps_ctx;

enum ps_log_kind { PS_LOG_MSG = 0, PS_LOG_TRACE = 1 };

/* Functions of the runtime that are not inlined. */
struct ps_api {
    uint32_t (*meter)(struct ps_ctx *ctx, struct ps_meter_cell *cell, uint32_t pre_color); /* enum ps_meter_color */
    void (*digest)(struct ps_ctx *ctx, uint32_t digest, const void *packed);
    /* `text` is shown as it is; call only if ctx->log_enabled (MSG) or ctx->trace_enabled (TRACE). */
    void (*log)(struct ps_ctx *ctx, uint32_t kind, const char *text, size_t length);
    /* Hash algorithms over whole bytes, as v1model's enum HashAlgorithm names them. */
    uint32_t (*crc32)(const uint8_t *bytes, size_t length); /* zlib's */
    uint32_t (*crc32_custom)(const uint8_t *bytes,
                             size_t length);                /* bmv2's default custom: as crc32 until configured */
    uint16_t (*crc16)(const uint8_t *bytes, size_t length); /* CRC-16/ARC */
    uint16_t (*crc16_custom)(const uint8_t *bytes, size_t length);
    uint16_t (*csum16)(const uint8_t *bytes, size_t length); /* RFC 1071, complemented, as a number */
    uint16_t (*xor16)(const uint8_t *bytes, size_t length);
    void *reserved[8];
};

/* Every function of the program gets it. The runtime owns it; a program writes only what is marked `out`. */
struct ps_ctx {
    const struct ps_api *api;
    struct ps_table *tables; /* by index in the descriptor's lists */
    const struct ps_register *registers;
    const struct ps_counter *counters;
    const struct ps_meter *meters;

    const uint8_t *packet; /* the frame as the parser sees it */
    uint32_t packet_bytes; /* its length */
    uint32_t consumed;     /* out, parse(): bytes extracted or advanced over; the rest is payload,
                                         also after a parser error (what was consumed up to the error) */
    uint32_t count_bytes;  /* what counters and meters in bytes add for this packet */
    int32_t length_change; /* out: bytes by which setValid/setInvalid in ingress and egress changed the packet
                                         (egress sees packet_length = arrived + length_change); optional */
    uint64_t now_us;       /* since the switch started */

    /* out: what the packet asks for. The runtime zeroes [clone, intent_end) before ingress and before egress. */
    uint8_t clone; /* 1: clone to clone_session (I2E in ingress, E2E in egress); last call wins */
    uint8_t resubmit;
    uint8_t recirculate;
    uint8_t headers_written; /* 1: egress (not compute_checksum) changed a header field or a validity bit;
                                         needed only with PS_PROGRAM_TRACKS_HEADER_WRITES */
    int32_t clone_list;      /* field list to preserve, -1 none */
    int32_t resubmit_list;
    int32_t recirculate_list;
    uint32_t clone_session;
    uint32_t truncate_bytes_inverse; /* ~n after truncate(n), 0: whole; use ps_truncate() */
    uint32_t intent_end;
    /* TNA: what the deparser asked to be copied; use ps_mirror() */
    uint8_t mirror;
    uint8_t mirror_header_bytes;
    uint16_t mirror_session;
    uint8_t mirror_header[PS_TNA_MIRROR_HEADER_MAX];

    uint8_t log_enabled;
    uint8_t trace_enabled;
    uint64_t rng[4]; /* use ps_random() */
    void *runtime;   /* private */
    void *scratch;   /* for the program: scratch_bytes, zeroed at load, kept from packet to packet */
};

/* ------------------------------------------------------------------ descriptor */

enum ps_match_kind {
    PS_EXACT = 0,
    PS_LPM = 1,
    PS_TERNARY = 2,
    PS_RANGE = 3,
    PS_OPTIONAL = 4,
};

enum ps_order { PS_BIG = 0, PS_NATIVE = 1 };

/* A value in a packed block: key field, action parameter, digest field. */
struct ps_field_desc {
    const char *name;   /* control-plane name, as in P4Info */
    uint32_t id;        /* P4Info's, from 1; 0 unknown */
    uint32_t width;     /* bits */
    uint32_t offset;    /* bytes from the block's start */
    uint8_t match_kind; /* keys only */
    uint8_t order;      /* enum ps_order; keys are always PS_BIG */
    uint8_t pad[2];
};

struct ps_action_desc {
    const char *name; /* control-plane name, qualified: "MyIngress.forward" */
    uint32_t id;      /* P4Info's; 0 unknown */
    uint32_t param_count;
    uint32_t param_bytes;
    const struct ps_field_desc *params;
};

/* An entry written in the program. For a range field value is the low bound and mask the high bound,
 * for lpm mask is the prefix mask, for a wildcard optional the mask is zero. `mask` is NULL for exact tables. */
struct ps_const_entry {
    const uint8_t *key;  /* key_bytes */
    const uint8_t *mask; /* key_bytes */
    uint32_t priority;   /* larger wins, as in P4Runtime; 0 where priorities do not apply */
    uint32_t action;     /* index in ps_program.actions */
    const void *params;  /* param_bytes of the action, or NULL */
};

enum ps_table_flags {
    PS_TABLE_COUNTS_PACKETS = 1 << 0, /* has a direct counter of packets */
    PS_TABLE_COUNTS_BYTES = 1 << 1,
    PS_TABLE_METERS = 1 << 2,         /* has a direct meter (by bytes) */
    PS_TABLE_METERS_PACKETS = 1 << 3, /* the direct meter counts packets */
    PS_TABLE_AGES = 1 << 4,           /* support_timeout */
    PS_TABLE_CONST_ENTRIES = 1 << 5,  /* entries are const: the control plane may not write */
    PS_TABLE_CONST_DEFAULT = 1 << 6,
    PS_TABLE_VALUE_SET = 1 << 7, /* a parser value set: has no actions, hit or miss */
};
#define PS_TABLE_NEEDS_EXTRA (PS_TABLE_METERS | PS_TABLE_METERS_PACKETS | PS_TABLE_AGES)

#define PS_NO_PROFILE UINT32_MAX

struct ps_table_desc {
    const char *name;
    uint32_t id;
    uint32_t flags;
    uint64_t size; /* as declared; 0: the runtime's default */
    uint32_t key_count;
    uint32_t key_bytes; /* multiple of 8; 0 for a table without a key */
    const struct ps_field_desc *keys;
    uint32_t action_count;
    uint32_t default_action; /* index in ps_program.actions or PS_NO_ACTION */
    const uint32_t *actions; /* indexes in ps_program.actions */
    const void *default_params;
    uint32_t profile; /* index in ps_program.profiles or PS_NO_PROFILE */
    uint32_t const_entry_count;
    const struct ps_const_entry *const_entries;
};

struct ps_profile_desc {
    const char *name;
    uint32_t id;
    uint32_t is_selector;
    uint64_t size; /* members (and weights) in all */
    uint32_t action_count;
    const uint32_t *actions;
};

struct ps_register_desc {
    const char *name;
    uint32_t id;
    uint32_t width; /* bits of a cell */
    uint64_t count;
    uint32_t cell_bytes;
    uint32_t order;      /* enum ps_order */
    const void *initial; /* cell_bytes that every cell starts with; NULL: zero */
};

enum ps_unit { PS_UNIT_BYTES = 1, PS_UNIT_PACKETS = 2, PS_UNIT_BOTH = 3 };

struct ps_counter_desc {
    const char *name;
    uint32_t id;
    uint32_t unit; /* enum ps_unit */
    uint64_t count;
};

struct ps_meter_desc {
    const char *name;
    uint32_t id;
    uint32_t unit; /* PS_UNIT_BYTES or PS_UNIT_PACKETS */
    uint64_t count;
};

struct ps_digest_desc {
    const char *name;
    uint32_t id;
    uint32_t field_count;
    const struct ps_field_desc *fields; /* flattened, in order of declaration */
    uint32_t packed_bytes;
    uint32_t pad;
};

enum ps_program_flags {
    /* egress sets ctx->headers_written when it writes a header field or validity: copies that did not write
     * share one deparsed packet. Without the flag every copy is taken to write. */
    PS_PROGRAM_TRACKS_HEADER_WRITES = 1 << 0,
    /* compute_checksum reads metadata: copies cannot share deparsed bytes. */
    PS_PROGRAM_CHECKSUM_READS_METADATA = 1 << 1,
    /* ingress or egress reads enq/deq fields or egress_global_timestamp: the runtime then takes time for each packet. */
    PS_PROGRAM_READS_QUEUE_TIMES = 1 << 2,
    /* TNA: ingress reads parser_err. Without this flag the runtime drops a packet with a parser error after the
     * parser. */
    PS_PROGRAM_READS_PARSER_ERROR = 1 << 3,
    /* ingress or egress looks at queues (enq_*, deq_*, priority): packets wait for a busy port before egress. */
    PS_PROGRAM_WAITS_FOR_PORTS = 1 << 4,
};

enum ps_architecture { PS_V1MODEL = 0, PS_TNA = 1 };

struct ps_program {
    uint32_t abi_version;      /* PS_ABI_VERSION */
    uint32_t descriptor_bytes; /* sizeof(struct ps_program) */
    const char *name;
    uint32_t flags;            /* enum ps_program_flags */
    uint32_t architecture;     /* enum ps_architecture */
    uint32_t phv_bytes;        /* multiple of 64 */
    uint32_t metadata_bytes;   /* multiple of 8 */
    uint32_t zero_bytes;       /* multiple of 8 */
    uint32_t max_header_bytes; /* most that deparse() writes */
    uint32_t scratch_bytes;

    void (*parse)(struct ps_ctx *ctx, void *phv);
    void (*verify_checksum)(struct ps_ctx *ctx, void *phv); /* NULL: empty control */
    void (*ingress)(struct ps_ctx *ctx, void *phv);
    void (*egress)(struct ps_ctx *ctx, void *phv);           /* NULL: empty control */
    void (*compute_checksum)(struct ps_ctx *ctx, void *phv); /* NULL: empty control */
    /* Writes the emitted headers to `out`, returns how many bytes; the runtime appends the payload. */
    uint32_t (*deparse)(struct ps_ctx *ctx, void *phv, uint8_t *out);
    /* Copies the metadata fields of a @field_list; NULL if the program has no list. */
    void (*copy_field_list)(void *dst_phv, const void *src_phv, int32_t list);
    /* Copies metadata and valid headers; NULL: memcpy of phv_bytes. */
    void (*copy_phv)(void *dst_phv, const void *src_phv);
    /* TNA: egress has a packet state, a parser and a deparser of its own; the above are those of ingress. */
    void (*egress_parse)(struct ps_ctx *ctx, void *phv);
    uint32_t (*egress_deparse)(struct ps_ctx *ctx, void *phv, uint8_t *out);
    uint32_t egress_phv_bytes;  /* multiple of 64 */
    uint32_t egress_zero_bytes; /* multiple of 8 */

    uint32_t action_count;
    uint32_t table_count;
    uint32_t profile_count;
    uint32_t register_count;
    uint32_t counter_count;
    uint32_t meter_count;
    uint32_t digest_count;
    uint32_t pad;
    const struct ps_action_desc *actions;
    const struct ps_table_desc *tables; /* value sets too */
    const struct ps_profile_desc *profiles;
    const struct ps_register_desc *registers;
    const struct ps_counter_desc *counters;
    const struct ps_meter_desc *meters;
    const struct ps_digest_desc *digests;
    const char *const *errors; /* names from PS_ERROR_FIRST_USER on, ends in NULL; or NULL */
};

/* The only symbol that a compiled program exports. */
const struct ps_program *p4switch_program(void);

/* ------------------------------------------------------------------ big-endian words */

static inline uint16_t ps_load16(const void *p) {
    uint16_t v;
    memcpy(&v, p, 2);
    return __builtin_bswap16(v);
}
static inline uint32_t ps_load32(const void *p) {
    uint32_t v;
    memcpy(&v, p, 4);
    return __builtin_bswap32(v);
}
static inline uint64_t ps_load64(const void *p) {
    uint64_t v;
    memcpy(&v, p, 8);
    return __builtin_bswap64(v);
}
static inline void ps_store16(void *p, uint16_t v) {
    v = __builtin_bswap16(v);
    memcpy(p, &v, 2);
}
static inline void ps_store32(void *p, uint32_t v) {
    v = __builtin_bswap32(v);
    memcpy(p, &v, 4);
}
static inline void ps_store64(void *p, uint64_t v) {
    v = __builtin_bswap64(v);
    memcpy(p, &v, 8);
}

/* Converts between a number and `bytes` (1..8, a constant) big-endian bytes. */
static inline uint64_t ps_load_be(const void *p, unsigned bytes) {
    const uint8_t *b = (const uint8_t *)p;
    switch (bytes) {
    case 1:
        return b[0];
    case 2:
        return ps_load16(b);
    case 4:
        return ps_load32(b);
    case 6:
        return ((uint64_t)ps_load16(b) << 32) | ps_load32(b + 2);
    case 8:
        return ps_load64(b);
    default: {
        uint64_t v = 0;
        for (unsigned i = 0; i < bytes; i++) v = (v << 8) | b[i];
        return v;
    }
    }
}
static inline void ps_store_be(void *p, uint64_t v, unsigned bytes) {
    uint8_t *b = (uint8_t *)p;
    switch (bytes) {
    case 1:
        b[0] = (uint8_t)v;
        break;
    case 2:
        ps_store16(b, (uint16_t)v);
        break;
    case 4:
        ps_store32(b, (uint32_t)v);
        break;
    case 6:
        ps_store16(b, (uint16_t)(v >> 32));
        ps_store32(b + 2, (uint32_t)v);
        break;
    case 8:
        ps_store64(b, v);
        break;
    default:
        for (unsigned i = 0; i < bytes; i++) b[i] = (uint8_t)(v >> (8 * (bytes - 1 - i)));
    }
}

/* ------------------------------------------------------------------ lookup */

#define PS_TAG_LIVE 0x80000000u

static inline uint64_t ps_mix(uint64_t a, uint64_t b) {
    unsigned __int128 m = (unsigned __int128)a * b;
    return (uint64_t)m ^ (uint64_t)(m >> 64);
}

/* The hash of a packed key; key_bytes is a multiple of 8, preferably a compile-time constant. */
static inline uint64_t ps_key_hash(const void *key, uint32_t key_bytes) {
    const uint8_t *bytes = (const uint8_t *)key;
    uint64_t h = 0x9e3779b97f4a7c15u ^ key_bytes;
    for (uint32_t i = 0; i < key_bytes; i += 8) {
        uint64_t w;
        memcpy(&w, bytes + i, 8);
        h = ps_mix(h ^ w, 0xd6e8feb86659fd93u) + 0xa0761d6478bd642fu;
    }
    return ps_mix(h, 0xe7037ed1a0b428dbu);
}

static inline struct ps_entry *ps_entry_at(const struct ps_table *table, uint32_t number) {
    return (struct ps_entry *)(void *)(table->entries + (uint64_t)number * table->entry_bytes);
}

/* The entry that matches a key of exact fields, or the default entry. key_bytes must be the table's. */
static inline struct ps_entry *ps_lookup_exact(const struct ps_table *table, const void *key, uint32_t key_bytes) {
    uint64_t hash = ps_key_hash(key, key_bytes);
    uint32_t tag = (uint32_t)(hash >> 32) | PS_TAG_LIVE;
    for (uint64_t i = hash & table->slot_mask;; i = (i + 1) & table->slot_mask) {
        struct ps_slot slot = table->slots[i];
        if (PS_LIKELY(slot.tag == tag)) {
            struct ps_entry *entry = ps_entry_at(table, slot.number);
            if (PS_LIKELY(memcmp(entry->body, key, key_bytes) == 0)) return entry;
        }
        if (slot.tag == 0) return table->default_entry;
    }
}

/* The same for any kind of table. A table without a key gives its default entry. */
static inline struct ps_entry *ps_lookup(const struct ps_table *table, const void *key) {
    return table->lookup(table, (const uint8_t *)key);
}

static inline int ps_hit(const struct ps_table *table, const struct ps_entry *entry) {
    return entry != table->default_entry;
}

/* The action of an entry whose table has no selector. Never NULL. */
static inline const struct ps_action *ps_entry_action(const struct ps_entry *entry) { return entry->action; }

/* The action of an entry of a table with a selector; `hash` is over the key fields of the selector. */
static inline const struct ps_action *ps_select_action(const struct ps_table *table, const struct ps_entry *entry,
                                                       uint32_t hash) {
    if (entry->action != NULL) return entry->action;
    const struct ps_group *group = entry->extra->group;
    if (group->slot_count == 0) return table->default_entry->action;
    return group->slots[hash % group->slot_count];
}

/* Direct counter of a matched entry. */
static inline void ps_count_entry(const struct ps_ctx *ctx, struct ps_entry *entry) {
    entry->counter.packets++;
    entry->counter.bytes += ctx->count_bytes;
}

/* Idle timeout of a matched entry (PS_TABLE_AGES). */
static inline void ps_touch_entry(const struct ps_ctx *ctx, struct ps_entry *entry) {
    entry->extra->last_hit_us = ctx->now_us;
}

/* The direct meter of a matched entry; `pre_color` is the colour that the packet already has. */
static inline uint32_t ps_meter_entry(struct ps_ctx *ctx, struct ps_entry *entry, uint32_t pre_color) {
    return ctx->api->meter(ctx, &entry->extra->meter, pre_color);
}

/* ------------------------------------------------------------------ externs */

/* An index out of range counts, meters and writes nothing; a read gives NULL. */
static inline uint8_t *ps_register_cell(const struct ps_register *reg, uint64_t index, uint32_t cell_bytes) {
    return PS_LIKELY(index < reg->count) ? reg->cells + index * cell_bytes : NULL;
}

static inline void ps_count(const struct ps_ctx *ctx, const struct ps_counter *counter, uint64_t index) {
    if (PS_LIKELY(index < counter->count)) {
        counter->cells[index].packets++;
        counter->cells[index].bytes += ctx->count_bytes;
    }
}

/* `color`: on entry the colour that the packet has, on return the colour that an indexed meter gives it. An index out
 * of range leaves it unchanged. */
static inline void ps_meter(struct ps_ctx *ctx, const struct ps_meter *meter, uint64_t index, uint32_t *color) {
    if (PS_LIKELY(index < meter->count)) *color = ctx->api->meter(ctx, &meter->cells[index], *color);
}

/* mark_to_drop(standard_metadata). */
static inline void ps_mark_to_drop(struct ps_standard_metadata *meta) {
    meta->egress_spec = PS_PORT_DROP;
    meta->mcast_grp = 0;
}

/* clone, clone_preserving_field_list: list -1 preserves nothing. */
static inline void ps_clone(struct ps_ctx *ctx, uint32_t session, int32_t list) {
    ctx->clone = 1;
    ctx->clone_session = session;
    ctx->clone_list = list;
}

static inline void ps_resubmit(struct ps_ctx *ctx, int32_t list) {
    ctx->resubmit = 1;
    ctx->resubmit_list = list;
}

static inline void ps_recirculate(struct ps_ctx *ctx, int32_t list) {
    ctx->recirculate = 1;
    ctx->recirculate_list = list;
}

/* truncate(length): the shortest of several calls holds. */
static inline void ps_truncate(struct ps_ctx *ctx, uint32_t bytes) {
    if (~bytes > ctx->truncate_bytes_inverse) ctx->truncate_bytes_inverse = ~bytes;
}

/* Mirror.emit: the last of several calls holds. `header` has `bytes` bytes (at most PS_TNA_MIRROR_HEADER_MAX). */
static inline void ps_mirror(struct ps_ctx *ctx, uint32_t session, const uint8_t *header, uint32_t bytes) {
    ctx->mirror = 1;
    ctx->mirror_session = (uint16_t)session;
    ctx->mirror_header_bytes = (uint8_t)bytes;
    memcpy(ctx->mirror_header, header, bytes);
}

/* parser_err of TNA for an error of core.p4: one bit each. */
static inline uint16_t ps_tna_parser_error(uint32_t error) {
    switch (error) {
    case PS_ERROR_NO_ERROR:
        return 0;
    case PS_ERROR_PACKET_TOO_SHORT:
    case PS_ERROR_HEADER_TOO_SHORT:
        return 0x0002;
    case PS_ERROR_STACK_OUT_OF_BOUNDS:
        return 0x0040;
    case PS_ERROR_PARSER_TIMEOUT:
        return 0x0010;
    default:
        return 0x0001;
    }
}

static inline void ps_digest(struct ps_ctx *ctx, uint32_t digest, const void *packed) {
    ctx->api->digest(ctx, digest, packed);
}

/* xoshiro256++ */
static inline uint64_t ps_random64(struct ps_ctx *ctx) {
    uint64_t *s = ctx->rng;
    uint64_t sum = s[0] + s[3];
    uint64_t result = ((sum << 23) | (sum >> 41)) + s[0];
    uint64_t t = s[1] << 17;
    s[2] ^= s[0];
    s[3] ^= s[1];
    s[1] ^= s[2];
    s[0] ^= s[3];
    s[2] ^= t;
    s[3] = (s[3] << 45) | (s[3] >> 19);
    return result;
}

/* Uniform in [low, high]; low if high < low. */
static inline uint64_t ps_random(struct ps_ctx *ctx, uint64_t low, uint64_t high) {
    if (high <= low) return low;
    uint64_t span = high - low;
    if (span == UINT64_MAX) return ps_random64(ctx);
    return low + (uint64_t)(((unsigned __int128)ps_random64(ctx) * (span + 1)) >> 64);
}

#endif
