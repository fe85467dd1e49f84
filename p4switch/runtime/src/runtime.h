/* Inside of the runtime: the structures its files share. The parts, each a file:
 *
 *   hash.c      v1model's hash algorithms          table.c     tables of every match kind
 *   meter.c     trTCM (RFC 2698)                   pipeline.c  one program's state
 *   masked.c    lpm, ternary, range, optional      maps.c      id -> pointer
 *   groups.c    actions, profiles, replication     batch.c     what the control plane writes
 *   read.c      what it reads                      port.c      what all ports share
 *   events.c    what Python drains                 buffer.c    packet buffers
 *   offload.c   checksums and segmentation that senders left to the NIC
 *   faults.c    loss, duplication, reordering, corruption, delay; shaping
 *   port_*.c    the kinds of ports                 engine.c    v1model's traffic manager
 *   tna.c       Tofino's traffic manager           recirculation.c  its recirculation ports
 *   switch.c    thread, gate, exported functions   pcap.c      capture files
 *
 * Locking: everything below ps_switch is touched only by the thread that holds the gate (ps_gate_enter). The packet
 * thread holds it while it runs one burst, the control plane while it applies one batch; a turnstile in front of it
 * keeps either from starving the other. So packets see whole batches and no table needs atomics.
 * Only the event queues have locks of their own.
 */
#ifndef P4SWITCH_RUNTIME_H
#define P4SWITCH_RUNTIME_H

#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <linux/virtio_net.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <sys/uio.h>

#include "p4switch_abi.h"

#define PS_EXPORT __attribute__((visibility("default")))

/* ------------------------------------------------------------------ limits */

enum {
    PS_PORTS_MAX = 512,               /* 9-bit port numbers */
    PS_FRAME_BYTES_MAX = 65536 + 256, /* a GSO super-packet with its link header */
    PS_BUFFER_HEADROOM = 192,         /* virtio header, VLAN tag put back, alignment */
    PS_BUFFER_SLACK = 128,            /* readable bytes behind a frame (ABI) */
    PS_BUFFERS = 8192,                /* virtual; pages are touched as buffers are used */
    PS_BURST = 64,                    /* frames a port may bring in before the others get their turn */
    PS_PENDING_MAX = 1024,            /* recirculated and resubmitted packets waiting */
    PS_RECIRCULATION_PORTS = 4,
    PS_EXCLUSIONS = 512,              /* 9-bit level-2 exclusion ids of TNA */
    PS_RECIRCULATING_MAX = 6144,      /* packets that wait at recirculation ports: the rest of the buffers is for the others */
    PS_CLONE_DEPTH_MAX = 8,           /* clones of clones of ... */
    PS_TX_BATCH = 64,
    PS_TIMERS_MAX = 16384,            /* packets held by delay and reordering */
    PS_BUFFERS_UNDELAYED = 1024,      /* buffers that delayed packets leave to the others */
    PS_BACKLOG_BYTES = 4 << 20,       /* what a port keeps while its socket takes no more */
    PS_BACKLOG_ITEMS = 2048,
    PS_ENTRIES_MAX = 1 << 24,         /* of one table */
    PS_TABLE_SIZE_DEFAULT = 1024,     /* of a table that declares no size, as bmv2 */
    PS_KEY_WORDS_MAX = 512,           /* 8 bytes each */
    PS_SLOTS_MIN = 16,
    PS_GROUP_SLOTS_MAX = 1 << 16,     /* sum of a selector group's weights */
};

static inline uint64_t ps_min64(uint64_t a, uint64_t b) { return a < b ? a : b; }

/* ------------------------------------------------------------------ results of control operations */

enum ps_status {
    PS_OK = 0,
    PS_FULL = 1,
    PS_EXISTS = 2,
    PS_NOT_FOUND = 3,
    PS_CONST = 4,
    PS_INVALID = 5,
    PS_IN_USE = 6,
};

/* ------------------------------------------------------------------ table.c */

struct ps_table_store; /* private to masked.c */

