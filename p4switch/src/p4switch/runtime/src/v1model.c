/* The traffic manager of v1model: what happens to a packet between the functions of the program, as in bmv2's
 * simple_switch.
 *
 * After ingress, in this order: ingress clone (of the packet as it arrived, parsed again), resubmit, multicast group,
 * drop, unicast. After egress: egress clone, drop, deparse, recirculate, send. Packets run to completion. Only
 * resubmitted and recirculated packets wait, in a limited queue that is served between bursts, so no loop of a
 * program starves the ports; and before egress those of programs that look at queues, while their port is busy.
 *
 * Copies for several ports run egress one after the other on the same PHV. What egress may have changed is restored
 * from a pristine copy: headers only if it wrote some. Copies with unchanged headers share one deparsed buffer and
 * the payload. */
#include "v1model.h"

#include "join.h"
#include "offload.h"
#include "traffic.h"

struct shared_head { /* deparsed bytes that copies with unchanged headers share */
    struct ps_buffer *head;
    uint32_t bytes;
    bool merged; /* the payload is in it too */
};

#define INTENT_FIRST offsetof(struct ps_ctx, clone)
#define INTENT_BYTES (offsetof(struct ps_ctx, intent_end) - INTENT_FIRST)

static inline uint8_t *phv_at(const struct ps_pipeline *p, uint32_t depth, uint32_t pristine) {
    return p->phvs + (size_t)p->program->phv_bytes * (2 * depth + pristine);
}

static inline struct ps_standard_metadata *std_of(void *phv) { return phv; }

static inline void copy_phv(const struct ps_program *program, void *to, const void *from) {
    if (program->copy_phv)
        program->copy_phv(to, from);
    else
        memcpy(to, from, program->phv_bytes);
}

/* ------------------------------------------------------------------ leaving the switch */

struct rewritten {
    struct ps_switch *sw;
    uint32_t port;
};

static void send_rewritten(void *arg, struct ps_buffer *b) {
    struct rewritten *r = arg;
    struct ps_tx tx = {.head = b, .head_bytes = b->length};
    ps_send(r->sw, r->port, &tx);
}

/* The program changed bytes that a checksum left to the NIC covers, so the switch must complete it here. */
static void send_complete(struct ps_switch *sw, uint32_t port, const struct ps_tx *tx, const struct ps_buffer *in) {
    struct ps_buffer *b = ps_tx_flatten(&sw->pool, tx);
    ps_tx_put(&sw->pool, tx);
    if (!b) {
        sw->stats.no_buffer++;
        return;
    }
    b->vnet = in->vnet;
    struct rewritten r = {sw, port};
    ps_port_soften(&sw->pool, b, send_rewritten, &r);
}

static void truncate_tx(struct ps_switch *sw, struct ps_tx *tx, uint32_t inverse) {
    uint32_t most = ~inverse;
    if (inverse == 0 || ps_tx_bytes(tx) <= most) return;
    if (tx->head_bytes > most) tx->head_bytes = most;
    tx->payload_bytes = most - tx->head_bytes;
    if (tx->payload_bytes == 0 && tx->tail) {
        ps_buffer_put(&sw->pool, tx->tail);
        tx->tail = NULL;
    }
}

enum {
    IN_PLACE_MAX = 512, /* headers up to this size are cheaper to copy in front of the payload */
    MERGE_MAX = 256,    /* payloads up to this size are cheaper to copy behind the headers */
};

