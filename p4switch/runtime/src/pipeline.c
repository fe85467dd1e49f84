/* One program's state: tables, profiles, registers, counters, meters, groups and sessions; how the control plane changes it
 * (a batch of operations, applied between two packets) and reads it. */
#include <stdlib.h>
#include <sys/mman.h>

#include "runtime.h"

/* ------------------------------------------------------------------ id -> pointer */

#define FREE_ID UINT32_MAX

static uint64_t id_hash(uint32_t id) { return ps_mix(id ^ 0x9e3779b97f4a7c15u, 0xd6e8feb86659fd93u); }

void *ps_map_get(const struct ps_id_map *map, uint32_t id) {
    if (!map->ids) return NULL;
    for (uint64_t i = id_hash(id) & map->mask; map->ids[i] != FREE_ID; i = (i + 1) & map->mask)
        if (map->ids[i] == id) return map->values[i];
    return NULL;
}

int ps_map_put(struct ps_id_map *map, uint32_t id, void *value) {
    if (!map->ids || (map->used + 1) * 2 > map->mask + 1) {
        struct ps_id_map larger = {.mask = map->ids ? map->mask * 2 + 1 : 15};
        larger.ids = malloc((larger.mask + 1) * sizeof *larger.ids);
        larger.values = calloc(larger.mask + 1, sizeof *larger.values);
        if (!larger.ids || !larger.values) {
            ps_map_free(&larger);
            return -1;
        }
        memset(larger.ids, 0xff, (larger.mask + 1) * sizeof *larger.ids);
        for (uint64_t i = 0; map->ids && i <= map->mask; i++)
            if (map->ids[i] != FREE_ID) (void)ps_map_put(&larger, map->ids[i], map->values[i]);
        ps_map_free(map);
        *map = larger;
    }
    uint64_t i = id_hash(id) & map->mask;
    while (map->ids[i] != FREE_ID && map->ids[i] != id) i = (i + 1) & map->mask;
    if (map->ids[i] == FREE_ID) map->used++;
    map->ids[i] = id;
    map->values[i] = value;
    return 0;
}

void *ps_map_remove(struct ps_id_map *map, uint32_t id) {
    if (!map->ids) return NULL;
    uint64_t i = id_hash(id) & map->mask;
    while (map->ids[i] != id) {
        if (map->ids[i] == FREE_ID) return NULL;
        i = (i + 1) & map->mask;
    }
    void *value = map->values[i];
    uint64_t hole = i;
    for (uint64_t j = (i + 1) & map->mask; map->ids[j] != FREE_ID; j = (j + 1) & map->mask) {
        uint64_t home = id_hash(map->ids[j]) & map->mask;
        if (((j - home) & map->mask) >= ((j - hole) & map->mask)) {
            map->ids[hole] = map->ids[j];
            map->values[hole] = map->values[j];
            hole = j;
        }
    }
    map->ids[hole] = FREE_ID;
    map->used--;
    return value;
}

void ps_map_free(struct ps_id_map *map) {
    free(map->ids);
    free(map->values);
    *map = (struct ps_id_map){0};
}

/* ------------------------------------------------------------------ what entries do */

enum action_kind { ACTION_NONE = 0, ACTION_CALL = 1, ACTION_MEMBER = 2, ACTION_GROUP = 3 };

static void unref_action(struct ps_pipeline *p, const struct ps_table_desc *desc, struct ps_entry *entry) {
    if (desc->profile == PS_NO_PROFILE) return;
    if (!entry->action) {
        if (entry->extra->group) ((struct ps_group_state *)(void *)(uintptr_t)entry->extra->group)->refs--;
    } else if (entry->action->member_id) {
        struct ps_member *m = ps_map_get(&p->profiles[desc->profile].members, entry->action->member_id - 1);
        if (m) m->refs--;
    }
}

static bool has_action(const uint32_t *actions, uint32_t count, uint32_t action) {
    for (uint32_t i = 0; i < count; i++)
        if (actions[i] == action) return true;
    return false;
}

static void write_action(const struct ps_program *program, struct ps_action *to, uint32_t index, const uint8_t *params) {
    to->index = index;
    to->member_id = 0;
    if (index != PS_NO_ACTION && params) memcpy(to->params, params, program->actions[index].param_bytes);
}