struct ps_table_state {
    struct ps_table *table; /* in ps_pipeline.tables */
    const struct ps_program *program;
    const struct ps_table_desc *desc;
    uint64_t capacity;
    uint32_t live;
    uint32_t high_water;       /* entry numbers below it have been used */
    uint32_t *free_numbers;    /* stack */
    uint32_t free_count;
    uint8_t *live_bits;        /* a byte an entry: 0 free, 1 live, 2 live and const */
    struct ps_entry_extra *extras;
    uint32_t mask_offset;      /* in body; 0: exact, no mask */
    uint32_t action_offset;    /* in body */
    uint32_t param_bytes_max;
    struct ps_slot *slots;     /* exact: what table->slots points to */
    struct ps_table_store *store;
    uint32_t idle_cursor;
};

int ps_table_init(struct ps_table_state *t, struct ps_table *table, const struct ps_program *program,
                  const struct ps_table_desc *desc);
void ps_table_free(struct ps_table_state *t);
enum ps_status ps_table_insert(struct ps_table_state *t, const uint8_t *key, const uint8_t *mask, uint32_t priority,
                               uint32_t *number);
enum ps_status ps_table_delete(struct ps_table_state *t, uint32_t number);
bool ps_table_live(const struct ps_table_state *t, uint32_t number);
struct ps_action *ps_table_own_action(const struct ps_table_state *t, struct ps_entry *entry);
/* Room for `more` entries without a rehash between packets; called outside the gate. */
struct ps_slot *ps_table_grow_prepare(const struct ps_table_state *t, uint64_t more, uint64_t *mask);

/* Zeroed pages that cost nothing until they are touched. */
void *ps_reserve(size_t bytes);
void ps_release(void *p, size_t bytes);

/* Open addressing with linear probing, shared by exact tables and tuples. */
uint32_t ps_slot_tag(uint64_t hash);
void ps_slot_put(struct ps_slot *slots, uint64_t mask, uint64_t hash, uint32_t number);
void ps_slot_remove(struct ps_slot *slots, uint64_t mask, uint64_t i, uint64_t (*hash_of)(const void *, uint32_t),
                    const void *arg);

/* masked.c */
int ps_masked_init(struct ps_table_state *t, bool lpm);
void ps_masked_free(struct ps_table_state *t);
uint32_t ps_masked_normalize(const struct ps_table_store *s, uint64_t *value, const uint64_t *mask, uint32_t priority);
bool ps_masked_insert(struct ps_table_store *s, uint32_t number);
void ps_masked_remove(struct ps_table_store *s, uint32_t number);
uint32_t ps_masked_find(const struct ps_table_store *s, const uint64_t *value, const uint64_t *mask, uint32_t priority);
struct ps_entry *ps_masked_lookup(const struct ps_table *table, const uint8_t *key);

/* ------------------------------------------------------------------ pipeline.c */

struct ps_replica {
    uint32_t port;
    uint32_t instance;
};

struct ps_replicas { /* multicast group or clone session */
    uint32_t id;
    uint32_t count;
    uint32_t truncate_bytes;
    uint32_t class_of_service;
    struct ps_replica *list;
};

struct ps_member {
    uint32_t id;
    uint32_t refs; /* entries and group slots */
    struct ps_action *action;
};

struct ps_weighted {
    uint32_t member;
    uint32_t weight;
    uint32_t watch_port; /* UINT32_MAX: none */
};

struct ps_group_state {
    struct ps_group group; /* first: entries point to it */
    uint32_t refs;
    uint32_t member_count;
    struct ps_weighted *members;
};

struct ps_id_map { /* id -> pointer, open addressing */
    uint32_t *ids;     /* 0xffffffff free */
    void **values;
    uint64_t mask;
    uint64_t used;
};

void *ps_map_get(const struct ps_id_map *map, uint32_t id);
int ps_map_put(struct ps_id_map *map, uint32_t id, void *value);
void *ps_map_remove(struct ps_id_map *map, uint32_t id);
void ps_map_free(struct ps_id_map *map);
#define PS_FREE_ID UINT32_MAX

struct ps_profile {
    const struct ps_profile_desc *desc;
    struct ps_id_map members; /* struct ps_member * */
    struct ps_id_map groups;  /* struct ps_group_state * */
    uint64_t member_count;
    uint32_t param_bytes_max;
};

struct ps_switch;

