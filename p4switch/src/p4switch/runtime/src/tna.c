/* The traffic manager of the Tofino Native Architecture, as far as software shows it.
 *
 * A packet passes ingress (parser, control, deparser). Then egress (parser, control, deparser) runs once on what
 * ingress deparsed for its unicast copy, once for each replica of its two multicast groups, and once on the packet as
 * it arrived for a mirrored copy. Intrinsic metadata lie in front of the packet where the chip puts them. Copies run
 * to completion one after the other; a copy that leaves through a recirculation port waits there (recirculation.c). The
 * egress of a program that looks at queues runs when its port is free (egress_queue.c).
 *
 * One buffer serves all copies: ingress headers move in place to the front of the payload, and egress metadata to the
 * front of those. A packet that leaves is new headers and a reference to the payload. */
#include "offload.h"
#include "tna.h"
#include "traffic.h"

enum {
    FCS_BYTES = 4,
    INGRESS_HEADER_BYTES = 8, /* ingress_intrinsic_metadata_t */
    PORT_METADATA_BYTES = 8,  /* PORT_METADATA_SIZE */
    INGRESS_PREFIX_BYTES = INGRESS_HEADER_BYTES + PORT_METADATA_BYTES,
    EGRESS_PREFIX_BYTES = 27, /* egress_intrinsic_metadata_t */
    MERGE_MAX = 256,          /* payloads up to this size are cheaper to copy behind the headers */
    IN_PLACE_MAX = 512,       /* headers up to this size are cheaper to copy in front of the payload */
};

/* A packet between ingress and egress. */
struct way {
    struct ps_buffer *frame; /* what ingress deparsed, or a mirrored copy */
    uint32_t packet_length;  /* as egress sees it */
    uint8_t queue, class_of_service;
    bool bypass_egress;
    uint16_t rid;             /* with `excluded`: replicas of this id have no copy for these ports */
    const uint64_t *excluded; /* one bit per port */
};

/* A copy on its way to a port, and what it met in the queue there. */
struct copy {
    struct way way;
    uint32_t port, rid;
    bool first;
    uint32_t enq_ns, enq_cells, deq_cells, waited_ns;
};

static uint64_t now_ns48(const struct ps_switch *sw) { return sw->now_us * 1000 & 0xffffffffffffu; }

/* Makes room for `bytes` in front of the frame. */
static bool has_room(const struct ps_buffer *b, int64_t bytes) { return b->bytes - b->storage >= bytes; }

/* Joins headers and what follows the first `consumed` bytes of `frame` in one piece. Owns both buffers. */
static struct ps_buffer *assemble(struct ps_switch *sw, struct ps_buffer *frame, uint32_t consumed,
                                  struct ps_buffer *head, uint32_t head_bytes) {
    uint32_t payload_bytes = frame->length - consumed;
    int64_t before = (int64_t)head_bytes - consumed;
    if (frame->refs == 1 && head_bytes <= IN_PLACE_MAX && has_room(frame, before + EGRESS_PREFIX_BYTES)) {
        frame->bytes -= before;
        memcpy(frame->bytes, head->bytes, head_bytes);
        frame->length = head_bytes + payload_bytes;
        ps_buffer_put(&sw->pool, head);
        return frame;
    }
    if (head_bytes + payload_bytes > PS_FRAME_BYTES_MAX) payload_bytes = PS_FRAME_BYTES_MAX - head_bytes;
    memcpy(head->bytes + head_bytes, frame->bytes + consumed, payload_bytes);
    head->length = head_bytes + payload_bytes;
    ps_buffer_put(&sw->pool, frame);
    return head;
}

/* ------------------------------------------------------------------ egress */

static void leave(struct ps_switch *sw, uint32_t port, uint32_t queue, struct ps_tx *tx) {
    struct ps_recirculation *r = ps_recirculation_at(sw, port);
    if (r) {
        ps_recirculation_put(sw, r, queue, tx);
        return;
    }
    TRACE(sw, "port %u: sent, %u bytes", port, ps_tx_bytes(tx));
    ps_send(sw, port, tx);
}