static enum ps_status set_action(struct ps_pipeline *p, struct ps_table_state *t, struct ps_entry *entry, uint32_t kind,
                                 uint32_t action, const uint8_t *params, size_t param_bytes) {
    const struct ps_table_desc *desc = t->desc;
    if (kind == ACTION_CALL) {
        if (action >= p->program->action_count || p->program->actions[action].param_bytes != param_bytes) return PS_INVALID;
        if (p->program->actions[action].param_bytes > t->param_bytes_max) return PS_INVALID;
        if (!has_action(desc->actions, desc->action_count, action) && action != desc->default_action) return PS_INVALID;
        unref_action(p, desc, entry);
        struct ps_action *own = ps_table_own_action(t, entry);
        write_action(p->program, own, action, params);
        entry->action = own;
        if (entry->extra) entry->extra->group = NULL;
        return PS_OK;
    }
    if (kind == ACTION_NONE && (desc->flags & PS_TABLE_VALUE_SET)) return PS_OK;
    if (desc->profile == PS_NO_PROFILE) return PS_INVALID;
    struct ps_profile *profile = &p->profiles[desc->profile];
    if (kind == ACTION_MEMBER) {
        struct ps_member *m = ps_map_get(&profile->members, action);
        if (!m) return PS_NOT_FOUND;
        m->refs++;
        unref_action(p, desc, entry);
        entry->action = m->action;
        entry->extra->group = NULL;
        return PS_OK;
    }
    if (kind == ACTION_GROUP) {
        struct ps_group_state *g = ps_map_get(&profile->groups, action);
        if (!g) return PS_NOT_FOUND;
        g->refs++;
        unref_action(p, desc, entry);
        entry->action = NULL;
        entry->extra->group = &g->group;
        return PS_OK;
    }
    return PS_INVALID;
}

static void reset_default(struct ps_pipeline *p, struct ps_table_state *t) {
    struct ps_entry *entry = t->table->default_entry;
    unref_action(p, t->desc, entry);
    struct ps_action *own = ps_table_own_action(t, entry);
    write_action(p->program, own, t->desc->default_action, t->desc->default_params);
    entry->action = own;
    if (entry->extra) entry->extra->group = NULL;
}

/* ------------------------------------------------------------------ profiles */

static bool port_up(const struct ps_pipeline *p, uint32_t port) {
    return port < PS_PORTS_MAX && p->sw->ports[port] && p->sw->ports[port]->up;
}

static bool group_spread(struct ps_pipeline *p, struct ps_profile *profile, struct ps_group_state *g) {
    uint64_t total = 0;
    for (uint32_t i = 0; i < g->member_count; i++) total += g->members[i].weight;
    if (total > PS_GROUP_SLOTS_MAX) return false;
    const struct ps_action **slots = calloc(total ? total : 1, sizeof *slots);
    if (!slots) return false;
    uint32_t used = 0;
    for (uint32_t i = 0; i < g->member_count; i++) {
        const struct ps_weighted *w = &g->members[i];
        if (w->watch_port != UINT32_MAX && !port_up(p, w->watch_port)) continue;
        struct ps_member *m = ps_map_get(&profile->members, w->member);
        for (uint32_t k = 0; k < w->weight; k++) slots[used++] = m->action;
    }
    free(g->group.slots);
    g->group.slots = slots;
    g->group.slot_count = used;
    return true;
}

static void group_release(struct ps_profile *profile, struct ps_group_state *g) {
    for (uint32_t i = 0; i < g->member_count; i++) {
        struct ps_member *m = ps_map_get(&profile->members, g->members[i].member);
        if (m) m->refs--;
    }
    free(g->members);
    g->members = NULL;
    g->member_count = 0;
}

static enum ps_status member_set(struct ps_pipeline *p, struct ps_profile *profile, uint32_t id, uint32_t action,
                                 const uint8_t *params, size_t param_bytes) {
    if (id == FREE_ID) return PS_INVALID;
    if (!has_action(profile->desc->actions, profile->desc->action_count, action)) return PS_INVALID;
    if (p->program->actions[action].param_bytes != param_bytes) return PS_INVALID;
    struct ps_member *m = ps_map_get(&profile->members, id);
    if (!m) {
        if (profile->desc->size && profile->member_count >= profile->desc->size) return PS_FULL;
        m = calloc(1, sizeof *m);
        struct ps_action *a = aligned_alloc(64, (sizeof *a + profile->param_bytes_max + 63) / 64 * 64);
        if (!m || !a || ps_map_put(&profile->members, id, m) != 0) {
            free(m);
            free(a);
            return PS_FULL;
        }
        m->id = id;
        m->action = a;
        profile->member_count++;
    }
    write_action(p->program, m->action, action, params);
    m->action->member_id = id + 1;
    return PS_OK;
}

