/* Tables: exact ones, and what all kinds share. Generated code reads an exact table, which is one
 * hash table, inline (ps_lookup_exact); masked.c has all other kinds. Entries lie in a slab, so their addresses never
 * change. */
#include <stdlib.h>

#include "masked.h"
#include "slots.h"

#define NONE UINT32_MAX

/* ------------------------------------------------------------------ exact */

static uint64_t exact_hash_of(const void *arg, uint32_t number) {
    const struct ps_table_state *t = arg;
    return ps_key_hash(ps_entry_at(t->table, number)->body, t->table->key_bytes);
}

static struct ps_entry *exact_lookup(const struct ps_table *table, const uint8_t *key) {
    return ps_lookup_exact(table, key, table->key_bytes);
}

static uint64_t slots_for(uint64_t entries) {
    uint64_t n = PS_SLOTS_MIN;
    while (n < entries * 2) n *= 2;
    return n;
}

struct ps_slot *ps_table_grow_prepare(const struct ps_table_state *t, uint64_t more, uint64_t *mask) {
    if (t->store || t->table->key_bytes == 0) return NULL;
    uint64_t wanted = slots_for(ps_min64(t->live + more, t->capacity));
    if (wanted <= t->table->slot_mask + 1) return NULL;
    struct ps_slot *slots = ps_reserve(wanted * sizeof *slots);
    if (!slots) return NULL;
    *mask = wanted - 1;
    for (uint64_t i = 0; i <= t->table->slot_mask; i++)
        if (t->slots[i].tag) ps_slot_put(slots, *mask, exact_hash_of(t, t->slots[i].number), t->slots[i].number);
    return slots;
}

/* ------------------------------------------------------------------ the table */

static bool all_exact(const struct ps_table_desc *desc, bool *lpm) {
    bool exact = true, other = false;
    for (uint32_t i = 0; i < desc->key_count; i++) {
        if (desc->keys[i].match_kind == PS_EXACT) continue;
        exact = false;
        if (desc->keys[i].match_kind != PS_LPM) other = true;
    }
    *lpm = !exact && !other;
    return exact;
}

static struct ps_entry *default_lookup(const struct ps_table *table, const uint8_t *key) {
    (void)key;
    return table->default_entry;
}

int ps_table_init(struct ps_table_state *t, struct ps_table *table, const struct ps_program *program,
                  const struct ps_table_desc *desc) {
    memset(t, 0, sizeof *t);
    t->table = table;
    t->program = program;
    t->desc = desc;
    t->capacity = desc->size ? ps_min64(desc->size, PS_ENTRIES_MAX) : PS_TABLE_SIZE_DEFAULT;
    if (t->capacity < desc->const_entry_count) t->capacity = desc->const_entry_count;
    for (uint32_t i = 0; i < desc->action_count; i++) {
        uint32_t bytes = program->actions[desc->actions[i]].param_bytes;
        if (bytes > t->param_bytes_max) t->param_bytes_max = bytes;
    }
    if (desc->default_action != PS_NO_ACTION && program->actions[desc->default_action].param_bytes > t->param_bytes_max)
        t->param_bytes_max = program->actions[desc->default_action].param_bytes;
    if (desc->key_bytes % 8 || desc->key_bytes / 8 > PS_KEY_WORDS_MAX) return -1;

    bool lpm, exact = all_exact(desc, &lpm);
    t->mask_offset = exact ? 0 : desc->key_bytes;
    t->action_offset = exact ? desc->key_bytes : 2 * desc->key_bytes;
    size_t bytes = offsetof(struct ps_entry, body) + t->action_offset + sizeof(struct ps_action) + t->param_bytes_max;
    table->entry_bytes = (uint32_t)((bytes + 63) / 64 * 64);
    table->key_bytes = desc->key_bytes;
    table->desc = desc;
    table->default_entry = aligned_alloc(64, table->entry_bytes);
    if (!table->default_entry) return -1;
    memset(table->default_entry, 0, table->entry_bytes);
    table->default_entry->number = NONE;
    const bool extra = (desc->flags & PS_TABLE_NEEDS_EXTRA) || desc->profile != PS_NO_PROFILE;
    if (extra) {
        table->default_entry->extra = calloc(1, sizeof *table->default_entry->extra);
        if (!table->default_entry->extra) return -1;
        table->default_entry->extra->meter.by_packets = (desc->flags & PS_TABLE_METERS_PACKETS) != 0;
    }
    table->lookup = default_lookup;
    if (desc->key_bytes == 0) return 0;

    table->entries = ps_reserve(t->capacity * table->entry_bytes);
    t->free_numbers = ps_reserve(t->capacity * sizeof *t->free_numbers);
    t->live_bits = ps_reserve(t->capacity);
    if (!table->entries || !t->free_numbers || !t->live_bits) return -1;
    if (extra) {
        t->extras = ps_reserve(t->capacity * sizeof *t->extras);
        if (!t->extras) return -1;
    }
    if (exact) {
        t->slots = ps_reserve(PS_SLOTS_MIN * sizeof *t->slots);
        if (!t->slots) return -1;
        table->slots = t->slots;
        table->slot_mask = PS_SLOTS_MIN - 1;
        table->lookup = exact_lookup;
        return 0;
    }
    if (ps_masked_init(t, lpm) != 0) return -1;
    table->matcher = t->store;
    table->lookup = ps_masked_lookup;
    return 0;
}

