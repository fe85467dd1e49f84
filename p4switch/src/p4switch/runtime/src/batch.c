/* Batches of changes by the control plane: Python packs them, the switch applies them between two packets. */
#include <stdlib.h>
#include <sys/mman.h>

#include "externs.h"
#include "groups.h"
#include "switch.h"

enum op_kind {
    OP_INSERT = 1,
    OP_MODIFY,
    OP_DELETE,
    OP_CLEAR,
    OP_DEFAULT,
    OP_ENTRY_COUNTER,
    OP_ENTRY_METER,
    OP_MEMBER_SET,
    OP_MEMBER_DELETE,
    OP_GROUP_SET,
    OP_GROUP_DELETE,
    OP_COUNTERS,
    OP_METERS,
    OP_REGISTERS,
    OP_REGISTER_FILL,
    OP_MCAST_SET,
    OP_MCAST_DELETE,
    OP_CLONE_SET,
    OP_CLONE_DELETE,
    OP_ENTRY_COLORS,
    OP_COLORS,
};

enum op_flags { OP_HAS_TIMEOUT = 1, OP_HAS_COUNTER = 2, OP_HAS_METER = 4, OP_HAS_COLORS = 8 };

/* The header that Python packs; blob_bytes follow, padded to 8. */
struct op {
    uint32_t total;
    uint16_t kind;
    uint16_t flags;
    uint32_t object; /* index of the table, profile, register ... */
    uint32_t handle; /* entry, member, group, session; UINT32_MAX: the default entry */
    uint32_t priority;
    uint32_t action_kind;
    uint32_t action;
    uint32_t blob_bytes;
    uint64_t timeout_us;
    uint64_t counter[2];
    uint64_t meter[4];
    struct ps_counter_cell colors[PS_COLORS];
    uint64_t first, count;
    uint8_t blob[];
};

struct op_result {
    uint32_t status;
    uint32_t handle;
};

static struct ps_entry *entry_of(struct ps_table_state *t, uint32_t handle) {
    if (handle == UINT32_MAX) return t->table->default_entry;
    return ps_table_live(t, handle) ? ps_entry_at(t->table, handle) : NULL;
}

static void entry_extras(struct ps_pipeline *p, struct ps_entry *entry, const struct op *op) {
    if (op->flags & OP_HAS_COUNTER) entry->counter = (struct ps_counter_cell){op->counter[0], op->counter[1]};
    if (!entry->extra) return;
    if (op->flags & OP_HAS_TIMEOUT) {
        entry->extra->timeout_us = op->timeout_us;
        entry->extra->last_hit_us = p->sw->now_us;
    }
    if (op->flags & OP_HAS_METER) ps_meter_configure(&entry->extra->meter, op->meter, true, p->sw->now_us);
    if (op->flags & OP_HAS_COLORS) memcpy(entry->extra->meter.colors, op->colors, sizeof op->colors);
}

static enum ps_status op_insert(struct ps_pipeline *p, struct ps_table_state *t, const struct op *op, uint32_t *handle,
                                bool constant) {
    const uint32_t kb = t->desc->key_bytes, key_parts = t->mask_offset ? 2 * kb : kb;
    if ((t->desc->flags & PS_TABLE_CONST_ENTRIES) && !constant) return PS_CONST;
    if (op->blob_bytes < key_parts || kb == 0) return PS_INVALID;
    enum ps_status status = ps_table_insert(t, op->blob, op->blob + kb, op->priority, handle);
    if (status != PS_OK) return status;
    struct ps_entry *entry = ps_entry_at(t->table, *handle);
    status = ps_set_action(p, t, entry, op->action_kind, op->action, op->blob + key_parts, op->blob_bytes - key_parts);
    if (status != PS_OK) {
        (void)ps_table_delete(t, *handle);
        return status;
    }
    entry_extras(p, entry, op);
    if (entry->extra) entry->extra->last_hit_us = p->sw->now_us;
    return PS_OK;
}