static enum ps_status member_delete(struct ps_profile *profile, uint32_t id) {
    struct ps_member *m = ps_map_get(&profile->members, id);
    if (!m) return PS_NOT_FOUND;
    if (m->refs) return PS_IN_USE;
    ps_map_remove(&profile->members, id);
    profile->member_count--;
    free(m->action);
    free(m);
    return PS_OK;
}

static enum ps_status group_set(struct ps_pipeline *p, struct ps_profile *profile, uint32_t id, const struct ps_weighted *list,
                                uint32_t count) {
    if (id == FREE_ID || !profile->desc->is_selector) return PS_INVALID;
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!ps_map_get(&profile->members, list[i].member)) return PS_NOT_FOUND;
        if (list[i].weight == 0) return PS_INVALID;
        total += list[i].weight;
    }
    if (total > PS_GROUP_SLOTS_MAX || (profile->desc->max_group_size && total > profile->desc->max_group_size)) return PS_FULL;
    struct ps_group_state *g = ps_map_get(&profile->groups, id);
    struct ps_weighted *copy = malloc((count ? count : 1) * sizeof *copy);
    if (!copy) return PS_FULL;
    if (!g) {
        g = calloc(1, sizeof *g);
        if (!g || ps_map_put(&profile->groups, id, g) != 0) {
            free(g);
            free(copy);
            return PS_FULL;
        }
        g->group.id = id;
    }
    memcpy(copy, list, count * sizeof *copy);
    for (uint32_t i = 0; i < count; i++) ((struct ps_member *)ps_map_get(&profile->members, list[i].member))->refs++;
    group_release(profile, g);
    g->members = copy;
    g->member_count = count;
    return group_spread(p, profile, g) ? PS_OK : PS_FULL;
}

static void group_free(struct ps_profile *profile, struct ps_group_state *g) {
    group_release(profile, g);
    free(g->group.slots);
    free(g);
}

static enum ps_status group_delete(struct ps_profile *profile, uint32_t id) {
    struct ps_group_state *g = ps_map_get(&profile->groups, id);
    if (!g) return PS_NOT_FOUND;
    if (g->refs) return PS_IN_USE;
    ps_map_remove(&profile->groups, id);
    group_free(profile, g);
    return PS_OK;
}

void ps_pipeline_port_changed(struct ps_pipeline *p, uint32_t port) {
    for (uint32_t i = 0; i < p->program->profile_count; i++) {
        const struct ps_id_map *groups = &p->profiles[i].groups;
        for (uint64_t k = 0; groups->ids && k <= groups->mask; k++) {
            if (groups->ids[k] == FREE_ID) continue;
            struct ps_group_state *g = groups->values[k];
            for (uint32_t m = 0; m < g->member_count; m++)
                if (g->members[m].watch_port == port) {
                    (void)group_spread(p, &p->profiles[i], g);
                    break;
                }
        }
    }
}

/* ------------------------------------------------------------------ multicast groups and clone sessions */

static void replicas_free(struct ps_replicas *r) {
    if (r) free(r->list);
    free(r);
}

static enum ps_status replicas_set(struct ps_pipeline *p, bool mcast, uint32_t id, const struct ps_replica *list, uint32_t count,
                                   uint64_t truncate_bytes, uint64_t class_of_service) {
    struct ps_id_map *map = mcast ? &p->mcast : &p->clones;
    if (id == FREE_ID || (mcast && id >= PS_MCAST_DIRECT)) return PS_INVALID;
    struct ps_replicas *r = calloc(1, sizeof *r);
    struct ps_replica *copy = malloc((count ? count : 1) * sizeof *copy);
    struct ps_replicas *old = ps_map_get(map, id);
    if (!r || !copy || ps_map_put(map, id, r) != 0) {
        free(r);
        free(copy);
        return PS_FULL;
    }
    memcpy(copy, list, count * sizeof *copy);
    *r = (struct ps_replicas){id, count, (uint32_t)truncate_bytes, (uint32_t)class_of_service, copy};
    if (mcast) p->mcast_direct[id] = r;
    replicas_free(old);
    return PS_OK;
}

static enum ps_status replicas_delete(struct ps_pipeline *p, bool mcast, uint32_t id) {
    struct ps_replicas *r = ps_map_remove(mcast ? &p->mcast : &p->clones, id);
    if (!r) return PS_NOT_FOUND;
    if (mcast) p->mcast_direct[id] = NULL;
    replicas_free(r);
    return PS_OK;
}