static void emit(struct ps_switch *sw, const struct ps_passage *in, uint32_t port, struct ps_buffer *head,
                 uint32_t head_bytes, bool merged, uint32_t truncate_inverse, bool in_place) {
    struct ps_buffer *frame = in->frame;
    struct ps_tx tx = {.head = head, .head_bytes = head_bytes};
    tx.payload_bytes = merged ? 0 : frame->length - in->consumed;
    if (tx.payload_bytes) {
        tx.tail = frame;
        tx.payload = frame->bytes + in->consumed;
        ps_buffer_ref(frame);
    }
    if (PS_UNLIKELY(!ps_vnet_plain(&frame->vnet))) {
        if (truncate_inverse || !ps_vnet_carry(frame, in->consumed, &tx)) {
            if (truncate_inverse) truncate_tx(sw, &tx, truncate_inverse);
            if (truncate_inverse)
                tx.vnet = (struct virtio_net_hdr){0};
            else {
                send_complete(sw, port, &tx, frame);
                return;
            }
        }
    } else if (PS_UNLIKELY(truncate_inverse)) {
        truncate_tx(sw, &tx, truncate_inverse);
    } else if (frame->cut.of) {
        ps_cut_carry(frame, &tx);
    }
    if (in_place && tx.tail && frame->refs == 2 && tx.head_bytes <= IN_PLACE_MAX) {
        /* Moves the headers in front of the payload, to send one piece. */
        int64_t shift = (int64_t)in->consumed - tx.head_bytes;
        if (frame->bytes + shift >= frame->storage + 64) {
            uint8_t *start = frame->bytes + shift;
            memcpy(start, head->bytes, tx.head_bytes);
            frame->bytes = start;
            frame->length = ps_tx_bytes(&tx);
            ps_buffer_put(&sw->pool, head);
            tx.head = frame;
            tx.head_bytes = frame->length;
            tx.tail = NULL;
            tx.payload = NULL;
            tx.payload_bytes = 0;
        }
    }
    TRACE(sw, "port %u: sent, %u bytes", port, ps_tx_bytes(&tx));
    ps_send(sw, port, &tx);
}

/* ------------------------------------------------------------------ going round again */

/* Takes over one reference to `frame`. */
static void enqueue_pending(struct ps_switch *sw, struct ps_buffer *frame, uint32_t ingress_port,
                            uint32_t instance_type, const void *phv, int32_t list) {
    if (sw->pending_count == PS_PENDING_MAX) {
        sw->stats.queue_full++;
        TRACE(sw, "recirculation queue full: packet dropped");
        ps_buffer_put(&sw->pool, frame);
        return;
    }
    const struct ps_program *program = sw->pipeline->program;
    uint32_t slot = (sw->pending_head + sw->pending_count++) % PS_PENDING_MAX;
    uint8_t *image = ps_pending_image(sw->pipeline, slot);
    memset(image, 0, program->metadata_bytes);
    if (list >= 0 && program->copy_field_list) program->copy_field_list(image, phv, list);
    sw->pending[slot] = (struct ps_pending){frame, ingress_port, instance_type, slot};
}

static void recirculate(struct ps_switch *sw, const struct ps_passage *in, const void *phv, struct ps_buffer *head,
                        uint32_t head_bytes, bool merged, uint32_t truncate_inverse, int32_t list) {
    struct ps_buffer *frame = in->frame;
    struct ps_tx tx = {
        .head = head, .head_bytes = head_bytes, .payload_bytes = merged ? 0 : frame->length - in->consumed};
    tx.payload = frame->bytes + in->consumed;
    if (tx.payload_bytes) {
        tx.tail = frame;
        ps_buffer_ref(frame);
    }
    bool plain = ps_vnet_plain(&frame->vnet);
    if (!plain && !ps_vnet_carry(frame, in->consumed, &tx)) tx.vnet = (struct virtio_net_hdr){0};
    truncate_tx(sw, &tx, truncate_inverse);
    struct ps_buffer *whole = ps_tx_flatten(&sw->pool, &tx);
    ps_tx_put(&sw->pool, &tx);
    if (!whole) {
        sw->stats.no_buffer++;
        return;
    }
    sw->stats.recirculated++;
    TRACE(sw, "recirculated, %u bytes", whole->length);
    enqueue_pending(sw, whole, 0, PS_INSTANCE_RECIRCULATED, phv, list);
}

/* ------------------------------------------------------------------ egress */