static enum ps_status op_delete(struct ps_pipeline *p, struct ps_table_state *t, uint32_t handle) {
    if (t->desc->flags & PS_TABLE_CONST_ENTRIES) return PS_CONST;
    if (!ps_table_live(t, handle)) return PS_NOT_FOUND;
    ps_unref_action(p, t->desc, ps_entry_at(t->table, handle));
    return ps_table_delete(t, handle);
}

static enum ps_status table_op(struct ps_pipeline *p, const struct op *op, uint32_t *handle) {
    if (op->object >= p->program->table_count) return PS_INVALID;
    struct ps_table_state *t = &p->states[op->object];
    struct ps_entry *entry = entry_of(t, op->handle);
    switch (op->kind) {
    case OP_INSERT:
        return op_insert(p, t, op, handle, false);
    case OP_MODIFY: {
        if (t->desc->flags & PS_TABLE_CONST_ENTRIES) return PS_CONST;
        if (!entry || op->handle == UINT32_MAX) return PS_NOT_FOUND;
        enum ps_status status = ps_set_action(p, t, entry, op->action_kind, op->action, op->blob, op->blob_bytes);
        if (status == PS_OK) entry_extras(p, entry, op);
        return status;
    }
    case OP_DELETE:
        return op_delete(p, t, op->handle);
    case OP_CLEAR: {
        if (t->desc->flags & PS_TABLE_CONST_ENTRIES) return PS_CONST;
        for (uint32_t n = 0; n < t->high_water; n++)
            if (t->live_bits[n]) (void)op_delete(p, t, n);
        return PS_OK;
    }
    case OP_DEFAULT:
        if (t->desc->flags & PS_TABLE_CONST_DEFAULT) return PS_CONST;
        if (op->action_kind == PS_ACTION_NONE) {
            ps_reset_default(p, t);
            return PS_OK;
        }
        return ps_set_action(p, t, t->table->default_entry, op->action_kind, op->action, op->blob, op->blob_bytes);
    case OP_ENTRY_COUNTER:
        if (!entry) return PS_NOT_FOUND;
        entry->counter = (struct ps_counter_cell){op->counter[0], op->counter[1]};
        return PS_OK;
    case OP_ENTRY_COLORS:
        if (!entry) return PS_NOT_FOUND;
        if (!entry->extra) return PS_INVALID;
        memcpy(entry->extra->meter.colors, op->colors, sizeof op->colors);
        return PS_OK;
    default:
        if (!entry) return PS_NOT_FOUND;
        if (!entry->extra) return PS_INVALID;
        ps_meter_configure(&entry->extra->meter, op->meter, (op->flags & OP_HAS_METER) != 0, p->sw->now_us);
        return PS_OK;
    }
}

static enum ps_status profile_op(struct ps_pipeline *p, const struct op *op) {
    if (op->object >= p->program->profile_count) return PS_INVALID;
    struct ps_profile *profile = &p->profiles[op->object];
    switch (op->kind) {
    case OP_MEMBER_SET:
        return ps_member_set(p, profile, op->handle, op->action, op->blob, op->blob_bytes);
    case OP_MEMBER_DELETE:
        return ps_member_delete(profile, op->handle);
    case OP_GROUP_SET:
        return ps_group_set(p, profile, op->handle, (const struct ps_weighted *)(const void *)op->blob,
                            (uint32_t)(op->blob_bytes / sizeof(struct ps_weighted)));
    default:
        return ps_group_delete(profile, op->handle);
    }
}