/* ------------------------------------------------------------------ batches */

enum op_kind {
    OP_INSERT = 1, OP_MODIFY, OP_DELETE, OP_CLEAR, OP_DEFAULT, OP_ENTRY_COUNTER, OP_ENTRY_METER, OP_MEMBER_SET,
    OP_MEMBER_DELETE, OP_GROUP_SET, OP_GROUP_DELETE, OP_COUNTERS, OP_METERS, OP_REGISTERS, OP_REGISTER_FILL,
    OP_MCAST_SET, OP_MCAST_DELETE, OP_CLONE_SET, OP_CLONE_DELETE,
};

enum op_flags { OP_HAS_TIMEOUT = 1, OP_HAS_COUNTER = 2, OP_HAS_METER = 4 };

/* As Python packs it: this header, then blob_bytes, padded to 8. */
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
}

static enum ps_status op_insert(struct ps_pipeline *p, struct ps_table_state *t, const struct op *op, uint32_t *handle,
                                bool constant) {
    const uint32_t kb = t->desc->key_bytes, key_parts = t->mask_offset ? 2 * kb : kb;
    if ((t->desc->flags & PS_TABLE_CONST_ENTRIES) && !constant) return PS_CONST;
    if (op->blob_bytes < key_parts || kb == 0) return PS_INVALID;
    enum ps_status status = ps_table_insert(t, op->blob, op->blob + kb, op->priority, handle);
    if (status != PS_OK) return status;
    struct ps_entry *entry = ps_entry_at(t->table, *handle);
    status = set_action(p, t, entry, op->action_kind, op->action, op->blob + key_parts, op->blob_bytes - key_parts);
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
    unref_action(p, t->desc, ps_entry_at(t->table, handle));
    return ps_table_delete(t, handle);
}

static enum ps_status table_op(struct ps_pipeline *p, const struct op *op, uint32_t *handle) {
    if (op->object >= p->program->table_count) return PS_INVALID;
    struct ps_table_state *t = &p->states[op->object];
    struct ps_entry *entry = entry_of(t, op->handle);
    switch (op->kind) {
    case OP_INSERT: return op_insert(p, t, op, handle, false);
    case OP_MODIFY: {
        if (t->desc->flags & PS_TABLE_CONST_ENTRIES) return PS_CONST;
        if (!entry || op->handle == UINT32_MAX) return PS_NOT_FOUND;
        enum ps_status status = set_action(p, t, entry, op->action_kind, op->action, op->blob, op->blob_bytes);
        if (status == PS_OK) entry_extras(p, entry, op);
        return status;
    }
    case OP_DELETE: return op_delete(p, t, op->handle);
    case OP_CLEAR: {
        if (t->desc->flags & PS_TABLE_CONST_ENTRIES) return PS_CONST;
        for (uint32_t n = 0; n < t->high_water; n++)
            if (t->live_bits[n]) (void)op_delete(p, t, n);
        return PS_OK;
    }
    case OP_DEFAULT:
        if (t->desc->flags & PS_TABLE_CONST_DEFAULT) return PS_CONST;
        if (op->action_kind == ACTION_NONE) {
            reset_default(p, t);
            return PS_OK;
        }
        return set_action(p, t, t->table->default_entry, op->action_kind, op->action, op->blob, op->blob_bytes);
    case OP_ENTRY_COUNTER:
        if (!entry) return PS_NOT_FOUND;
        entry->counter = (struct ps_counter_cell){op->counter[0], op->counter[1]};
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
    case OP_MEMBER_SET: return member_set(p, profile, op->handle, op->action, op->blob, op->blob_bytes);
    case OP_MEMBER_DELETE: return member_delete(profile, op->handle);
    case OP_GROUP_SET:
        return group_set(p, profile, op->handle, (const struct ps_weighted *)(const void *)op->blob,
                         (uint32_t)(op->blob_bytes / sizeof(struct ps_weighted)));
    default: return group_delete(profile, op->handle);
    }
}

static bool in_range(uint64_t first, uint64_t count, uint64_t size) { return first <= size && count <= size - first; }