static void replicate(struct ps_switch *sw, void *phv, const struct ps_passage *in, const struct ps_replica *list,
                      uint32_t count);

struct egress_clone {
    const struct ps_replicas *session;
    struct ps_passage passage;
    void *phv;
};

/* The copy of an egress clone is taken now; its egress runs after the original has left. */
static bool take_egress_clone(struct ps_switch *sw, void *phv, const struct ps_passage *in,
                              struct egress_clone *clone) {
    struct ps_pipeline *p = sw->pipeline;
    const struct ps_program *program = p->program;
    clone->session = ps_map_get(&p->clones, sw->ctx.clone_session);
    if (!clone->session) {
        sw->stats.no_session++;
        return false;
    }
    uint32_t depth = in->depth + 1;
    if (depth > PS_CLONE_DEPTH_MAX) {
        sw->stats.clone_too_deep++;
        return false;
    }
    sw->stats.cloned++;
    TRACE(sw, "cloned in egress to session %u, %u copies", sw->ctx.clone_session, clone->session->count);
    clone->phv = phv_at(p, depth, 0);
    copy_phv(program, clone->phv, phv);
    memset(clone->phv, 0, program->metadata_bytes);
    if (sw->ctx.clone_list >= 0 && program->copy_field_list)
        program->copy_field_list(clone->phv, phv, sw->ctx.clone_list);
    std_of(clone->phv)->instance_type = PS_INSTANCE_EGRESS_CLONE;
    clone->passage = *in;
    clone->passage.depth = depth;
    clone->passage.last = false;
    clone->passage.truncate_inverse = clone->session->truncate_bytes ? ~clone->session->truncate_bytes : 0;
    clone->passage.length_change = sw->ctx.length_change;
    return true;
}

/* Runs egress on the PHV for one port and sends the result. Returns whether header fields may have changed. `met`
 * NULL: the packet has not waited. */
static bool egress_now(struct ps_switch *sw, void *phv, const struct ps_passage *in, uint32_t port, uint32_t rid,
                       struct shared_head *shared, const struct ps_queueing *met) {
    struct ps_pipeline *p = sw->pipeline;
    const struct ps_program *program = p->program;
    struct ps_ctx *ctx = &sw->ctx;
    struct ps_standard_metadata *std = std_of(phv);

    if (program->flags & PS_PROGRAM_READS_QUEUE_TIMES) ps_clock_update(sw);
    std->enq_timestamp = (uint32_t)sw->now_us;
    if (PS_UNLIKELY(met)) {
        std->enq_timestamp = met->enq_timestamp;
        std->enq_qdepth = met->enq_qdepth;
        std->deq_timedelta = met->deq_timedelta;
        std->deq_qdepth = met->deq_qdepth;
    }
    std->egress_global_timestamp = sw->now_us & 0xffffffffffffu;
    std->egress_port = (uint16_t)(port & 0x1ff);
    std->egress_rid = (uint16_t)rid;
    std->egress_spec = 0;
    std->packet_length = in->frame->length + (uint32_t)in->length_change;
    ctx->packet = in->frame->bytes;
    ctx->packet_bytes = in->frame->length;
    ctx->consumed = in->consumed;
    ctx->count_bytes = in->frame->length;
    ctx->length_change = in->length_change;
    memset((uint8_t *)ctx + INTENT_FIRST, 0, INTENT_BYTES);
    ctx->truncate_bytes_inverse = in->truncate_inverse;

    bool written = false;
    if (program->egress) {
        program->egress(ctx, phv);
        written = (program->flags & PS_PROGRAM_TRACKS_HEADER_WRITES) ? ctx->headers_written : true;
    }
    struct egress_clone clone;
    bool cloned = PS_UNLIKELY(ctx->clone) && take_egress_clone(sw, phv, in, &clone);

    if (std->egress_spec == sw->config.drop_port) {
        sw->stats.dropped_egress++;
        TRACE(sw, "port %u: dropped in egress", port);
    } else {
        uint32_t truncate_inverse = ctx->truncate_bytes_inverse, head_bytes;
        bool round = ctx->recirculate;
        int32_t list = ctx->recirculate_list;
        struct ps_buffer *head;
        bool share = shared && !written && !(program->flags & PS_PROGRAM_CHECKSUM_READS_METADATA);
        bool in_place = in->last && !cloned && !share, merged = false;
        if (share && shared->head) {
            head = shared->head;
            head_bytes = shared->bytes;
            merged = shared->merged;
            ps_buffer_ref(head);
        } else {
            head = ps_buffer_get(&sw->pool);
            if (PS_UNLIKELY(!head)) {
                sw->stats.no_buffer++;
                goto clones;
            }
            if (program->compute_checksum) program->compute_checksum(ctx, phv);
            head_bytes = program->deparse(ctx, phv, head->bytes);
            uint32_t payload_bytes = in->frame->length - in->consumed;
            if (!in_place && payload_bytes <= MERGE_MAX && ps_vnet_plain(&in->frame->vnet)) {
                memcpy(head->bytes + head_bytes, in->frame->bytes + in->consumed, payload_bytes);
                head_bytes += payload_bytes;
                merged = true;
            }
            if (share) {
                shared->head = head;
                shared->bytes = head_bytes;
                shared->merged = merged;
                ps_buffer_ref(head);
            }
        }
        if (PS_UNLIKELY(round))
            recirculate(sw, in, phv, head, head_bytes, merged, truncate_inverse, list);
        else
            emit(sw, in, port, head, head_bytes, merged, truncate_inverse, in_place);
    }
clones:
    if (cloned) replicate(sw, clone.phv, &clone.passage, clone.session->list, clone.session->count);
    return written;
}