static enum ps_status meters_op(struct ps_pipeline *p, const struct op *op) {
    const size_t cell_bytes = op->kind == OP_METERS ? 5 * sizeof(uint64_t) : sizeof op->colors;
    if (op->object >= p->program->meter_count || op->blob_bytes != op->count * cell_bytes) return PS_INVALID;
    const struct ps_meter *m = &p->meters[op->object];
    if (!ps_in_range(op->first, op->count, m->count)) return PS_INVALID;
    for (uint64_t i = 0; i < op->count; i++) {
        struct ps_meter_cell *cell = &m->cells[op->first + i];
        if (op->kind == OP_METERS) { /* five words each: configured, cir, cburst, pir, pburst */
            const uint64_t *words = (const uint64_t *)(const void *)op->blob + i * 5;
            ps_meter_configure(cell, words + 1, words[0] != 0, p->sw->now_us);
        } else {
            memcpy(cell->colors, op->blob + i * cell_bytes, cell_bytes);
        }
    }
    return PS_OK;
}

static enum ps_status array_op(struct ps_pipeline *p, const struct op *op) {
    const struct ps_program *program = p->program;
    if (op->kind == OP_COUNTERS) {
        if (op->object >= program->counter_count || op->blob_bytes != op->count * sizeof(struct ps_counter_cell))
            return PS_INVALID;
        const struct ps_counter *c = &p->counters[op->object];
        if (!ps_in_range(op->first, op->count, c->count)) return PS_INVALID;
        memcpy(c->cells + op->first, op->blob, op->blob_bytes);
        return PS_OK;
    }
    if (op->object >= program->register_count) return PS_INVALID;
    const struct ps_register *r = &p->registers[op->object];
    if (op->kind == OP_REGISTERS) {
        if (!ps_in_range(op->first, op->count, r->count) || op->blob_bytes != op->count * r->cell_bytes)
            return PS_INVALID;
        memcpy(r->cells + op->first * r->cell_bytes, op->blob, op->blob_bytes);
        return PS_OK;
    }
    if (op->blob_bytes != r->cell_bytes) return PS_INVALID;
    for (uint64_t i = 0; i < r->count; i++) memcpy(r->cells + i * r->cell_bytes, op->blob, r->cell_bytes);
    return PS_OK;
}

static enum ps_status apply_op(struct ps_pipeline *p, const struct op *op, uint32_t *handle) {
    *handle = op->handle;
    switch (op->kind) {
    case OP_INSERT:
    case OP_MODIFY:
    case OP_DELETE:
    case OP_CLEAR:
    case OP_DEFAULT:
    case OP_ENTRY_COUNTER:
    case OP_ENTRY_METER:
    case OP_ENTRY_COLORS:
        return table_op(p, op, handle);
    case OP_MEMBER_SET:
    case OP_MEMBER_DELETE:
    case OP_GROUP_SET:
    case OP_GROUP_DELETE:
        return profile_op(p, op);
    case OP_METERS:
    case OP_COLORS:
        return meters_op(p, op);
    case OP_COUNTERS:
    case OP_REGISTERS:
    case OP_REGISTER_FILL:
        return array_op(p, op);
    case OP_MCAST_SET:
    case OP_CLONE_SET:
        return ps_replicas_set(p, op->kind == OP_MCAST_SET, op->handle,
                               (const struct ps_replica *)(const void *)op->blob,
                               (uint32_t)(op->blob_bytes / sizeof(struct ps_replica)), op->first, op->count);
    case OP_MCAST_DELETE:
    case OP_CLONE_DELETE:
        return ps_replicas_delete(p, op->kind == OP_MCAST_DELETE, op->handle);
    default:
        return PS_INVALID;
    }
}

struct grown_slots {
    struct ps_slot *slots;
    uint64_t mask;
};

/* Enlarges the hash tables that this batch will fill, before packets have to wait. */
static struct grown_slots *prepare_growth(struct ps_pipeline *p, const uint8_t *ops, uint64_t bytes) {
    uint64_t *inserts = calloc(p->program->table_count + 1u, sizeof *inserts);
    struct grown_slots *grown = calloc(p->program->table_count + 1u, sizeof *grown);
    if (inserts && grown) {
        for (uint64_t at = 0; at < bytes;) {
            const struct op *op = (const struct op *)(const void *)(ops + at);
            if (op->kind == OP_INSERT && op->object < p->program->table_count) inserts[op->object]++;
            at += op->total;
        }
        for (uint32_t i = 0; i < p->program->table_count; i++)
            if (inserts[i]) grown[i].slots = ps_table_grow_prepare(&p->states[i], inserts[i], &grown[i].mask);
    }
    free(inserts);
    return grown;
}