static void write_egress_prefix(uint8_t *at, const struct copy *copy) {
    memset(at, 0, EGRESS_PREFIX_BYTES);
    ps_store16(at, (uint16_t)(copy->port & 0x1ff));
    ps_store32(at + 2, (copy->enq_cells & 0x7ffff) << 8);
    ps_store32(at + 6, copy->enq_ns & 0x3ffff);
    ps_store32(at + 10, (copy->deq_cells & 0x7ffff) << 8);
    ps_store32(at + 15, copy->waited_ns & 0x3ffff);
    ps_store16(at + 19, (uint16_t)copy->rid);
    at[21] = copy->first;
    at[22] = copy->way.queue & 0x1f;
    at[23] = copy->way.class_of_service & 7;
    ps_store16(at + 25, (uint16_t)copy->way.packet_length);
}

/* Runs egress for one copy, which owns a reference of its frame. */
static void egress_now(struct ps_switch *sw, const struct copy *copy) {
    const struct way *way = &copy->way;
    uint32_t port = copy->port;
    struct ps_pipeline *p = sw->pipeline;
    const struct ps_program *program = p->program;
    struct ps_ctx *ctx = &sw->ctx;
    struct ps_buffer *frame = way->frame;
    if (way->bypass_egress) {
        struct ps_tx tx = {.head = frame, .head_bytes = frame->length};
        leave(sw, port, way->queue, &tx);
        return;
    }
    uint8_t *start = frame->bytes - EGRESS_PREFIX_BYTES;
    write_egress_prefix(start, copy);

    uint8_t *phv = p->egress_phv;
    struct ps_tna_egress *md = (struct ps_tna_egress *)(void *)phv;
    memset(phv, 0, program->egress_zero_bytes);
    md->from_parser.global_tstamp = now_ns48(sw);
    ctx->packet = start;
    ctx->packet_bytes = frame->length + EGRESS_PREFIX_BYTES;
    ctx->consumed = 0;
    ctx->count_bytes = way->packet_length;
    program->egress_parse(ctx, phv);
    uint32_t consumed = ctx->consumed > EGRESS_PREFIX_BYTES ? ctx->consumed - EGRESS_PREFIX_BYTES : 0;
    if (program->egress) program->egress(ctx, phv);
    if (md->for_deparser.drop_ctl & 1) {
        sw->stats.dropped_egress++;
        TRACE(sw, "port %u: dropped in egress", port);
        ps_buffer_put(&sw->pool, frame);
        return;
    }
    struct ps_buffer *head = ps_buffer_get(&sw->pool);
    if (PS_UNLIKELY(!head)) {
        sw->stats.no_buffer++;
        ps_buffer_put(&sw->pool, frame);
        return;
    }
    struct ps_tx tx = {.head = head, .head_bytes = program->egress_deparse(ctx, phv, head->bytes)};
    uint32_t payload_bytes = frame->length - consumed;
    if (frame->refs == 1 || payload_bytes <= MERGE_MAX) {
        tx.head = assemble(sw, frame, consumed, head, tx.head_bytes);
        tx.head_bytes = tx.head->length;
    } else {
        tx.tail = frame;
        tx.payload = frame->bytes + consumed;
        tx.payload_bytes = payload_bytes;
    }
    leave(sw, port, way->queue, &tx);
}

/* Runs egress for a copy that has waited. */
static void leave_queue(struct ps_port *port, struct ps_waiting *w) {
    struct copy *copy = (struct copy *)(void *)w->state;
    copy->enq_cells = w->enq_cells;
    copy->deq_cells = port->waiting.cells[w->level];
    copy->waited_ns = ((uint32_t)port->sw->now_us - w->enq_timestamp) * 1000;
    egress_now(port->sw, copy);
}

/* Egress for one copy, now or when its port is free. The last copy takes over the reference of the frame. */
static void egress(struct ps_switch *sw, const struct way *way, uint32_t port, uint32_t rid, bool first, bool last) {
    struct copy copy = {.way = *way, .port = port, .rid = rid, .first = first, .enq_ns = (uint32_t)now_ns48(sw)};
    struct ps_waiting *w;
    bool waits = sw->pipeline->program->flags & PS_PROGRAM_WAITS_FOR_PORTS;
    if (!last) ps_buffer_ref(way->frame);
    if (!PS_UNLIKELY(waits) || !ps_egress_wait(sw, port, way->queue, way->frame->length, sizeof copy, &w)) {
        egress_now(sw, &copy);
    } else if (w) {
        w->leave = leave_queue;
        w->in.frame = way->frame;
        memcpy(w->state, &copy, sizeof copy);
    } else {
        ps_buffer_put(&sw->pool, way->frame);
    }
}