/* Runs egress for a packet that has waited. */
static void leave(struct ps_port *port, struct ps_waiting *w) {
    struct ps_switch *sw = port->sw;
    struct ps_queueing met = {w->enq_timestamp, w->enq_qdepth, (uint32_t)sw->now_us - w->enq_timestamp,
                              port->waiting.count};
    w->in.last = w->in.frame->refs == 1;
    egress_now(sw, w->state, &w->in, port->id, w->rid, NULL, &met);
    ps_buffer_put(&sw->pool, w->in.frame);
}

/* Puts a copy of the packet into the queue of its port where that is busy. False: it may leave at once. */
static bool wait_for_port(struct ps_switch *sw, const void *phv, const struct ps_passage *in, uint32_t number,
                          uint32_t rid) {
    struct ps_waiting *w;
    uint32_t bytes = in->frame->length + (uint32_t)in->length_change;
    uint32_t priority = ((const struct ps_standard_metadata *)phv)->priority;
    if (!ps_egress_wait(sw, number, priority, bytes, sw->pipeline->program->phv_bytes, &w)) return false;
    if (!w) return true;
    w->leave = leave;
    w->in = *in;
    w->rid = rid;
    copy_phv(sw->pipeline->program, w->state, phv);
    ps_buffer_ref(in->frame);
    return true;
}

/* Egress for one port, now or when the port is free. Returns whether header fields may have changed. */
static bool egress_one(struct ps_switch *sw, void *phv, const struct ps_passage *in, uint32_t port, uint32_t rid,
                       struct shared_head *shared) {
    if (PS_UNLIKELY(sw->pipeline->program->flags & PS_PROGRAM_WAITS_FOR_PORTS) && wait_for_port(sw, phv, in, port, rid))
        return false;
    return egress_now(sw, phv, in, port, rid, shared, NULL);
}