static enum ps_status array_op(struct ps_pipeline *p, const struct op *op) {
    const struct ps_program *program = p->program;
    if (op->kind == OP_COUNTERS) {
        if (op->object >= program->counter_count || op->blob_bytes != op->count * sizeof(struct ps_counter_cell)) return PS_INVALID;
        const struct ps_counter *c = &p->counters[op->object];
        if (!in_range(op->first, op->count, c->count)) return PS_INVALID;
        memcpy(c->cells + op->first, op->blob, op->blob_bytes);
        return PS_OK;
    }
    if (op->kind == OP_METERS) { /* five words each: configured, cir, cburst, pir, pburst */
        if (op->object >= program->meter_count || op->blob_bytes != op->count * 40) return PS_INVALID;
        const struct ps_meter *m = &p->meters[op->object];
        if (!in_range(op->first, op->count, m->count)) return PS_INVALID;
        const uint64_t *words = (const uint64_t *)(const void *)op->blob;
        for (uint64_t i = 0; i < op->count; i++)
            ps_meter_configure(&m->cells[op->first + i], words + i * 5 + 1, words[i * 5] != 0, p->sw->now_us);
        return PS_OK;
    }
    if (op->object >= program->register_count) return PS_INVALID;
    const struct ps_register *r = &p->registers[op->object];
    if (op->kind == OP_REGISTERS) {
        if (!in_range(op->first, op->count, r->count) || op->blob_bytes != op->count * r->cell_bytes) return PS_INVALID;
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
    case OP_INSERT: case OP_MODIFY: case OP_DELETE: case OP_CLEAR: case OP_DEFAULT: case OP_ENTRY_COUNTER: case OP_ENTRY_METER:
        return table_op(p, op, handle);
    case OP_MEMBER_SET: case OP_MEMBER_DELETE: case OP_GROUP_SET: case OP_GROUP_DELETE:
        return profile_op(p, op);
    case OP_COUNTERS: case OP_METERS: case OP_REGISTERS: case OP_REGISTER_FILL:
        return array_op(p, op);
    case OP_MCAST_SET: case OP_CLONE_SET:
        return replicas_set(p, op->kind == OP_MCAST_SET, op->handle, (const struct ps_replica *)(const void *)op->blob,
                            (uint32_t)(op->blob_bytes / sizeof(struct ps_replica)), op->first, op->count);
    case OP_MCAST_DELETE: case OP_CLONE_DELETE:
        return replicas_delete(p, op->kind == OP_MCAST_DELETE, op->handle);
    default: return PS_INVALID;
    }
}

struct grown_slots {
    struct ps_slot *slots;
    uint64_t mask;
};

/* Hash tables that this batch will fill are enlarged before packets have to wait. */
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

/* Applies `count` operations between two packets, in order, each on its own: a failed one leaves no trace and stops nothing.
 * With `stop_at_error` the first failure ends the batch (the rest is PS_INVALID). Returns 0, or -1 for a malformed batch. */
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

/* ------------------------------------------------------------------ reading */

/* As Python unpacks it: this, then key, mask (unless exact), then the action's parameters (the table's largest). */
struct entry_record {
    uint32_t handle, priority, action_kind, action;
    uint64_t packets, bytes, timeout_us, idle_us;
    uint64_t meter[5]; /* configured, cir, cburst, pir, pburst */
};

static void write_record(const struct ps_pipeline *p, const struct ps_table_state *t, const struct ps_entry *entry, uint8_t *out) {
    struct entry_record r = {.handle = entry->number, .priority = entry->priority};
    const struct ps_action *action = entry->action;
    if (!action) {
        r.action_kind = ACTION_GROUP;
        r.action = entry->extra->group->id;
    } else if (action->member_id) {
        r.action_kind = ACTION_MEMBER;
        r.action = action->member_id - 1;
        action = NULL;
    } else if (action->index != PS_NO_ACTION) {
        r.action_kind = ACTION_CALL;
        r.action = action->index;
    }
    r.packets = entry->counter.packets;
    r.bytes = entry->counter.bytes;
    if (entry->extra) {
        const struct ps_entry_extra *s = entry->extra;
        r.timeout_us = s->timeout_us;
        r.idle_us = p->sw->now_us > s->last_hit_us ? p->sw->now_us - s->last_hit_us : 0;
        r.meter[0] = s->meter.configured;
        r.meter[1] = s->meter.cir;
        r.meter[2] = s->meter.cburst;
        r.meter[3] = s->meter.pir;
        r.meter[4] = s->meter.pburst;
    }
    memcpy(out, &r, sizeof r);
    out += sizeof r;
    uint32_t key_parts = entry == t->table->default_entry ? 0 : t->action_offset;
    memcpy(out, entry->body, key_parts);
    out += t->action_offset;
    if (r.action_kind == ACTION_CALL) memcpy(out, action->params, p->program->actions[action->index].param_bytes);
}