struct ps_pipeline {
    uint64_t serial;
    struct ps_switch *sw;
    pthread_mutex_t control; /* one batch at a time, also while it prepares outside the gate */
    const struct ps_program *program;
    struct ps_table *tables;
    struct ps_table_state *states;
    struct ps_profile *profiles;
    struct ps_register *registers;
    struct ps_counter *counters;
    struct ps_meter *meters;
    struct ps_id_map mcast;  /* struct ps_replicas * */
    struct ps_id_map clones; /* struct ps_replicas * */
    struct ps_replicas **mcast_direct; /* by id below PS_MCAST_DIRECT */
    uint8_t *egress_phv;     /* TNA: the one packet that is at egress */
    uint8_t *phvs;           /* PS_PHVS of them: a working one and a pristine one for each depth of cloning */
    uint8_t *pending_metadata; /* PS_PENDING_MAX images, see ps_pending_image() */
    void *scratch;
    bool ages;               /* some table has idle timeouts */
};

/* groups.c */
enum ps_action_kind { PS_ACTION_NONE = 0, PS_ACTION_CALL = 1, PS_ACTION_MEMBER = 2, PS_ACTION_GROUP = 3 };
enum ps_status ps_set_action(struct ps_pipeline *p, struct ps_table_state *t, struct ps_entry *entry, uint32_t kind,
                             uint32_t action, const uint8_t *params, size_t param_bytes);
void ps_unref_action(struct ps_pipeline *p, const struct ps_table_desc *desc, struct ps_entry *entry);
void ps_reset_default(struct ps_pipeline *p, struct ps_table_state *t);
enum ps_status ps_member_set(struct ps_pipeline *p, struct ps_profile *profile, uint32_t id, uint32_t action,
                             const uint8_t *params, size_t param_bytes);
enum ps_status ps_member_delete(struct ps_profile *profile, uint32_t id);
enum ps_status ps_group_set(struct ps_pipeline *p, struct ps_profile *profile, uint32_t id, const struct ps_weighted *list,
                            uint32_t count);
enum ps_status ps_group_delete(struct ps_profile *profile, uint32_t id);
void ps_profile_free(struct ps_profile *profile);
enum ps_status ps_replicas_set(struct ps_pipeline *p, bool mcast, uint32_t id, const struct ps_replica *list, uint32_t count,
                               uint64_t truncate_bytes, uint64_t class_of_service);
enum ps_status ps_replicas_delete(struct ps_pipeline *p, bool mcast, uint32_t id);
void ps_replicas_map_free(struct ps_id_map *map);

/* batch.c */
int ps_load_const_entries(struct ps_pipeline *p, struct ps_table_state *t);

static inline bool ps_in_range(uint64_t first, uint64_t count, uint64_t size) { return first <= size && count <= size - first; }

enum { PS_MCAST_DIRECT = 65536, PS_PHVS = 2 * (PS_CLONE_DEPTH_MAX + 1) };

#define PS_ANY_PORT UINT32_MAX
/* Groups that watch `port` (PS_ANY_PORT: any) are spread anew over the members whose ports are up. */
void ps_pipeline_port_changed(struct ps_pipeline *p, uint32_t port);
void ps_pipeline_age(struct ps_pipeline *p, uint64_t now_us, uint32_t budget);

/* ------------------------------------------------------------------ events.c */

enum ps_event_kind {
    PS_EVENT_DIGEST = 1,
    PS_EVENT_PACKET_IN = 2,
    PS_EVENT_IDLE = 3,
    PS_EVENT_LOG = 4,
    PS_EVENT_PORT = 5,
};

/* As Python reads it: this header, then `length` bytes, padded to 8. */
struct ps_event {
    uint32_t total;  /* bytes of this record with padding */
    uint32_t kind;
    uint64_t pipeline; /* serial */
    uint64_t at_us;
    uint32_t a;
    uint32_t b;
    uint32_t length;
    uint32_t pad;
};

struct ps_event_ring {
    uint8_t *bytes;
    uint64_t capacity, head, tail; /* head: next to read; monotonic */
    uint64_t dropped;
};

struct ps_events {
    pthread_mutex_t lock;
    pthread_cond_t ready;
    struct ps_event_ring rings[3]; /* digests; packet-ins; the rest: a flood of one does not push out another */
    uint64_t written[6];           /* by kind */
    uint64_t dropped[6];
    bool closed;
};