static void replicate(struct ps_switch *sw, void *phv, const struct ps_passage *in, const struct ps_replica *list,
                      uint32_t count) {
    const struct ps_program *program = sw->pipeline->program;
    if (count == 1) {
        egress_one(sw, phv, in, list[0].port, list[0].instance, NULL);
        return;
    }
    if (count == 0) return;
    void *pristine = phv_at(sw->pipeline, in->depth, 1);
    copy_phv(program, pristine, phv);
    struct shared_head shared = {NULL, 0, false};
    bool written = false;
    for (uint32_t i = 0; i < count; i++) {
        if (i > 0) {
            if (written)
                copy_phv(program, phv, pristine);
            else
                memcpy(phv, pristine, program->metadata_bytes);
        }
        written = egress_one(sw, phv, in, list[i].port, list[i].instance, &shared);
    }
    if (shared.head) ps_buffer_put(&sw->pool, shared.head);
    sw->stats.replicated += count;
}

/* ------------------------------------------------------------------ ingress */

static void parse(struct ps_switch *sw, void *phv, const struct ps_buffer *frame) {
    struct ps_ctx *ctx = &sw->ctx;
    ctx->packet = frame->bytes;
    ctx->packet_bytes = frame->length;
    ctx->consumed = 0;
    ctx->count_bytes = frame->length;
    sw->pipeline->program->parse(ctx, phv);
    if (PS_UNLIKELY(ctx->consumed > frame->length)) ctx->consumed = frame->length;
}

static void start_phv(struct ps_switch *sw, void *phv, const struct ps_buffer *frame, uint32_t ingress_port,
                      uint32_t instance_type, const uint8_t *metadata) {
    const struct ps_program *program = sw->pipeline->program;
    struct ps_standard_metadata *std = std_of(phv);
    memset(phv, 0, program->zero_bytes);
    if (metadata) memcpy(phv, metadata, program->metadata_bytes);
    std->ingress_port = (uint16_t)(ingress_port & 0x1ff);
    std->packet_length = frame->length;
    std->instance_type = instance_type;
    std->ingress_global_timestamp = sw->now_us & 0xffffffffffffu;
}

static const char *instance_name(uint32_t instance_type) {
    switch (instance_type) {
    case PS_INSTANCE_RECIRCULATED:
        return "recirculated";
    case PS_INSTANCE_RESUBMITTED:
        return "resubmitted";
    default:
        return "received";
    }
}

static void ingress_clone(struct ps_switch *sw, const void *phv, const struct ps_passage *in) {
    struct ps_pipeline *p = sw->pipeline;
    const struct ps_program *program = p->program;
    const struct ps_replicas *session = ps_map_get(&p->clones, sw->ctx.clone_session);
    if (!session) {
        sw->stats.no_session++;
        TRACE(sw, "clone session %u is not configured", sw->ctx.clone_session);
        return;
    }
    sw->stats.cloned++;
    TRACE(sw, "cloned in ingress to session %u, %u copies", sw->ctx.clone_session, session->count);
    int32_t list = sw->ctx.clone_list;
    struct ps_passage copy = *in;
    copy.depth = 1;
    copy.length_change = 0;
    copy.truncate_inverse = session->truncate_bytes ? ~session->truncate_bytes : 0;
    void *clone = phv_at(p, 1, 0);
    start_phv(sw, clone, in->frame, in->ingress_port, PS_INSTANCE_INGRESS_CLONE, NULL);
    parse(sw, clone, in->frame);
    copy.consumed = sw->ctx.consumed;
    memset(clone, 0, program->metadata_bytes);
    if (list >= 0 && program->copy_field_list) program->copy_field_list(clone, phv, list);
    std_of(clone)->instance_type = PS_INSTANCE_INGRESS_CLONE;
    replicate(sw, clone, &copy, session->list, session->count);
}