void ps_table_free(struct ps_table_state *t) {
    if (t->store) ps_masked_free(t);
    if (!t->table) return;
    if (t->slots) ps_release(t->slots, (t->table->slot_mask + 1) * sizeof *t->slots);
    if (t->table->default_entry) free(t->table->default_entry->extra);
    free(t->table->default_entry);
    ps_release(t->table->entries, t->capacity * t->table->entry_bytes);
    ps_release(t->free_numbers, t->capacity * sizeof *t->free_numbers);
    ps_release(t->live_bits, t->capacity);
    ps_release(t->extras, t->capacity * sizeof *t->extras);
}

bool ps_table_live(const struct ps_table_state *t, uint32_t number) {
    return t->live_bits && number < t->high_water && t->live_bits[number] != 0;
}

struct ps_action *ps_table_own_action(const struct ps_table_state *t, struct ps_entry *entry) {
    uint32_t offset = entry->number == NONE ? 0 : t->action_offset;
    return (struct ps_action *)(void *)(entry->body + offset);
}

/* Gives a live entry its slot. One slot always stays empty, where lookups of absent keys end. False: there is no
 * memory for more slots. */
static bool exact_place(struct ps_table_state *t, uint32_t number) {
    if ((uint64_t)t->live * 2 > t->table->slot_mask + 1) {
        uint64_t mask = 0;
        struct ps_slot *slots = ps_table_grow_prepare(t, t->live, &mask);
        if (slots) {
            ps_release(t->slots, (t->table->slot_mask + 1) * sizeof *t->slots);
            t->slots = slots;
            t->table->slots = slots;
            t->table->slot_mask = mask;
        }
    }
    if (t->live > t->table->slot_mask) return false;
    ps_slot_put(t->slots, t->table->slot_mask, exact_hash_of(t, number), number);
    return true;
}

enum ps_status ps_table_insert(struct ps_table_state *t, const uint8_t *key, const uint8_t *mask, uint32_t priority,
                               uint32_t *number) {
    if (t->table->key_bytes == 0) return PS_INVALID;
    const uint32_t kb = t->table->key_bytes;
    struct ps_table_store *s = t->store;
    uint64_t value[PS_KEY_WORDS_MAX], masks[PS_KEY_WORDS_MAX];
    memcpy(value, key, kb);
    if (s) {
        memcpy(masks, mask, kb);
        priority = ps_masked_normalize(s, value, masks, priority);
        if (ps_masked_find(s, value, masks, priority) != NONE) return PS_EXISTS;
    } else {
        struct ps_entry *found = ps_lookup_exact(t->table, value, kb);
        if (ps_hit(t->table, found)) return PS_EXISTS;
    }
    if (t->live >= t->capacity) return PS_FULL;

    uint32_t n = t->free_count ? t->free_numbers[--t->free_count] : t->high_water++;
    struct ps_entry *entry = ps_entry_at(t->table, n);
    memset(entry, 0, t->table->entry_bytes);
    entry->number = n;
    entry->priority = priority;
    memcpy(entry->body, value, kb);
    if (s) memcpy(entry->body + t->mask_offset, masks, kb);
    if (t->extras) {
        entry->extra = &t->extras[n];
        memset(entry->extra, 0, sizeof *entry->extra);
        entry->extra->meter.by_packets = (t->desc->flags & PS_TABLE_METERS_PACKETS) != 0;
    }
    struct ps_action *own = ps_table_own_action(t, entry);
    own->index = PS_NO_ACTION;
    entry->action = own;
    t->live_bits[n] = 1;
    t->live++;
    *number = n;
    if (s ? ps_masked_insert(s, n) : exact_place(t, n)) return PS_OK;
    t->live_bits[n] = 0;
    t->live--;
    t->free_numbers[t->free_count++] = n;
    return PS_FULL;
}

enum ps_status ps_table_delete(struct ps_table_state *t, uint32_t number) {
    if (!ps_table_live(t, number)) return PS_NOT_FOUND;
    if (t->store) {
        ps_masked_remove(t->store, number);
    } else {
        uint64_t hash = exact_hash_of(t, number);
        uint64_t i = hash & t->table->slot_mask;
        while (t->slots[i].tag != 0 && t->slots[i].number != number) i = (i + 1) & t->table->slot_mask;
        ps_slot_remove(t->slots, t->table->slot_mask, i, exact_hash_of, t);
    }
    t->live_bits[number] = 0;
    t->live--;
    t->free_numbers[t->free_count++] = number;
    return PS_OK;
}