PS_EXPORT uint32_t ps_table_record_bytes(const struct ps_pipeline *p, uint32_t table) {
    const struct ps_table_state *t = &p->states[table];
    return (uint32_t)(sizeof(struct entry_record) + t->action_offset + t->param_bytes_max);
}

PS_EXPORT uint32_t ps_table_param_bytes_max(const struct ps_pipeline *p, uint32_t table) { return p->states[table].param_bytes_max; }

PS_EXPORT uint32_t ps_table_count(struct ps_pipeline *p, uint32_t table) {
    ps_gate_enter(p->sw);
    uint32_t live = p->states[table].live;
    ps_gate_leave(p->sw);
    return live;
}

/* Up to `limit` entries from number `*cursor` on; *cursor becomes where to go on, UINT32_MAX at the end. */
PS_EXPORT uint32_t ps_table_read(struct ps_pipeline *p, uint32_t table, uint32_t *cursor, uint32_t limit, uint8_t *out) {
    const struct ps_table_state *t = &p->states[table];
    uint32_t bytes = ps_table_record_bytes(p, table), count = 0, n = *cursor;
    ps_gate_enter(p->sw);
    ps_clock_update(p->sw);
    if (n == UINT32_MAX) {
        write_record(p, t, t->table->default_entry, out);
        count = 1;
    } else {
        for (; n < t->high_water && count < limit; n++)
            if (t->live_bits[n]) write_record(p, t, ps_entry_at(t->table, n), out + (uint64_t)count++ * bytes);
        *cursor = n < t->high_water ? n : UINT32_MAX;
    }
    ps_gate_leave(p->sw);
    return count;
}

/* The entry a packed key finds now; UINT32_MAX: none. */
PS_EXPORT uint32_t ps_table_find(struct ps_pipeline *p, uint32_t table, const uint8_t *key) {
    ps_gate_enter(p->sw);
    uint32_t number = ps_lookup(p->states[table].table, key)->number;
    ps_gate_leave(p->sw);
    return number;
}

PS_EXPORT int ps_counters_read(struct ps_pipeline *p, uint32_t counter, uint64_t first, uint64_t count, struct ps_counter_cell *out) {
    if (counter >= p->program->counter_count || !in_range(first, count, p->counters[counter].count)) return -1;
    ps_gate_enter(p->sw);
    memcpy(out, p->counters[counter].cells + first, count * sizeof *out);
    ps_gate_leave(p->sw);
    return 0;
}

PS_EXPORT int ps_meters_read(struct ps_pipeline *p, uint32_t meter, uint64_t first, uint64_t count, uint64_t (*out)[5]) {
    if (meter >= p->program->meter_count || !in_range(first, count, p->meters[meter].count)) return -1;
    ps_gate_enter(p->sw);
    for (uint64_t i = 0; i < count; i++) {
        const struct ps_meter_cell *c = &p->meters[meter].cells[first + i];
        out[i][0] = c->configured;
        out[i][1] = c->cir;
        out[i][2] = c->cburst;
        out[i][3] = c->pir;
        out[i][4] = c->pburst;
    }
    ps_gate_leave(p->sw);
    return 0;
}

PS_EXPORT int ps_registers_read(struct ps_pipeline *p, uint32_t reg, uint64_t first, uint64_t count, uint8_t *out) {
    if (reg >= p->program->register_count || !in_range(first, count, p->registers[reg].count)) return -1;
    const struct ps_register *r = &p->registers[reg];
    ps_gate_enter(p->sw);
    memcpy(out, r->cells + first * r->cell_bytes, count * r->cell_bytes);
    ps_gate_leave(p->sw);
    return 0;
}

/* ------------------------------------------------------------------ ageing */

/* Looks at up to `budget` entries; an idle one is reported, and again each time its timeout passes. */
void ps_pipeline_age(struct ps_pipeline *p, uint64_t now_us, uint32_t budget) {
    for (uint32_t i = 0; i < p->program->table_count; i++) {
        struct ps_table_state *t = &p->states[i];
        if (!(t->desc->flags & PS_TABLE_AGES) || t->live == 0) continue;
        uint32_t look = budget < t->high_water ? budget : t->high_water;
        while (look--) {
            if (t->idle_cursor >= t->high_water) t->idle_cursor = 0;
            uint32_t n = t->idle_cursor++;
            if (!t->live_bits[n]) continue;
            struct ps_entry_extra *s = &t->extras[n];
            if (s->timeout_us == 0 || now_us < s->last_hit_us + s->timeout_us || now_us < s->notified_us + s->timeout_us) continue;
            s->notified_us = now_us;
            ps_events_post(&p->sw->events, PS_EVENT_IDLE, p->serial, now_us, i, n, NULL, 0);
        }
    }
}