void ps_events_init(struct ps_events *e);
void ps_events_free(struct ps_events *e);
void ps_events_post(struct ps_events *e, uint32_t kind, uint64_t pipeline, uint64_t at_us, uint32_t a, uint32_t b,
                    const struct iovec *parts, int part_count);

/* ------------------------------------------------------------------ buffer.c */

struct ps_buffer {
    uint32_t refs;
    uint32_t length;      /* of the frame */
    uint8_t *bytes;       /* of the frame */
    struct virtio_net_hdr vnet; /* flags and gso_type 0: a plain, complete frame */
    struct ps_buffer *next;
    uint8_t *storage;
};

struct ps_buffer_pool {
    uint8_t *memory;
    size_t memory_bytes;
    struct ps_buffer *headers;
    struct ps_buffer *free;
    uint32_t free_count;
};

int ps_pool_init(struct ps_buffer_pool *pool);
void ps_pool_free(struct ps_buffer_pool *pool);

static inline struct ps_buffer *ps_buffer_get(struct ps_buffer_pool *pool) {
    struct ps_buffer *b = pool->free;
    if (PS_UNLIKELY(b == NULL)) return NULL;
    pool->free = b->next;
    pool->free_count--;
    b->refs = 1;
    b->length = 0;
    b->bytes = b->storage + PS_BUFFER_HEADROOM;
    memset(&b->vnet, 0, sizeof b->vnet);
    return b;
}

static inline void ps_buffer_ref(struct ps_buffer *b) { b->refs++; }

static inline void ps_buffer_put(struct ps_buffer_pool *pool, struct ps_buffer *b) {
    if (--b->refs == 0) {
        b->next = pool->free;
        pool->free = b;
        pool->free_count++;
    }
}

/* A packet on its way out: headers in one buffer, payload in another (or none); both are referenced. */
struct ps_tx {
    struct ps_buffer *head;
    struct ps_buffer *tail; /* NULL: no payload */
    const uint8_t *payload;
    uint32_t head_bytes;
    uint32_t payload_bytes;
    struct virtio_net_hdr vnet;
};

static inline uint32_t ps_tx_bytes(const struct ps_tx *tx) { return tx->head_bytes + tx->payload_bytes; }
static inline void ps_tx_ref(const struct ps_tx *tx) {
    ps_buffer_ref(tx->head);
    if (tx->tail) ps_buffer_ref(tx->tail);
}
static inline void ps_tx_put(struct ps_buffer_pool *pool, const struct ps_tx *tx) {
    ps_buffer_put(pool, tx->head);
    if (tx->tail) ps_buffer_put(pool, tx->tail);
}
/* One buffer with all bytes of `tx`; NULL if there is none left. Keeps tx's references. */
struct ps_buffer *ps_tx_flatten(struct ps_buffer_pool *pool, const struct ps_tx *tx);

/* ------------------------------------------------------------------ offload.c */

static inline bool ps_vnet_plain(const struct virtio_net_hdr *h) {
    return !(h->flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) && h->gso_type == VIRTIO_NET_HDR_GSO_NONE;
}
/* Fills in the checksum that the sender left to the NIC; the frame becomes plain. False: the header lies. */
bool ps_complete_checksum(struct ps_buffer *b);
/* Cuts a GSO super-packet into frames of its gso_size, checksums filled in; calls `each` for every one with a buffer
 * that `each` owns. Returns frames made, -1 if the headers do not fit together (nothing was emitted). */
int ps_segment(struct ps_buffer_pool *pool, const struct ps_buffer *super, void (*each)(void *arg, struct ps_buffer *b),
               void *arg);
/* Carries the input's virtio header over to the packet made of it: true if it still fits. */
bool ps_vnet_carry(const struct ps_buffer *in, uint32_t consumed, struct ps_tx *tx);
uint16_t ps_inet_sum(const uint8_t *bytes, size_t length, uint32_t start);

/* ------------------------------------------------------------------ hash.c, meter.c */

extern const struct ps_api ps_runtime_api;
uint32_t ps_crc32(const uint8_t *bytes, size_t length);
uint16_t ps_crc16(const uint8_t *bytes, size_t length);
uint16_t ps_csum16(const uint8_t *bytes, size_t length);
uint16_t ps_xor16(const uint8_t *bytes, size_t length);
uint32_t ps_meter_run(struct ps_ctx *ctx, struct ps_meter_cell *cell, uint32_t pre_color);
void ps_meter_configure(struct ps_meter_cell *cell, const uint64_t config[4], bool configured, uint64_t now_us);