/* Owns frame. */
static void enter(struct ps_switch *sw, struct ps_buffer *frame, uint32_t ingress_port, uint32_t instance_type,
                  const uint8_t *metadata) {
    struct ps_pipeline *p = sw->pipeline;
    const struct ps_program *program = p->program;
    struct ps_ctx *ctx = &sw->ctx;
    void *phv = phv_at(p, 0, 0);
    struct ps_standard_metadata *std = std_of(phv);
    TRACE(sw, "port %u: %s, %u bytes", ingress_port, instance_name(instance_type), frame->length);
    ctx->now_us = sw->now_us;
    ctx->length_change = 0;
    memset((uint8_t *)ctx + INTENT_FIRST, 0, INTENT_BYTES);
    start_phv(sw, phv, frame, ingress_port, instance_type, metadata);
    parse(sw, phv, frame);
    if (PS_UNLIKELY(frame->vnet.flags & VIRTIO_NET_HDR_F_NEEDS_CSUM) &&
        frame->vnet.gso_type == VIRTIO_NET_HDR_GSO_NONE && ctx->consumed > frame->vnet.csum_start) {
        /* The program reads the transport header, so it must see the real checksum. */
        (void)ps_complete_checksum(frame);
        start_phv(sw, phv, frame, ingress_port, instance_type, metadata);
        parse(sw, phv, frame);
    }
    uint32_t consumed = ctx->consumed;
    sw->stats.processed++;
    if (PS_UNLIKELY(std->parser_error)) sw->stats.parser_errors++;
    if (program->verify_checksum) program->verify_checksum(ctx, phv);
    program->ingress(ctx, phv);

    struct ps_passage in = {frame, consumed, ctx->length_change, ctx->truncate_bytes_inverse, ingress_port, 0, false};
    bool resubmit = ctx->resubmit;
    int32_t resubmit_list = ctx->resubmit_list;
    if (PS_UNLIKELY(ctx->clone)) ingress_clone(sw, phv, &in);
    if (PS_UNLIKELY(resubmit)) {
        sw->stats.resubmitted++;
        TRACE(sw, "resubmitted");
        enqueue_pending(sw, frame, ingress_port, PS_INSTANCE_RESUBMITTED, phv, resubmit_list);
        return;
    }
    if (std->mcast_grp) {
        const struct ps_replicas *group = p->mcast_direct[std->mcast_grp];
        TRACE(sw, "multicast group %u, %u copies", std->mcast_grp, group ? group->count : 0);
        std->instance_type = PS_INSTANCE_REPLICATED;
        if (group)
            replicate(sw, phv, &in, group->list, group->count);
        else
            sw->stats.no_group++;
    } else if (std->egress_spec == sw->config.drop_port) {
        sw->stats.dropped_ingress++;
        TRACE(sw, "dropped in ingress");
    } else {
        std->instance_type = PS_INSTANCE_NORMAL;
        in.last = true;
        egress_one(sw, phv, &in, std->egress_spec, 0, NULL);
    }
    ps_buffer_put(&sw->pool, frame);
}

void ps_v1model_ingress(struct ps_switch *sw, struct ps_buffer *frame, uint32_t port) {
    enter(sw, frame, port, PS_INSTANCE_NORMAL, NULL);
}

int ps_v1model_pending(struct ps_switch *sw, int budget) {
    int done = 0;
    while (sw->pending_count && done < budget) {
        struct ps_pending next = sw->pending[sw->pending_head];
        sw->pending_head = (sw->pending_head + 1) % PS_PENDING_MAX;
        sw->pending_count--;
        const uint8_t *image = ps_pending_image(sw->pipeline, next.slot);
        enter(sw, next.frame, next.ingress_port, next.instance_type, image);
        done++;
    }
    return done;
}

/* Packets between two passes, or between ingress and egress, belong to the program that is being replaced, and go with it. */
void ps_v1model_flush_pending(struct ps_switch *sw) {
    for (uint32_t i = 0; i < PS_PORTS_MAX; i++)
        if (sw->ports[i]) ps_egress_queue_clear(sw, &sw->ports[i]->waiting);
    while (sw->pending_count) {
        ps_buffer_put(&sw->pool, sw->pending[sw->pending_head].frame);
        sw->pending_head = (sw->pending_head + 1) % PS_PENDING_MAX;
        sw->pending_count--;
    }
}
