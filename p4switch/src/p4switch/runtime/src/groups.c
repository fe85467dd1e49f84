/* What table entries refer to: actions of their own, members and groups of action profiles. And where packets are
 * copied to: multicast groups and clone sessions. */
#include <stdlib.h>

#include "groups.h"
#include "switch.h"

/* ------------------------------------------------------------------ what entries do */

void ps_unref_action(struct ps_pipeline *p, const struct ps_table_desc *desc, struct ps_entry *entry) {
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

static void write_action(const struct ps_program *program, struct ps_action *to, uint32_t index,
                         const uint8_t *params) {
    to->index = index;
    to->member_id = 0;
    if (index != PS_NO_ACTION && params) memcpy(to->params, params, program->actions[index].param_bytes);
}

enum ps_status ps_set_action(struct ps_pipeline *p, struct ps_table_state *t, struct ps_entry *entry, uint32_t kind,
                             uint32_t action, const uint8_t *params, size_t param_bytes) {
    const struct ps_table_desc *desc = t->desc;
    if (kind == PS_ACTION_CALL) {
        if (action >= p->program->action_count || p->program->actions[action].param_bytes != param_bytes)
            return PS_INVALID;
        if (p->program->actions[action].param_bytes > t->param_bytes_max) return PS_INVALID;
        if (!has_action(desc->actions, desc->action_count, action) && action != desc->default_action) return PS_INVALID;
        ps_unref_action(p, desc, entry);
        struct ps_action *own = ps_table_own_action(t, entry);
        write_action(p->program, own, action, params);
        entry->action = own;
        if (entry->extra) entry->extra->group = NULL;
        return PS_OK;
    }
    if (kind == PS_ACTION_NONE && (desc->flags & PS_TABLE_VALUE_SET)) return PS_OK;
    if (desc->profile == PS_NO_PROFILE) return PS_INVALID;
    struct ps_profile *profile = &p->profiles[desc->profile];
    if (kind == PS_ACTION_MEMBER) {
        struct ps_member *m = ps_map_get(&profile->members, action);
        if (!m) return PS_NOT_FOUND;
        m->refs++;
        ps_unref_action(p, desc, entry);
        entry->action = m->action;
        entry->extra->group = NULL;
        return PS_OK;
    }
    if (kind == PS_ACTION_GROUP) {
        struct ps_group_state *g = ps_map_get(&profile->groups, action);
        if (!g) return PS_NOT_FOUND;
        g->refs++;
        ps_unref_action(p, desc, entry);
        entry->action = NULL;
        entry->extra->group = &g->group;
        return PS_OK;
    }
    return PS_INVALID;
}

void ps_reset_default(struct ps_pipeline *p, struct ps_table_state *t) {
    struct ps_entry *entry = t->table->default_entry;
    ps_unref_action(p, t->desc, entry);
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

enum ps_status ps_member_set(struct ps_pipeline *p, struct ps_profile *profile, uint32_t id, uint32_t action,
                             const uint8_t *params, size_t param_bytes) {
    if (id == PS_FREE_ID) return PS_INVALID;
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

enum ps_status ps_member_delete(struct ps_profile *profile, uint32_t id) {
    struct ps_member *m = ps_map_get(&profile->members, id);
    if (!m) return PS_NOT_FOUND;
    if (m->refs) return PS_IN_USE;
    ps_map_remove(&profile->members, id);
    profile->member_count--;
    free(m->action);
    free(m);
    return PS_OK;
}

enum ps_status ps_group_set(struct ps_pipeline *p, struct ps_profile *profile, uint32_t id,
                            const struct ps_weighted *list, uint32_t count) {
    if (id == PS_FREE_ID || !profile->desc->is_selector) return PS_INVALID;
    uint64_t total = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!ps_map_get(&profile->members, list[i].member)) return PS_NOT_FOUND;
        if (list[i].weight == 0) return PS_INVALID;
        total += list[i].weight;
    }
    if (total > PS_GROUP_SLOTS_MAX) return PS_FULL;
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

enum ps_status ps_group_delete(struct ps_profile *profile, uint32_t id) {
    struct ps_group_state *g = ps_map_get(&profile->groups, id);
    if (!g) return PS_NOT_FOUND;
    if (g->refs) return PS_IN_USE;
    ps_map_remove(&profile->groups, id);
    group_free(profile, g);
    return PS_OK;
}

static bool watches(const struct ps_group_state *g, uint32_t port) {
    for (uint32_t i = 0; i < g->member_count; i++) {
        uint32_t watched = g->members[i].watch_port;
        if (watched != UINT32_MAX && (port == PS_ANY_PORT || watched == port)) return true;
    }
    return false;
}

void ps_pipeline_port_changed(struct ps_pipeline *p, uint32_t port) {
    for (uint32_t i = 0; i < p->program->profile_count; i++) {
        const struct ps_id_map *groups = &p->profiles[i].groups;
        for (uint64_t k = 0; groups->ids && k <= groups->mask; k++) {
            if (groups->ids[k] == PS_FREE_ID) continue;
            struct ps_group_state *g = groups->values[k];
            if (watches(g, port)) (void)group_spread(p, &p->profiles[i], g);
        }
    }
}

void ps_profile_free(struct ps_profile *profile) {
    for (uint64_t k = 0; profile->groups.ids && k <= profile->groups.mask; k++)
        if (profile->groups.ids[k] != PS_FREE_ID) group_free(profile, profile->groups.values[k]);
    for (uint64_t k = 0; profile->members.ids && k <= profile->members.mask; k++) {
        if (profile->members.ids[k] == PS_FREE_ID) continue;
        struct ps_member *m = profile->members.values[k];
        free(m->action);
        free(m);
    }
    ps_map_free(&profile->groups);
    ps_map_free(&profile->members);
}

/* ------------------------------------------------------------------ multicast groups and clone sessions */

static void replicas_free(struct ps_replicas *r) {
    if (r) free(r->list);
    free(r);
}

enum ps_status ps_replicas_set(struct ps_pipeline *p, bool mcast, uint32_t id, const struct ps_replica *list,
                               uint32_t count, uint64_t truncate_bytes, uint64_t class_of_service) {
    struct ps_id_map *map = mcast ? &p->mcast : &p->clones;
    if (id == PS_FREE_ID || (mcast && id >= PS_MCAST_DIRECT)) return PS_INVALID;
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

enum ps_status ps_replicas_delete(struct ps_pipeline *p, bool mcast, uint32_t id) {
    struct ps_replicas *r = ps_map_remove(mcast ? &p->mcast : &p->clones, id);
    if (!r) return PS_NOT_FOUND;
    if (mcast) p->mcast_direct[id] = NULL;
    replicas_free(r);
    return PS_OK;
}

void ps_replicas_map_free(struct ps_id_map *map) {
    for (uint64_t k = 0; map->ids && k <= map->mask; k++)
        if (map->ids[k] != PS_FREE_ID) replicas_free(map->values[k]);
    ps_map_free(map);
}