/* ------------------------------------------------------------------ making and freeing */

static void *cells_alloc(uint64_t count, uint64_t bytes) {
    if (count && bytes > (UINT64_C(1) << 40) / count) return NULL;
    size_t size = count * bytes + PS_BUFFER_SLACK;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (size >= (8u << 20)) (void)madvise(p, size, MADV_HUGEPAGE);
    return p;
}

static void cells_free(void *cells, uint64_t count, uint64_t bytes) {
    if (cells) munmap(cells, count * bytes + PS_BUFFER_SLACK);
}

static int load_const_entries(struct ps_pipeline *p, struct ps_table_state *t) {
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
        op->action_kind = ACTION_CALL;
        op->action = e->action;
        enum ps_status status = op_insert(p, t, op, &handle, true);
        failed = status != PS_OK && status != PS_EXISTS; /* of two entries with one key the first holds */
    }
    free(op);
    return failed;
}

static int init_profile(struct ps_pipeline *p, struct ps_profile *profile, const struct ps_profile_desc *desc) {
    profile->desc = desc;
    for (uint32_t i = 0; i < desc->action_count; i++) {
        uint32_t bytes = p->program->actions[desc->actions[i]].param_bytes;
        if (bytes > profile->param_bytes_max) profile->param_bytes_max = bytes;
    }
    return 0;
}

static int init_arrays(struct ps_pipeline *p) {
    const struct ps_program *program = p->program;
    for (uint32_t i = 0; i < program->register_count; i++) {
        const struct ps_register_desc *d = &program->registers[i];
        p->registers[i] = (struct ps_register){cells_alloc(d->count, d->cell_bytes), d->count, d->cell_bytes, 0};
        if (!p->registers[i].cells) return -1;
    }
    for (uint32_t i = 0; i < program->counter_count; i++) {
        uint64_t count = program->counters[i].count;
        p->counters[i] = (struct ps_counter){cells_alloc(count, sizeof(struct ps_counter_cell)), count};
        if (!p->counters[i].cells) return -1;
    }
    for (uint32_t i = 0; i < program->meter_count; i++) {
        uint64_t count = program->meters[i].count;
        p->meters[i] = (struct ps_meter){cells_alloc(count, sizeof(struct ps_meter_cell)), count};
        if (!p->meters[i].cells) return -1;
        for (uint64_t k = 0; program->meters[i].unit == PS_UNIT_PACKETS && k < count; k++) p->meters[i].cells[k].by_packets = 1;
    }
    return 0;
}

static void profile_free(struct ps_profile *profile) {
    for (uint64_t k = 0; profile->groups.ids && k <= profile->groups.mask; k++)
        if (profile->groups.ids[k] != FREE_ID) group_free(profile, profile->groups.values[k]);
    for (uint64_t k = 0; profile->members.ids && k <= profile->members.mask; k++) {
        if (profile->members.ids[k] == FREE_ID) continue;
        struct ps_member *m = profile->members.values[k];
        free(m->action);
        free(m);
    }
    ps_map_free(&profile->groups);
    ps_map_free(&profile->members);
}

static void replicas_map_free(struct ps_id_map *map) {
    for (uint64_t k = 0; map->ids && k <= map->mask; k++)
        if (map->ids[k] != FREE_ID) replicas_free(map->values[k]);
    ps_map_free(map);
}

/* Must not be the pipeline that packets run through. */
PS_EXPORT void ps_pipeline_free(struct ps_pipeline *p) {
    const struct ps_program *program = p->program;
    for (uint32_t i = 0; p->states && i < program->table_count; i++) ps_table_free(&p->states[i]);
    for (uint32_t i = 0; p->profiles && i < program->profile_count; i++) profile_free(&p->profiles[i]);
    for (uint32_t i = 0; p->registers && i < program->register_count; i++)
        cells_free(p->registers[i].cells, p->registers[i].count, p->registers[i].cell_bytes);
    for (uint32_t i = 0; p->counters && i < program->counter_count; i++)
        cells_free(p->counters[i].cells, p->counters[i].count, sizeof(struct ps_counter_cell));
    for (uint32_t i = 0; p->meters && i < program->meter_count; i++)
        cells_free(p->meters[i].cells, p->meters[i].count, sizeof(struct ps_meter_cell));
    replicas_map_free(&p->mcast);
    replicas_map_free(&p->clones);
    free(p->mcast_direct);
    free(p->tables);
    free(p->states);
    free(p->profiles);
    free(p->registers);
    free(p->counters);
    free(p->meters);
    free(p->phvs);
    free(p->pending_metadata);
    free(p->scratch);
    pthread_mutex_destroy(&p->control);
    free(p);
}

