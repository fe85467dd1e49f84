/* What the control plane reads: entries, counters, meters, registers. */
#include "groups.h"
#include "switch.h"

/* What Python unpacks: this header, then the key, the mask (unless exact) and the parameters of the action (as large
 * as the largest of the table). */
struct entry_record {
    uint32_t handle, priority, action_kind, action;
    uint64_t packets, bytes, timeout_us, idle_us;
    uint64_t meter[5]; /* configured, cir, cburst, pir, pburst */
    struct ps_counter_cell colors[PS_COLORS];
};

static void write_record(const struct ps_pipeline *p, const struct ps_table_state *t, const struct ps_entry *entry,
                         uint8_t *out) {
    struct entry_record r = {.handle = entry->number, .priority = entry->priority};
    const struct ps_action *action = entry->action;
    if (!action) {
        r.action_kind = PS_ACTION_GROUP;
        r.action = entry->extra->group->id;
    } else if (action->member_id) {
        r.action_kind = PS_ACTION_MEMBER;
        r.action = action->member_id - 1;
        action = NULL;
    } else if (action->index != PS_NO_ACTION) {
        r.action_kind = PS_ACTION_CALL;
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
        memcpy(r.colors, s->meter.colors, sizeof r.colors);
    }
    memcpy(out, &r, sizeof r);
    out += sizeof r;
    uint32_t key_parts = entry == t->table->default_entry ? 0 : t->action_offset;
    memcpy(out, entry->body, key_parts);
    out += t->action_offset;
    if (r.action_kind == PS_ACTION_CALL) memcpy(out, action->params, p->program->actions[action->index].param_bytes);
}

PS_EXPORT uint32_t ps_table_record_bytes(const struct ps_pipeline *p, uint32_t table) {
    const struct ps_table_state *t = &p->states[table];
    return (uint32_t)(sizeof(struct entry_record) + t->action_offset + t->param_bytes_max);
}

PS_EXPORT uint32_t ps_table_count(struct ps_pipeline *p, uint32_t table) {
    ps_gate_enter(p->sw);
    uint32_t live = p->states[table].live;
    ps_gate_leave(p->sw);
    return live;
}

/* Reads up to `limit` entries from number `*cursor` on. Sets *cursor to where the next call goes on, UINT32_MAX at
 * the end. */
PS_EXPORT uint32_t ps_table_read(struct ps_pipeline *p, uint32_t table, uint32_t *cursor, uint32_t limit,
                                 uint8_t *out) {
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

/* Finds the entry that a packed key matches now; UINT32_MAX: none. */
PS_EXPORT uint32_t ps_table_find(struct ps_pipeline *p, uint32_t table, const uint8_t *key) {
    ps_gate_enter(p->sw);
    uint32_t number = ps_lookup(p->states[table].table, key)->number;
    ps_gate_leave(p->sw);
    return number;
}

PS_EXPORT int ps_counters_read(struct ps_pipeline *p, uint32_t counter, uint64_t first, uint64_t count,
                               struct ps_counter_cell *out) {
    if (counter >= p->program->counter_count || !ps_in_range(first, count, p->counters[counter].count)) return -1;
    ps_gate_enter(p->sw);
    memcpy(out, p->counters[counter].cells + first, count * sizeof *out);
    ps_gate_leave(p->sw);
    return 0;
}

PS_EXPORT int ps_meters_read(struct ps_pipeline *p, uint32_t meter, uint64_t first, uint64_t count,
                             uint64_t (*out)[5]) {
    if (meter >= p->program->meter_count || !ps_in_range(first, count, p->meters[meter].count)) return -1;
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

PS_EXPORT int ps_colors_read(struct ps_pipeline *p, uint32_t meter, uint64_t first, uint64_t count,
                             struct ps_counter_cell (*out)[PS_COLORS]) {
    if (meter >= p->program->meter_count || !ps_in_range(first, count, p->meters[meter].count)) return -1;
    ps_gate_enter(p->sw);
    for (uint64_t i = 0; i < count; i++) memcpy(out[i], p->meters[meter].cells[first + i].colors, sizeof out[i]);
    ps_gate_leave(p->sw);
    return 0;
}

PS_EXPORT int ps_registers_read(struct ps_pipeline *p, uint32_t reg, uint64_t first, uint64_t count, uint8_t *out) {
    if (reg >= p->program->register_count || !ps_in_range(first, count, p->registers[reg].count)) return -1;
    const struct ps_register *r = &p->registers[reg];
    ps_gate_enter(p->sw);
    memcpy(out, r->cells + first * r->cell_bytes, count * r->cell_bytes);
    ps_gate_leave(p->sw);
    return 0;
}