/* ------------------------------------------------------------------ ports */

enum ps_direction { PS_RX = 0, PS_TX = 1 };

struct ps_rng {
    uint64_t s;
};
static inline uint64_t ps_rng_next(struct ps_rng *r) { /* splitmix64 */
    uint64_t z = (r->s += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* As Python fills it. Probabilities as fractions of 2^32. */
struct ps_faults {
    uint64_t seed;
    uint32_t loss, duplicate, reorder, corrupt;
    uint32_t delay_us, jitter_us;
    uint32_t reorder_gap;
    uint32_t enabled;
};

struct ps_held { /* a reordered packet waiting for others to pass */
    struct ps_tx tx;
    uint32_t left;
    uint64_t serial;
    bool full;
};

struct ps_fault_state {
    struct ps_faults config;
    struct ps_rng rng;
    struct ps_held held;
    uint64_t last_due_us; /* delayed packets keep their order unless jitter says otherwise */
};

struct ps_tx_queue { /* bounded FIFO of packets */
    struct ps_tx *items;
    uint32_t capacity, head, count;
    uint64_t bytes, bytes_max;
};

struct ps_shape_state {
    uint64_t rate_bits; /* 0: unshaped */
    uint64_t burst_bytes;
    uint64_t tokens;     /* bits * 1e6 */
    uint64_t updated_us;
    struct ps_tx_queue queue;
    bool timer_armed;
    uint64_t serial; /* of the settings: timers of older ones are void */
};

/* As Python reads it. */
struct ps_port_stats {
    uint64_t rx_packets, rx_bytes, tx_packets, tx_bytes;
    uint64_t rx_dropped;       /* came in damaged, too long, or found no buffer */
    uint64_t tx_dropped;       /* the socket refused it, or the port is down */
    uint64_t tx_queue_dropped; /* queue full */
    uint64_t rx_lost, rx_duplicated, rx_reordered, rx_corrupted, rx_delayed;
    uint64_t tx_lost, tx_duplicated, tx_reordered, tx_corrupted, tx_delayed;
    uint64_t up;
};

struct ps_port;

struct ps_port_ops {
    /* Receives up to PS_BURST frames and hands each to ps_port_received(); returns frames, 0 if there was none. */
    int (*receive)(struct ps_port *port);
    /* Sends up to `count`; returns how many were taken or are to be forgotten. Fewer than count: the socket is full. */
    int (*send)(struct ps_port *port, const struct ps_tx *items, int count);
    void (*close)(struct ps_port *port);
    void (*tick)(struct ps_port *port); /* about every 100 ms: reopen, reconnect */
};

struct ps_port {
    struct ps_switch *sw;
    uint32_t id;
    const struct ps_port_ops *ops;
    int rx_fd, tx_fd; /* -1: none */
    bool rx_registered, tx_watched;
    bool carries_vnet;
    bool up;
    bool dirty; /* has packets in out[] */
    uint32_t mtu_frame; /* largest frame it sends, 0: any */
    struct ps_port_stats stats;
    struct ps_tx out[PS_TX_BATCH];
    int out_count;
    struct ps_tx_queue backlog;
    struct ps_shape_state shape;
    struct ps_fault_state faults[2];
    FILE *pcap[2];
    void *impl;
};

/* port.c: between engine and ports */
void ps_port_received(struct ps_port *port, struct ps_buffer *frame); /* owns frame */
void ps_port_transmit(struct ps_port *port, const struct ps_tx *tx);  /* owns tx's references */
void ps_port_flush(struct ps_port *port);
void ps_port_writable(struct ps_port *port);
/* Hands on the frames of `b`, cut and completed if it was left to a NIC; owns b. */
void ps_port_soften(struct ps_buffer_pool *pool, struct ps_buffer *b, void (*each)(void *, struct ps_buffer *), void *arg);
void ps_port_set_up(struct ps_port *port, bool up);
void ps_port_emit(struct ps_port *port, const struct ps_tx *tx);  /* after shaping and faults */
void ps_port_deliver(struct ps_port *port, struct ps_buffer *b);  /* after faults, into the engine */
int ps_port_register(struct ps_port *port);
void ps_port_unregister(struct ps_port *port);

int ps_queue_push(const struct ps_buffer_pool *pool, struct ps_tx_queue *q, const struct ps_tx *tx);
bool ps_queue_pop(struct ps_tx_queue *q, struct ps_tx *tx);

int ps_packet_port_open(struct ps_port *port, const char *name, char *error, size_t error_bytes);
void ps_packet_port_link_changed(struct ps_port *port);
int ps_unix_port_open(struct ps_port *port, const char *local, const char *peer, char *error, size_t error_bytes);
int ps_udp_port_open(struct ps_port *port, const char *local_host, uint16_t *local_port, const char *peer_host,
                     uint16_t peer_port, char *error, size_t error_bytes);
int ps_memory_port_open(struct ps_port *port, bool discard);

/* faults.c */
void ps_faults_set(struct ps_port *port, enum ps_direction direction, const struct ps_faults *config);
bool ps_faults_apply(struct ps_port *port, enum ps_direction direction, const struct ps_tx *tx);
void ps_faults_drop_held(struct ps_port *port);
void ps_shape_set(struct ps_port *port, uint64_t rate_bits, uint64_t burst_bytes, uint64_t queue_bytes);
void ps_shape_send(struct ps_port *port, const struct ps_tx *tx);
void ps_shape_release(struct ps_port *port);

/* Timers: a heap of due times. */
enum ps_timer_kind { PS_TIMER_FORGOTTEN = 0, PS_TIMER_DELIVER = 1, PS_TIMER_EMIT = 2, PS_TIMER_SHAPE = 3, PS_TIMER_HELD = 4 };
struct ps_timer {
    uint64_t due_us;
    uint64_t serial;
    uint32_t port;
    uint32_t kind;
    uint64_t cookie;
    struct ps_tx tx;
};
int ps_timer_add(struct ps_switch *sw, uint64_t due_us, uint32_t port, uint32_t kind, uint64_t cookie,
                 const struct ps_tx *tx);
int ps_timers_run(struct ps_switch *sw);
void ps_timers_forget(struct ps_switch *sw, uint32_t port);

/* pcap.c */
FILE *ps_pcap_open(const char *path);
void ps_pcap_write(FILE *f, uint64_t epoch_us, const struct iovec *parts, int count);

/* ------------------------------------------------------------------ switch.c */

/* As Python reads it. */
struct ps_switch_stats {
    uint64_t received, processed;
    uint64_t dropped_ingress, dropped_egress;
    uint64_t no_pipeline, no_group, no_session, no_port, no_buffer;
    uint64_t parser_errors;
    uint64_t recirculated, resubmitted, cloned, replicated, queue_full, clone_too_deep;
    uint64_t digests, digests_dropped, packet_ins, packet_ins_dropped;
    uint64_t wakeups;
    uint64_t recirculation_lost; /* found the queue of its recirculation port full */
    uint64_t recirculating, recirculating_bytes; /* wait there now */
};

struct ps_switch_config {
    uint32_t cpu_port; /* UINT32_MAX: none */
    uint32_t drop_port;
    uint64_t seed;
    uint32_t virtual_clock;
    uint32_t trace;
    uint32_t recirculation_ports[PS_RECIRCULATION_PORTS]; /* UINT32_MAX: none */
    uint64_t recirculation_rate_bits; /* a second, each port; 0: as fast as the switch can */
    uint64_t recirculation_queue_bytes; /* each port */
};

/* A port of TNA that leads from egress back to ingress: queues of bounded length in all, in front of a line of bounded
 * rate, which takes from each queue with packets in turn. */
enum { PS_RECIRCULATION_QUEUES = 32, PS_NO_NODE = UINT32_MAX };

struct ps_recirculating {
    struct ps_tx tx;
    uint32_t next; /* node in the same queue, or free */
};

struct ps_recirculation {
    uint32_t port;
    struct ps_recirculating *nodes; /* PS_RECIRCULATING_MAX; NULL until one is needed */
    uint32_t free_node, count;
    struct {
        uint32_t first, last;
    } queues[PS_RECIRCULATION_QUEUES];
    uint32_t busy;  /* a bit for each queue with packets */
    uint32_t turn;  /* the queue that was served last */
    uint64_t bytes; /* that wait */
    int64_t credit_bits; /* what may pass now; negative: wait */
    uint64_t refilled_us;
};

struct ps_pending { /* waits to enter ingress */
    struct ps_buffer *frame;
    uint32_t ingress_port;
    uint32_t instance_type;
    uint32_t slot; /* of pipeline->pending_metadata */
};

/* Bytes of a metadata image: programs take it for the start of a PHV, so it is aligned as one. */
static inline size_t ps_pending_image_bytes(const struct ps_program *program) {
    return ((size_t)program->metadata_bytes + 63) / 64 * 64;
}

static inline uint8_t *ps_pending_image(const struct ps_pipeline *pipeline, uint32_t slot) {
    return pipeline->pending_metadata + slot * ps_pending_image_bytes(pipeline->program);
}

struct ps_switch {
    pthread_mutex_t turnstile, gate;
    struct ps_switch_config config;
    struct ps_buffer_pool pool;
    struct ps_port *ports[PS_PORTS_MAX];
    struct ps_port *dirty[PS_PORTS_MAX];
    int dirty_count;
    struct ps_pipeline *pipeline;
    uint64_t pipeline_serial;
    struct ps_ctx ctx;
    struct ps_switch_stats stats;
    struct ps_events events;

    struct ps_pending pending[PS_PENDING_MAX];
    uint32_t pending_head, pending_count;
    struct ps_recirculation recirculations[PS_RECIRCULATION_PORTS];
    uint32_t recirculation_count; /* of ports */
    uint32_t arrival_port;        /* TNA: of the packet that is at ingress */
    uint64_t exclusions[PS_EXCLUSIONS][PS_PORTS_MAX / 64]; /* TNA: the ports of each level-2 exclusion id */

    struct ps_timer *timers;
    uint32_t timer_count;
    uint64_t timer_serial;

    uint64_t started_ns;
    uint64_t aged_us;
    uint64_t epoch_us; /* wall clock at start, for capture files */
    uint64_t now_us;
    uint64_t tick_due_us;

    int epoll_fd, wake_fd, timer_fd, link_fd;
    uint64_t timer_armed_us;
    pthread_t thread;
    bool running;
    bool stopping; /* atomic */
    uint64_t memory_serial; /* orders the frames of all memory ports */
};

void ps_gate_enter(struct ps_switch *sw);
void ps_gate_leave(struct ps_switch *sw);
void ps_clock_update(struct ps_switch *sw);

/* engine.c */
void ps_arrived(struct ps_switch *sw, struct ps_buffer *frame, uint32_t port); /* owns frame */
void ps_engine_to_port(struct ps_switch *sw, uint32_t port, const struct ps_tx *tx); /* owns tx */
void ps_engine_ingress(struct ps_switch *sw, struct ps_buffer *frame, uint32_t ingress_port, uint32_t instance_type,
                       const uint8_t *metadata); /* owns frame */
int ps_engine_pending(struct ps_switch *sw, int budget);
void ps_trace(struct ps_switch *sw, const char *format, ...) __attribute__((format(printf, 2, 3)));
void ps_engine_flush_pending(struct ps_switch *sw);
void ps_engine_flush(struct ps_switch *sw);

#define TRACE(sw, ...)                                                       \
    do {                                                                     \
        if (PS_UNLIKELY((sw)->ctx.trace_enabled)) ps_trace(sw, __VA_ARGS__); \
    } while (0)

/* tna.c */
void ps_tna_ingress(struct ps_switch *sw, struct ps_buffer *frame, uint32_t port); /* owns frame */

/* recirculation.c */
void ps_recirculation_init(struct ps_switch *sw);
void ps_recirculation_free(struct ps_switch *sw);
/* The recirculation port of that number, or NULL. */
struct ps_recirculation *ps_recirculation_at(struct ps_switch *sw, uint32_t port);
void ps_recirculation_put(struct ps_switch *sw, struct ps_recirculation *r, uint32_t queue, const struct ps_tx *tx); /* owns tx */
/* Lets in up to `budget` packets whose time has come; how many. */
int ps_recirculation_run(struct ps_switch *sw, int budget);
/* When the next packet may come in: now_us or earlier: at once; UINT64_MAX: none waits. */
uint64_t ps_recirculation_due_us(const struct ps_switch *sw);
void ps_recirculation_flush(struct ps_switch *sw);

#endif