static int init_pipeline(struct ps_pipeline *p) {
    const struct ps_program *program = p->program;
    p->tables = calloc(program->table_count + 1u, sizeof *p->tables);
    p->states = calloc(program->table_count + 1u, sizeof *p->states);
    p->profiles = calloc(program->profile_count + 1u, sizeof *p->profiles);
    p->registers = calloc(program->register_count + 1u, sizeof *p->registers);
    p->counters = calloc(program->counter_count + 1u, sizeof *p->counters);
    p->meters = calloc(program->meter_count + 1u, sizeof *p->meters);
    p->mcast_direct = calloc(PS_MCAST_DIRECT, sizeof *p->mcast_direct);
    p->phvs = aligned_alloc(64, (size_t)program->phv_bytes * PS_PHVS);
    p->pending_metadata = calloc(PS_PENDING_MAX, program->metadata_bytes);
    p->scratch = calloc(1, program->scratch_bytes + 8u);
    if (!p->tables || !p->states || !p->profiles || !p->registers || !p->counters || !p->meters || !p->mcast_direct || !p->phvs ||
        !p->pending_metadata || !p->scratch)
        return -1;
    memset(p->phvs, 0, (size_t)program->phv_bytes * PS_PHVS);
    for (uint32_t i = 0; i < program->profile_count; i++)
        if (init_profile(p, &p->profiles[i], &program->profiles[i]) != 0) return -1;
    for (uint32_t i = 0; i < program->table_count; i++) {
        if (ps_table_init(&p->states[i], &p->tables[i], program, &program->tables[i]) != 0) return -1;
        reset_default(p, &p->states[i]);
        p->ages = p->ages || (program->tables[i].flags & PS_TABLE_AGES) != 0;
        if (load_const_entries(p, &p->states[i]) != 0) return -1;
    }
    return init_arrays(p);
}

static const char *descriptor_fault(const struct ps_program *program) {
    if (program->abi_version != PS_ABI_VERSION) return "the program was compiled for another version of the runtime";
    if (program->descriptor_bytes != sizeof *program) return "the program's descriptor has another size";
    if (program->phv_bytes % 64 || program->phv_bytes == 0) return "phv_bytes is no multiple of 64";
    if (program->metadata_bytes % 8 || program->zero_bytes % 8) return "metadata_bytes and zero_bytes must be multiples of 8";
    if (program->metadata_bytes < sizeof(struct ps_standard_metadata)) return "metadata_bytes leaves out standard metadata";
    if (program->zero_bytes < program->metadata_bytes || program->phv_bytes < program->zero_bytes) return "PHV regions overlap";
    if (program->max_header_bytes > PS_FRAME_BYTES_MAX) return "the program's headers are longer than a frame may be";
    if (!program->parse || !program->ingress || !program->deparse) return "parse, ingress or deparse is missing";
    return NULL;
}

/* A pipeline with fresh tables and the program's own entries; NULL and *error if that cannot be. */
PS_EXPORT struct ps_pipeline *ps_pipeline_new(struct ps_switch *sw, const struct ps_program *program, const char **error) {
    *error = descriptor_fault(program);
    if (*error) return NULL;
    struct ps_pipeline *p = calloc(1, sizeof *p);
    if (!p) {
        *error = "out of memory";
        return NULL;
    }
    pthread_mutex_init(&p->control, NULL);
    p->sw = sw;
    p->program = program;
    p->serial = __atomic_add_fetch(&sw->pipeline_serial, 1, __ATOMIC_RELAXED);
    if (init_pipeline(p) != 0) {
        *error = "not enough memory for the program's tables and registers, or a table's description is faulty";
        ps_pipeline_free(p);
        return NULL;
    }
    return p;
}

PS_EXPORT uint64_t ps_pipeline_serial(const struct ps_pipeline *p) { return p->serial; }