static bool well_formed(const uint8_t *ops, uint64_t bytes, uint64_t count) {
    uint64_t at = 0, seen = 0;
    for (; at + sizeof(struct op) <= bytes; seen++) {
        const struct op *op = (const struct op *)(const void *)(ops + at);
        if (op->total % 8 || op->total < sizeof *op + op->blob_bytes || op->total > bytes - at) return false;
        at += op->total;
    }
    return at == bytes && seen == count;
}

/* Applies `count` operations in order, between two packets. An operation that fails changes nothing; the next ones
 * still run. With `stop_at_error` the first failure ends the batch, and the rest is PS_INVALID. Returns 0, or -1 for
 * a malformed batch. */
PS_EXPORT int ps_batch_apply(struct ps_pipeline *p, const uint8_t *ops, uint64_t bytes, uint64_t count,
                             struct op_result *results, int stop_at_error) {
    if (!well_formed(ops, bytes, count)) return -1;
    pthread_mutex_lock(&p->control);
    struct grown_slots *grown = prepare_growth(p, ops, bytes);
    ps_gate_enter(p->sw);
    ps_clock_update(p->sw);
    for (uint32_t i = 0; grown && i < p->program->table_count; i++) {
        if (!grown[i].slots) continue;
        struct ps_table_state *t = &p->states[i];
        struct grown_slots old = {t->slots, t->table->slot_mask};
        t->slots = grown[i].slots;
        t->table->slots = grown[i].slots;
        t->table->slot_mask = grown[i].mask;
        grown[i] = old;
    }
    const uint8_t *at = ops;
    bool failed = false;
    for (uint64_t i = 0; i < count; i++) {
        const struct op *op = (const struct op *)(const void *)at;
        results[i].handle = op->handle;
        results[i].status = PS_INVALID;
        if (!(failed && stop_at_error)) results[i].status = apply_op(p, op, &results[i].handle);
        failed = failed || results[i].status != PS_OK;
        at += op->total;
    }
    ps_gate_leave(p->sw);
    for (uint32_t i = 0; grown && i < p->program->table_count; i++)
        if (grown[i].slots) munmap(grown[i].slots, (grown[i].mask + 1) * sizeof(struct ps_slot));
    free(grown);
    pthread_mutex_unlock(&p->control);
    return 0;
}

/* The entries written in the program. */
int ps_load_const_entries(struct ps_pipeline *p, struct ps_table_state *t) {
    const struct ps_table_desc *desc = t->desc;
    uint32_t kb = desc->key_bytes, key_parts = t->mask_offset ? 2 * kb : kb;
    struct op *op = calloc(1, sizeof *op + key_parts + t->param_bytes_max);
    if (!op) return -1;
    int failed = 0;
    for (uint32_t i = 0; i < desc->const_entry_count && !failed; i++) {
        const struct ps_const_entry *e = &desc->const_entries[i];
        uint32_t param_bytes = p->program->actions[e->action].param_bytes, handle;
        memcpy(op->blob, e->key, kb);
        if (t->mask_offset) memcpy(op->blob + kb, e->mask, kb);
        if (param_bytes) memcpy(op->blob + key_parts, e->params, param_bytes);
        op->blob_bytes = key_parts + param_bytes;
        op->priority = e->priority;
        op->action_kind = PS_ACTION_CALL;
        op->action = e->action;
        enum ps_status status = op_insert(p, t, op, &handle, true);
        failed = status != PS_OK && status != PS_EXISTS; /* the first of two entries with one key wins */
    }
    free(op);
    return failed;
}