static bool pruned(const struct way *way, const struct ps_replica *r) {
    return r->instance == way->rid && r->port < PS_PORTS_MAX && (way->excluded[r->port / 64] >> r->port % 64 & 1);
}

/* Runs egress for every replica of a group that is not pruned. With `last`, the last replica takes over the reference
 * of the frame. */
static void replicate(struct ps_switch *sw, const struct way *way, const struct ps_replicas *group, bool last) {
    uint32_t end = group->count;
    while (end && pruned(way, &group->list[end - 1])) end--;
    for (uint32_t i = 0; i < end; i++) {
        if (pruned(way, &group->list[i])) continue;
        egress(sw, way, group->list[i].port, group->list[i].instance, i == 0, last && i + 1 == end);
        sw->stats.replicated++;
    }
    if (last && end == 0) ps_buffer_put(&sw->pool, way->frame);
}

/* A group with replicas. NULL: the program named none, or the group is not configured. */
static const struct ps_replicas *group_of(struct ps_switch *sw, uint32_t id) {
    if (id == 0) return NULL;
    const struct ps_replicas *group = sw->pipeline->mcast_direct[id];
    TRACE(sw, "multicast group %u, %u copies", id, group ? group->count : 0);
    if (!group) sw->stats.no_group++;
    return group && group->count ? group : NULL;
}

/* ------------------------------------------------------------------ mirroring */

/* The packet as it arrived, behind the header that the program gave, cut to the length of the session. NULL: the
 * program asked for none. */
static struct ps_buffer *mirrored(struct ps_switch *sw, const struct ps_buffer *frame,
                                  const struct ps_replicas **session) {
    struct ps_ctx *ctx = &sw->ctx;
    if (PS_LIKELY(!ctx->mirror)) return NULL;
    *session = ps_map_get(&sw->pipeline->clones, ctx->mirror_session);
    if (!*session || (*session)->count == 0) {
        sw->stats.no_session++;
        TRACE(sw, "mirror session %u is not configured", ctx->mirror_session);
        return NULL;
    }
    struct ps_buffer *copy = ps_buffer_get(&sw->pool);
    if (!copy) {
        sw->stats.no_buffer++;
        return NULL;
    }
    uint32_t header_bytes = ctx->mirror_header_bytes, bytes = frame->length - INGRESS_PREFIX_BYTES;
    if (header_bytes + bytes > PS_FRAME_BYTES_MAX) bytes = PS_FRAME_BYTES_MAX - header_bytes;
    memcpy(copy->bytes, ctx->mirror_header, header_bytes);
    memcpy(copy->bytes + header_bytes, frame->bytes + INGRESS_PREFIX_BYTES, bytes);
    copy->length = header_bytes + bytes;
    if ((*session)->truncate_bytes && copy->length > (*session)->truncate_bytes)
        copy->length = (*session)->truncate_bytes;
    sw->stats.cloned++;
    TRACE(sw, "mirrored to session %u, %u bytes", ctx->mirror_session, copy->length);
    return copy;
}

/* ------------------------------------------------------------------ ingress */

/* Puts intrinsic and port metadata in front of the frame. NULL when no buffer is free for them. Owns the frame. */
static struct ps_buffer *with_ingress_prefix(struct ps_switch *sw, struct ps_buffer *frame, uint32_t port) {
    if (PS_UNLIKELY(frame->refs > 1 || !has_room(frame, INGRESS_PREFIX_BYTES))) {
        struct ps_tx tx = {.head = frame, .head_bytes = frame->length};
        struct ps_buffer *copy = ps_tx_flatten(&sw->pool, &tx);
        ps_buffer_put(&sw->pool, frame);
        if (!copy) {
            sw->stats.no_buffer++;
            return NULL;
        }
        frame = copy;
    }
    frame->bytes -= INGRESS_PREFIX_BYTES;
    frame->length += INGRESS_PREFIX_BYTES;
    ps_store64(frame->bytes, (uint64_t)(port & 0x1ff) << 48 | now_ns48(sw));
    memset(frame->bytes + INGRESS_HEADER_BYTES, 0, PORT_METADATA_BYTES);
    return frame;
}

