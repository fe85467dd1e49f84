/* Tables. Exact tables are one hash table that generated code reads inline (ps_lookup_exact). All other kinds share one
 * structure: entries with the same mask form a tuple with a hash table of its own, tuples are searched from the highest
 * priority down with an early out (for lpm the prefix length is the priority, so a lookup costs at most one probe a
 * distinct length, whatever the number of entries); masks that only a few entries share, and ranges, stay in one list
 * ordered by priority whose rows lie side by side in memory. */
#include <stdlib.h>
#include <sys/mman.h>

#include "runtime.h"

enum {
    SLOTS_MIN = 16,
    TUPLE_MIN_TERNARY = 12, /* entries of one mask from which a hash probe beats comparing rows */
    RANGES_MAX = 16,
    KEY_WORDS_MAX = 512,
};
#define NONE UINT32_MAX

struct tuple {
    uint64_t *mask; /* key_words */
    struct ps_slot *slots;
    uint64_t slot_mask;
    uint32_t used; /* distinct masked keys */
    uint32_t entries;
    uint32_t priority_max; /* upper bound: deletions lower it now and then */
    uint32_t stale;        /* deletions since it was exact */
};

struct mask_count { /* how many rows of the list have this mask */
    uint64_t *mask;
    uint32_t rows;
};

struct range_field {
    uint32_t offset;
    uint32_t bytes;
};

struct row_tail {
    uint32_t priority;
    uint32_t number;
};

struct ps_table_store {
    const struct ps_table_state *t;
    uint32_t key_words;
    uint32_t tuple_min;
    struct tuple **tuples; /* by priority_max, highest first */
    uint32_t tuple_count, tuple_room;
    uint32_t *next;        /* by entry number: next entry with the same masked key, lower priority */
    uint8_t *in_tuple;     /* by entry number */
    uint32_t range_count;
    struct range_field ranges[RANGES_MAX];
    uint64_t *rows;        /* row_words each: value, mask, low and high of every range */
    struct row_tail *tails;
    uint32_t row_words, row_count, row_room;
    struct mask_count *masks; /* of the list's rows without ranges */
    uint32_t mask_used, mask_room;
};

/* ------------------------------------------------------------------ memory */