static void to_traffic_manager(struct ps_switch *sw, struct way *way, const struct ps_tna_ingress *md) {
    uint32_t unicast = md->for_tm.ucast_egress_port;
    if (md->for_deparser.drop_ctl & 1) {
        sw->stats.dropped_ingress++;
        TRACE(sw, "dropped in ingress");
        ps_buffer_put(&sw->pool, way->frame);
        return;
    }
    const struct ps_replicas *a = group_of(sw, md->for_tm.mcast_grp_a), *b = group_of(sw, md->for_tm.mcast_grp_b);
    bool has_unicast = unicast != PS_PORT_DROP;
    if (!a && !b && !has_unicast) {
        TRACE(sw, "goes nowhere");
        ps_buffer_put(&sw->pool, way->frame);
        return;
    }
    if (a) replicate(sw, way, a, !b && !has_unicast);
    if (b) replicate(sw, way, b, !has_unicast);
    if (has_unicast) egress(sw, way, unicast, 0, false, true);
}

static void ingress(void *arg, struct ps_buffer *frame) {
    struct ps_switch *sw = arg;
    struct ps_pipeline *p = sw->pipeline;
    const struct ps_program *program = p->program;
    struct ps_ctx *ctx = &sw->ctx;
    uint32_t packet_length = frame->length + FCS_BYTES;
    TRACE(sw, "port %u: %s, %u bytes", sw->arrival_port,
          ps_recirculation_at(sw, sw->arrival_port) ? "recirculated" : "received", frame->length);
    frame = with_ingress_prefix(sw, frame, sw->arrival_port);
    if (!frame) return;

    uint8_t *phv = p->phvs;
    struct ps_tna_ingress *md = (struct ps_tna_ingress *)(void *)phv;
    memset(phv, 0, program->zero_bytes);
    md->from_parser.global_tstamp = now_ns48(sw);
    md->for_tm.ucast_egress_port = PS_PORT_DROP;
    ctx->now_us = sw->now_us;
    ctx->packet = frame->bytes;
    ctx->packet_bytes = frame->length;
    ctx->consumed = 0;
    ctx->count_bytes = packet_length;
    ctx->mirror = 0;
    program->parse(ctx, phv);
    uint32_t consumed = ctx->consumed > frame->length ? frame->length : ctx->consumed;
    sw->stats.processed++;
    if (PS_UNLIKELY(md->from_parser.parser_err)) {
        sw->stats.parser_errors++;
        if (!(program->flags & PS_PROGRAM_READS_PARSER_ERROR)) {
            sw->stats.dropped_ingress++;
            TRACE(sw, "dropped behind the parser");
            ps_buffer_put(&sw->pool, frame);
            return;
        }
    }
    program->ingress(ctx, phv);

    struct ps_buffer *head = ps_buffer_get(&sw->pool);
    if (PS_UNLIKELY(!head)) {
        sw->stats.no_buffer++;
        ps_buffer_put(&sw->pool, frame);
        return;
    }
    uint32_t head_bytes = program->deparse(ctx, phv, head->bytes);
    const struct ps_replicas *session = NULL;
    struct ps_buffer *copy = mirrored(sw, frame, &session);
    struct way way = {
        .frame = assemble(sw, frame, consumed, head, head_bytes),
        .packet_length = packet_length,
        .queue = md->for_tm.qid,
        .class_of_service = md->for_tm.ingress_cos,
        .bypass_egress = md->for_tm.bypass_egress,
        .rid = md->for_tm.rid,
        .excluded = sw->exclusions[md->for_tm.level2_exclusion_id % PS_EXCLUSIONS],
    };
    to_traffic_manager(sw, &way, md);
    if (copy) {
        struct way mirror = {
            .frame = copy,
            .packet_length = copy->length + FCS_BYTES,
            .queue = session->class_of_service & 0x1f,
            .class_of_service = session->class_of_service & 7,
        };
        for (uint32_t i = 0; i < session->count; i++)
            egress(sw, &mirror, session->list[i].port, 0, false, i + 1 == session->count);
    }
}

/* Frames whose checksum or segmentation is left to the NIC are completed first: deparsers move bytes, and the chip
 * knows no offloads. */
void ps_tna_ingress(struct ps_switch *sw, struct ps_buffer *frame, uint32_t port) {
    sw->arrival_port = port;
    if (PS_UNLIKELY(!ps_vnet_plain(&frame->vnet)))
        ps_port_soften(&sw->pool, frame, ingress, sw);
    else
        ingress(sw, frame);
}