static void *reserve(size_t bytes) {
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (bytes >= (8u << 20)) (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

static void *grown(void *old, size_t old_count, size_t new_count, size_t item) {
    void *p = realloc(old, new_count * item);
    if (p && new_count > old_count) memset((uint8_t *)p + old_count * item, 0, (new_count - old_count) * item);
    return p;
}

/* ------------------------------------------------------------------ hash slots, shared by exact tables and tuples */

static uint32_t tag_of(uint64_t hash) { return (uint32_t)(hash >> 32) | PS_TAG_LIVE; }

static void slot_put(struct ps_slot *slots, uint64_t mask, uint64_t hash, uint32_t number) {
    uint64_t i = hash & mask;
    while (slots[i].tag != 0) i = (i + 1) & mask;
    slots[i] = (struct ps_slot){tag_of(hash), number};
}

/* Removes slot i and moves later ones of the run back, so that no tombstones pile up. */
static void slot_remove(struct ps_slot *slots, uint64_t mask, uint64_t i, uint64_t (*hash_of)(const void *, uint32_t),
                        const void *arg) {
    uint64_t hole = i;
    for (uint64_t j = (i + 1) & mask; slots[j].tag != 0; j = (j + 1) & mask) {
        uint64_t home = hash_of(arg, slots[j].number) & mask;
        if (((j - home) & mask) >= ((j - hole) & mask)) {
            slots[hole] = slots[j];
            hole = j;
        }
    }
    slots[hole] = (struct ps_slot){0, 0};
}

/* ------------------------------------------------------------------ exact */

static uint64_t exact_hash_of(const void *arg, uint32_t number) {
    const struct ps_table_state *t = arg;
    return ps_key_hash(ps_entry_at(t->table, number)->body, t->table->key_bytes);
}

static struct ps_entry *exact_lookup(const struct ps_table *table, const uint8_t *key) {
    return ps_lookup_exact(table, key, table->key_bytes);
}

static uint64_t slots_for(uint64_t entries) {
    uint64_t n = SLOTS_MIN;
    while (n < entries * 2) n *= 2;
    return n;
}

struct ps_slot *ps_table_grow_prepare(const struct ps_table_state *t, uint64_t more, uint64_t *mask) {
    if (t->store || t->table->key_bytes == 0) return NULL;
    uint64_t wanted = slots_for(ps_min64(t->live + more, t->capacity));
    if (wanted <= t->table->slot_mask + 1) return NULL;
    struct ps_slot *slots = reserve(wanted * sizeof *slots);
    if (!slots) return NULL;
    *mask = wanted - 1;
    for (uint64_t i = 0; i <= t->table->slot_mask; i++)
        if (t->slots[i].tag) slot_put(slots, *mask, exact_hash_of(t, t->slots[i].number), t->slots[i].number);
    return slots;
}

/* ------------------------------------------------------------------ tuples and rows */

static uint64_t words_hash(const uint64_t *words, uint32_t count) { return ps_key_hash(words, count * 8); }

static const uint64_t *value_of(const struct ps_table_store *s, uint32_t number) {
    return (const uint64_t *)(const void *)ps_entry_at(s->t->table, number)->body;
}
static const uint64_t *mask_of(const struct ps_table_store *s, uint32_t number) {
    return (const uint64_t *)(const void *)(ps_entry_at(s->t->table, number)->body + s->t->mask_offset);
}
static uint32_t priority_of(const struct ps_table_store *s, uint32_t number) {
    return ps_entry_at(s->t->table, number)->priority;
}

struct tuple_arg {
    const struct ps_table_store *s;
    const struct tuple *tuple;
};

static uint64_t tuple_hash_of(const void *arg, uint32_t number) {
    const struct tuple_arg *a = arg;
    return words_hash(value_of(a->s, number), a->s->key_words); /* values are stored masked */
}

static struct ps_slot *tuple_find(const struct ps_table_store *s, const struct tuple *tp, const uint64_t *masked) {
    uint64_t hash = words_hash(masked, s->key_words);
    uint32_t tag = tag_of(hash);
    for (uint64_t i = hash & tp->slot_mask; tp->slots[i].tag != 0; i = (i + 1) & tp->slot_mask)
        if (tp->slots[i].tag == tag && memcmp(value_of(s, tp->slots[i].number), masked, s->key_words * 8u) == 0)
            return &tp->slots[i];
    return NULL;
}

static struct tuple *tuple_with_mask(const struct ps_table_store *s, const uint64_t *mask) {
    for (uint32_t i = 0; i < s->tuple_count; i++)
        if (memcmp(s->tuples[i]->mask, mask, s->key_words * 8u) == 0) return s->tuples[i];
    return NULL;
}

static void tuples_reorder(struct ps_table_store *s) {
    for (uint32_t i = 1; i < s->tuple_count; i++) { /* nearly sorted already */
        struct tuple *tp = s->tuples[i];
        uint32_t j = i;
        for (; j > 0 && s->tuples[j - 1]->priority_max < tp->priority_max; j--) s->tuples[j] = s->tuples[j - 1];
        s->tuples[j] = tp;
    }
}

static struct tuple *tuple_add(struct ps_table_store *s, const uint64_t *mask) {
    if (s->tuple_count == s->tuple_room) {
        uint32_t room = s->tuple_room ? s->tuple_room * 2 : 8;
        struct tuple **p = grown(s->tuples, s->tuple_room, room, sizeof *p);
        if (!p) return NULL;
        s->tuples = p;
        s->tuple_room = room;
    }
    struct tuple *tp = calloc(1, sizeof *tp);
    if (!tp) return NULL;
    tp->mask = malloc(s->key_words * 8u);
    tp->slots = calloc(SLOTS_MIN, sizeof *tp->slots);
    if (!tp->mask || !tp->slots) {
        free(tp->mask);
        free(tp->slots);
        free(tp);
        return NULL;
    }
    memcpy(tp->mask, mask, s->key_words * 8u);
    tp->slot_mask = SLOTS_MIN - 1;
    s->tuples[s->tuple_count++] = tp;
    return tp;
}

static void tuple_drop(struct ps_table_store *s, struct tuple *tp) {
    uint32_t i = 0;
    while (s->tuples[i] != tp) i++;
    memmove(&s->tuples[i], &s->tuples[i + 1], (s->tuple_count - i - 1) * sizeof s->tuples[0]);
    s->tuple_count--;
    free(tp->mask);
    free(tp->slots);
    free(tp);
}

static bool tuple_insert(struct ps_table_store *s, struct tuple *tp, uint32_t number) {
    if ((uint64_t)(tp->used + 1) * 2 > tp->slot_mask + 1) {
        uint64_t mask = (tp->slot_mask + 1) * 2 - 1;
        struct ps_slot *slots = calloc(mask + 1, sizeof *slots);
        if (!slots) return false;
        struct tuple_arg arg = {s, tp};
        for (uint64_t i = 0; i <= tp->slot_mask; i++)
            if (tp->slots[i].tag) slot_put(slots, mask, tuple_hash_of(&arg, tp->slots[i].number), tp->slots[i].number);
        free(tp->slots);
        tp->slots = slots;
        tp->slot_mask = mask;
    }
    uint32_t priority = priority_of(s, number);
    struct ps_slot *slot = tuple_find(s, tp, value_of(s, number));
    s->in_tuple[number] = 1;
    if (!slot) {
        s->next[number] = NONE;
        slot_put(tp->slots, tp->slot_mask, words_hash(value_of(s, number), s->key_words), number);
        tp->used++;
    } else if (priority_of(s, slot->number) < priority) {
        s->next[number] = slot->number;
        slot->number = number;
    } else {
        uint32_t at = slot->number;
        while (s->next[at] != NONE && priority_of(s, s->next[at]) >= priority) at = s->next[at];
        s->next[number] = s->next[at];
        s->next[at] = number;
    }
    tp->entries++;
    if (priority > tp->priority_max || tp->entries == 1) {
        tp->priority_max = priority;
        tuples_reorder(s);
    }
    return true;
}

static void tuple_refresh_max(struct ps_table_store *s, struct tuple *tp) {
    uint32_t best = 0;
    for (uint64_t i = 0; i <= tp->slot_mask; i++)
        if (tp->slots[i].tag && priority_of(s, tp->slots[i].number) > best) best = priority_of(s, tp->slots[i].number);
    tp->priority_max = best;
    tp->stale = 0;
    tuples_reorder(s);
}

static void tuple_remove(struct ps_table_store *s, uint32_t number) {
    struct tuple *tp = tuple_with_mask(s, mask_of(s, number));
    struct ps_slot *slot = tuple_find(s, tp, value_of(s, number));
    if (slot->number == number) {
        if (s->next[number] != NONE) {
            slot->number = s->next[number];
        } else {
            struct tuple_arg arg = {s, tp};
            slot_remove(tp->slots, tp->slot_mask, (uint64_t)(slot - tp->slots), tuple_hash_of, &arg);
            tp->used--;
        }
    } else {
        uint32_t at = slot->number;
        while (s->next[at] != number) at = s->next[at];
        s->next[at] = s->next[number];
    }
    s->in_tuple[number] = 0;
    tp->entries--;
    if (tp->entries == 0)
        tuple_drop(s, tp);
    else if (s->tuple_min > 1 && ++tp->stale > tp->used / 4 + 16)
        tuple_refresh_max(s, tp);
}

static uint64_t *row_at(const struct ps_table_store *s, uint32_t i) { return s->rows + (uint64_t)i * s->row_words; }

static bool row_insert(struct ps_table_store *s, uint32_t number) {
    if (s->row_count == s->row_room) {
        uint32_t room = s->row_room ? s->row_room * 2 : 16;
        uint64_t *rows = realloc(s->rows, (size_t)room * s->row_words * 8);
        if (!rows) return false;
        s->rows = rows;
        struct row_tail *tails = realloc(s->tails, room * sizeof *tails);
        if (!tails) return false;
        s->tails = tails;
        s->row_room = room;
    }
    uint32_t priority = priority_of(s, number);
    uint32_t low = 0, high = s->row_count;
    while (low < high) { /* behind all rows of the same priority: the first inserted wins */
        uint32_t middle = (low + high) / 2;
        if (s->tails[middle].priority >= priority)
            low = middle + 1;
        else
            high = middle;
    }
    memmove(row_at(s, low + 1), row_at(s, low), (size_t)(s->row_count - low) * s->row_words * 8);
    memmove(&s->tails[low + 1], &s->tails[low], (s->row_count - low) * sizeof s->tails[0]);
    s->row_count++;
    s->tails[low] = (struct row_tail){priority, number};
    uint64_t *row = row_at(s, low);
    uint32_t kw = s->key_words;
    memcpy(row, value_of(s, number), kw * 8u);
    memcpy(row + kw, mask_of(s, number), kw * 8u);
    const uint8_t *value = (const uint8_t *)value_of(s, number);
    const uint8_t *mask = (const uint8_t *)mask_of(s, number);
    for (uint32_t r = 0; r < s->range_count; r++) {
        const struct range_field *f = &s->ranges[r];
        memset((uint8_t *)row + f->offset, 0, f->bytes);
        memset((uint8_t *)(row + kw) + f->offset, 0, f->bytes);
        if (f->bytes <= 8) {
            row[2 * kw + 2 * r] = ps_load_be(value + f->offset, f->bytes);
            row[2 * kw + 2 * r + 1] = ps_load_be(mask + f->offset, f->bytes);
        }
    }
    return true;
}

static void row_remove(struct ps_table_store *s, uint32_t number) {
    uint32_t i = 0;
    while (s->tails[i].number != number) i++;
    memmove(row_at(s, i), row_at(s, i + 1), (size_t)(s->row_count - i - 1) * s->row_words * 8);
    memmove(&s->tails[i], &s->tails[i + 1], (s->row_count - i - 1) * sizeof s->tails[0]);
    s->row_count--;
}

static bool wide_ranges_match(const struct ps_table_store *s, uint32_t number, const uint8_t *key) {
    const uint8_t *low = (const uint8_t *)value_of(s, number);
    const uint8_t *high = (const uint8_t *)mask_of(s, number);
    for (uint32_t r = 0; r < s->range_count; r++) {
        const struct range_field *f = &s->ranges[r];
        if (f->bytes <= 8) continue;
        if (memcmp(key + f->offset, low + f->offset, f->bytes) < 0) return false;
        if (memcmp(key + f->offset, high + f->offset, f->bytes) > 0) return false;
    }
    return true;
}

static bool ranges_match(const struct ps_table_store *s, const uint64_t *row, uint32_t number, const uint8_t *key,
                         const uint64_t *loaded) {
    const uint64_t *bounds = row + 2 * s->key_words;
    for (uint32_t r = 0; r < s->range_count; r++) {
        if (s->ranges[r].bytes > 8) return wide_ranges_match(s, number, key);
        if (loaded[r] < bounds[2 * r] || loaded[r] > bounds[2 * r + 1]) return false;
    }
    return true;
}

#define SCAN(KW)                                                                                              \
    for (uint32_t i = 0; i < count; i++, row += stride) {                                                     \
        uint64_t differ = 0;                                                                                  \
        for (uint32_t w = 0; w < (KW); w++) differ |= (key[w] ^ row[w]) & row[(KW) + w];                      \
        if (PS_UNLIKELY(differ == 0)) {                                                                       \
            if (tails[i].priority <= floor && floor_set) return NONE;                                         \
            if (s->range_count == 0 || ranges_match(s, row, tails[i].number, (const uint8_t *)key, loaded))   \
                return tails[i].number;                                                                       \
        }                                                                                                     \
    }

/* First row that matches and has a priority above `floor` (if floor_set). */
static uint32_t rows_find(const struct ps_table_store *s, const uint64_t *key, bool floor_set, uint32_t floor) {
    uint64_t loaded[RANGES_MAX];
    for (uint32_t r = 0; r < s->range_count; r++)
        if (s->ranges[r].bytes <= 8)
            loaded[r] = ps_load_be((const uint8_t *)key + s->ranges[r].offset, s->ranges[r].bytes);
    uint32_t count = s->row_count;
    if (floor_set) { /* rows at or below the floor cannot win */
        uint32_t low = 0, high = count;
        while (low < high) {
            uint32_t middle = (low + high) / 2;
            if (s->tails[middle].priority > floor)
                low = middle + 1;
            else
                high = middle;
        }
        count = low;
    }
    const uint64_t *row = s->rows;
    const struct row_tail *tails = s->tails;
    const uint32_t stride = s->row_words;
    switch (s->key_words) {
    case 1: SCAN(1u) break;
    case 2: SCAN(2u) break;
    case 3: SCAN(3u) break;
    case 4: SCAN(4u) break;
    default: SCAN(s->key_words) break;
    }
    return NONE;
}

static struct ps_entry *masked_lookup(const struct ps_table *table, const uint8_t *key_bytes) {
    const struct ps_table_store *s = table->matcher;
    uint64_t key[KEY_WORDS_MAX], masked[KEY_WORDS_MAX];
    const uint32_t kw = s->key_words;
    memcpy(key, key_bytes, kw * 8u);
    uint32_t best = NONE, best_priority = 0;
    for (uint32_t i = 0; i < s->tuple_count; i++) {
        const struct tuple *tp = s->tuples[i];
        if (best != NONE && tp->priority_max <= best_priority) break;
        for (uint32_t w = 0; w < kw; w++) masked[w] = key[w] & tp->mask[w];
        const struct ps_slot *slot = tuple_find(s, tp, masked);
        if (!slot) continue;
        uint32_t priority = priority_of(s, slot->number);
        if (best == NONE || priority > best_priority) {
            best = slot->number;
            best_priority = priority;
        }
    }
    if (s->row_count) {
        uint32_t row = rows_find(s, key, best != NONE, best_priority);
        if (row != NONE) best = row;
    }
    return best == NONE ? table->default_entry : ps_entry_at(table, best);
}

static bool has_real_range(const struct ps_table_store *s, uint32_t number) {
    (void)number;
    return s->range_count != 0;
}

static struct mask_count *mask_counter(struct ps_table_store *s, const uint64_t *mask) {
    for (uint32_t i = 0; i < s->mask_used; i++)
        if (memcmp(s->masks[i].mask, mask, s->key_words * 8u) == 0) return &s->masks[i];
    return NULL;
}

/* The mask's rows have become many: they move to a tuple. */
static bool rows_to_tuple(struct ps_table_store *s, const uint64_t *mask) {
    struct tuple *tp = tuple_add(s, mask);
    if (!tp) return false;
    for (uint32_t i = 0; i < s->row_count;) {
        uint32_t number = s->tails[i].number;
        if (memcmp(mask_of(s, number), mask, s->key_words * 8u) != 0) {
            i++;
            continue;
        }
        if (!tuple_insert(s, tp, number)) return false;
        row_remove(s, number);
    }
    return true;
}

static bool store_insert(struct ps_table_store *s, uint32_t number) {
    const uint64_t *mask = mask_of(s, number);
    if (has_real_range(s, number)) return row_insert(s, number);
    struct tuple *tp = tuple_with_mask(s, mask);
    if (!tp && s->tuple_min <= 1) {
        tp = tuple_add(s, mask);
        if (!tp) return false;
    }
    if (tp) return tuple_insert(s, tp, number);
    if (!row_insert(s, number)) return false;
    struct mask_count *m = mask_counter(s, mask);
    if (!m) {
        if (s->mask_used == s->mask_room) {
            uint32_t room = s->mask_room ? s->mask_room * 2 : 16;
            struct mask_count *p = grown(s->masks, s->mask_room, room, sizeof *p);
            if (!p) return false;
            s->masks = p;
            s->mask_room = room;
        }
        m = &s->masks[s->mask_used];
        m->mask = malloc(s->key_words * 8u);
        if (!m->mask) return false;
        memcpy(m->mask, mask, s->key_words * 8u);
        m->rows = 0;
        s->mask_used++;
    }
    if (++m->rows < s->tuple_min) return true;
    if (!rows_to_tuple(s, m->mask)) return false;
    free(m->mask);
    *m = s->masks[--s->mask_used];
    return true;
}

static void store_remove(struct ps_table_store *s, uint32_t number) {
    if (s->in_tuple[number]) {
        tuple_remove(s, number);
        return;
    }
    row_remove(s, number);
    struct mask_count *m = has_real_range(s, number) ? NULL : mask_counter(s, mask_of(s, number));
    if (m && --m->rows == 0) {
        free(m->mask);
        *m = s->masks[--s->mask_used];
    }
}

/* The entry with this very value, mask and priority (priority is no part of an lpm entry's identity). */
static uint32_t store_find(const struct ps_table_store *s, const uint64_t *value, const uint64_t *mask, uint32_t priority) {
    size_t bytes = s->key_words * 8u;
    struct tuple *tp = s->range_count ? NULL : tuple_with_mask(s, mask);
    if (tp) {
        const struct ps_slot *slot = tuple_find(s, tp, value);
        for (uint32_t at = slot ? slot->number : NONE; at != NONE; at = s->next[at])
            if (priority_of(s, at) == priority) return at;
        return NONE;
    }
    uint32_t low = 0, high = s->row_count;
    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (s->tails[middle].priority > priority)
            low = middle + 1;
        else
            high = middle;
    }
    for (uint32_t i = low; i < s->row_count && s->tails[i].priority == priority; i++) {
        uint32_t number = s->tails[i].number;
        if (memcmp(value_of(s, number), value, bytes) == 0 && memcmp(mask_of(s, number), mask, bytes) == 0) return number;
    }
    return NONE;
}

static uint32_t prefix_bits(const uint64_t *mask, const struct ps_field_desc *field) {
    const uint8_t *bytes = (const uint8_t *)mask + field->offset;
    uint32_t bits = 0;
    for (uint32_t i = 0; i < (field->width + 7) / 8; i++) bits += (uint32_t)__builtin_popcount(bytes[i]);
    return bits;
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

static int store_init(struct ps_table_state *t, bool lpm) {
    struct ps_table_store *s = calloc(1, sizeof *s);
    if (!s) return -1;
    t->store = s;
    s->t = t;
    s->key_words = t->desc->key_bytes / 8;
    s->tuple_min = lpm ? 1 : TUPLE_MIN_TERNARY;
    for (uint32_t i = 0; i < t->desc->key_count; i++) {
        if (t->desc->keys[i].match_kind != PS_RANGE) continue;
        if (s->range_count == RANGES_MAX) return -1;
        s->ranges[s->range_count++] = (struct range_field){t->desc->keys[i].offset, (t->desc->keys[i].width + 7) / 8};
    }
    s->row_words = 2 * s->key_words + 2 * s->range_count;
    s->next = reserve(t->capacity * sizeof *s->next);
    s->in_tuple = reserve(t->capacity);
    return s->next && s->in_tuple ? 0 : -1;
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
    if (desc->key_bytes % 8 || desc->key_bytes / 8 > KEY_WORDS_MAX) return -1;

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

    table->entries = reserve(t->capacity * table->entry_bytes);
    t->free_numbers = reserve(t->capacity * sizeof *t->free_numbers);
    t->live_bits = reserve(t->capacity);
    if (!table->entries || !t->free_numbers || !t->live_bits) return -1;
    if (extra) {
        t->extras = reserve(t->capacity * sizeof *t->extras);
        if (!t->extras) return -1;
    }
    if (exact) {
        t->slots = reserve(SLOTS_MIN * sizeof *t->slots);
        if (!t->slots) return -1;
        table->slots = t->slots;
        table->slot_mask = SLOTS_MIN - 1;
        table->lookup = exact_lookup;
        return 0;
    }
    if (store_init(t, lpm) != 0) return -1;
    table->matcher = t->store;
    table->lookup = masked_lookup;
    return 0;
}

static void release(void *p, size_t bytes) {
    if (p) munmap(p, bytes ? bytes : 1);
}

void ps_table_free(struct ps_table_state *t) {
    struct ps_table_store *s = t->store;
    if (s) {
        while (s->tuple_count) tuple_drop(s, s->tuples[0]);
        for (uint32_t i = 0; i < s->mask_used; i++) free(s->masks[i].mask);
        free(s->tuples);
        free(s->masks);
        free(s->rows);
        free(s->tails);
        release(s->next, t->capacity * sizeof *s->next);
        release(s->in_tuple, t->capacity);
        free(s);
    }
    if (!t->table) return;
    if (t->slots) release(t->slots, (t->table->slot_mask + 1) * sizeof *t->slots);
    if (t->table->default_entry) free(t->table->default_entry->extra);
    free(t->table->default_entry);
    release(t->table->entries, t->capacity * t->table->entry_bytes);
    release(t->free_numbers, t->capacity * sizeof *t->free_numbers);
    release(t->live_bits, t->capacity);
    release(t->extras, t->capacity * sizeof *t->extras);
}

bool ps_table_live(const struct ps_table_state *t, uint32_t number) {
    return t->live_bits && number < t->high_water && t->live_bits[number] != 0;
}

struct ps_action *ps_table_own_action(const struct ps_table_state *t, struct ps_entry *entry) {
    uint32_t offset = entry->number == NONE ? 0 : t->action_offset;
    return (struct ps_action *)(void *)(entry->body + offset);
}

enum ps_status ps_table_insert(struct ps_table_state *t, const uint8_t *key, const uint8_t *mask, uint32_t priority,
                               uint32_t *number) {
    if (t->table->key_bytes == 0) return PS_INVALID;
    const uint32_t kb = t->table->key_bytes;
    struct ps_table_store *s = t->store;
    uint64_t value[KEY_WORDS_MAX], masks[KEY_WORDS_MAX];
    memcpy(value, key, kb);
    if (s) {
        memcpy(masks, mask, kb);
        bool lpm = s->tuple_min == 1;
        if (lpm) {
            priority = 0;
            for (uint32_t i = 0; i < t->desc->key_count; i++)
                if (t->desc->keys[i].match_kind == PS_LPM) priority += prefix_bits(masks, &t->desc->keys[i]);
        }
        if (s->range_count == 0) {
            for (uint32_t w = 0; w < kb / 8; w++) value[w] &= masks[w];
        } else {
            uint8_t *v = (uint8_t *)value, *m = (uint8_t *)masks;
            for (uint32_t i = 0; i < t->desc->key_count; i++) {
                const struct ps_field_desc *f = &t->desc->keys[i];
                if (f->match_kind == PS_RANGE) continue;
                for (uint32_t b = 0; b < (f->width + 7) / 8; b++) v[f->offset + b] &= m[f->offset + b];
            }
        }
        if (store_find(s, value, masks, priority) != NONE) return PS_EXISTS;
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
    if (s) {
        if (store_insert(s, n)) return PS_OK;
        t->live_bits[n] = 0;
        t->live--;
        t->free_numbers[t->free_count++] = n;
        return PS_FULL;
    }
    if ((uint64_t)t->live * 2 > t->table->slot_mask + 1) {
        uint64_t mask_new = 0;
        struct ps_slot *slots = ps_table_grow_prepare(t, t->live, &mask_new);
        if (slots) {
            release(t->slots, (t->table->slot_mask + 1) * sizeof *t->slots);
            t->slots = slots;
            t->table->slots = slots;
            t->table->slot_mask = mask_new;
        }
    }
    slot_put(t->slots, t->table->slot_mask, ps_key_hash(value, kb), n);
    return PS_OK;
}

enum ps_status ps_table_delete(struct ps_table_state *t, uint32_t number) {
    if (!ps_table_live(t, number)) return PS_NOT_FOUND;
    if (t->store) {
        store_remove(t->store, number);
    } else {
        uint64_t hash = exact_hash_of(t, number);
        uint64_t i = hash & t->table->slot_mask;
        while (t->slots[i].tag != 0 && t->slots[i].number != number) i = (i + 1) & t->table->slot_mask;
        slot_remove(t->slots, t->table->slot_mask, i, exact_hash_of, t);
    }
    t->live_bits[number] = 0;
    t->live--;
    t->free_numbers[t->free_count++] = number;
    return PS_OK;
}
