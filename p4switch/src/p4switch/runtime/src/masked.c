/* Tables with lpm, ternary, range or optional keys. Entries with the same mask form a tuple, which has a hash table
 * of its own. A lookup searches the tuples from the highest priority down and stops early. (In an lpm table the
 * prefix length is the priority, so a lookup probes each distinct length at most once, however many entries there
 * are.) Entries with a range, or with a mask that few others share, stay in one list in order of priority. The rows
 * of this list are contiguous in memory. */
#include <stdlib.h>

#include "masked.h"
#include "slots.h"

enum {
    TUPLE_MIN_TERNARY = 12, /* with this many entries of one mask, a hash probe beats comparing rows */
    RANGES_MAX = 16,
};
#define NONE UINT32_MAX

struct tuple {
    uint64_t *mask; /* key_words */
    struct ps_slot *slots;
    uint64_t slot_mask;
    uint32_t used; /* distinct masked keys */
    uint32_t entries;
    uint32_t priority_max; /* upper bound; deletions lower it from time to time */
    uint32_t stale;        /* deletions since it was last exact */
};

struct mask_count { /* rows of the list with this mask */
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
    uint32_t *next;    /* by entry number: next entry with the same masked key, lower priority */
    uint8_t *in_tuple; /* by entry number */
    uint32_t range_count;
    struct range_field ranges[RANGES_MAX];
    uint64_t *rows; /* row_words each: value, mask, low and high of every range */
    struct row_tail *tails;
    uint32_t row_words, row_count, row_room;
    struct mask_count *masks; /* of the list's rows without ranges */
    uint32_t mask_used, mask_room;
};

static void *grown(void *old, size_t old_count, size_t new_count, size_t item) {
    void *p = realloc(old, new_count * item);
    if (p && new_count > old_count) memset((uint8_t *)p + old_count * item, 0, (new_count - old_count) * item);
    return p;
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
    uint32_t tag = ps_slot_tag(hash);
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
    tp->slots = calloc(PS_SLOTS_MIN, sizeof *tp->slots);
    if (!tp->mask || !tp->slots) {
        free(tp->mask);
        free(tp->slots);
        free(tp);
        return NULL;
    }
    memcpy(tp->mask, mask, s->key_words * 8u);
    tp->slot_mask = PS_SLOTS_MIN - 1;
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
            if (tp->slots[i].tag)
                ps_slot_put(slots, mask, tuple_hash_of(&arg, tp->slots[i].number), tp->slots[i].number);
        free(tp->slots);
        tp->slots = slots;
        tp->slot_mask = mask;
    }
    uint32_t priority = priority_of(s, number);
    struct ps_slot *slot = tuple_find(s, tp, value_of(s, number));
    s->in_tuple[number] = 1;
    if (!slot) {
        s->next[number] = NONE;
        ps_slot_put(tp->slots, tp->slot_mask, words_hash(value_of(s, number), s->key_words), number);
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
            ps_slot_remove(tp->slots, tp->slot_mask, (uint64_t)(slot - tp->slots), tuple_hash_of, &arg);
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
    while (low < high) { /* goes behind all rows of the same priority: the first inserted wins */
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

#define SCAN(KW)                                                                                            \
    for (uint32_t i = 0; i < count; i++, row += stride) {                                                   \
        uint64_t differ = 0;                                                                                \
        for (uint32_t w = 0; w < (KW); w++) differ |= (key[w] ^ row[w]) & row[(KW) + w];                    \
        if (PS_UNLIKELY(differ == 0)) {                                                                     \
            if (tails[i].priority <= floor && floor_set) return NONE;                                       \
            if (s->range_count == 0 || ranges_match(s, row, tails[i].number, (const uint8_t *)key, loaded)) \
                return tails[i].number;                                                                     \
        }                                                                                                   \
    }

/* Finds the first row that matches and has a priority above `floor` (if floor_set). */
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
    case 1:
        SCAN(1u) break;
    case 2:
        SCAN(2u) break;
    case 3:
        SCAN(3u) break;
    case 4:
        SCAN(4u) break;
    default:
        SCAN(s->key_words) break;
    }
    return NONE;
}

struct ps_entry *ps_masked_lookup(const struct ps_table *table, const uint8_t *key_bytes) {
    const struct ps_table_store *s = table->matcher;
    uint64_t key[PS_KEY_WORDS_MAX], masked[PS_KEY_WORDS_MAX];
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

static struct mask_count *mask_counter(struct ps_table_store *s, const uint64_t *mask) {
    for (uint32_t i = 0; i < s->mask_used; i++)
        if (memcmp(s->masks[i].mask, mask, s->key_words * 8u) == 0) return &s->masks[i];
    return NULL;
}

/* Moves the rows of a mask, which have become many, to a tuple. */
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

bool ps_masked_insert(struct ps_table_store *s, uint32_t number) {
    const uint64_t *mask = mask_of(s, number);
    if (s->range_count) return row_insert(s, number);
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

void ps_masked_remove(struct ps_table_store *s, uint32_t number) {
    if (s->in_tuple[number]) {
        tuple_remove(s, number);
        return;
    }
    row_remove(s, number);
    struct mask_count *m = s->range_count ? NULL : mask_counter(s, mask_of(s, number));
    if (m && --m->rows == 0) {
        free(m->mask);
        *m = s->masks[--s->mask_used];
    }
}

/* Finds the entry with exactly this value, mask and priority. (The priority does not identify an lpm entry.) */
uint32_t ps_masked_find(const struct ps_table_store *s, const uint64_t *value, const uint64_t *mask,
                        uint32_t priority) {
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
        if (memcmp(value_of(s, number), value, bytes) == 0 && memcmp(mask_of(s, number), mask, bytes) == 0)
            return number;
    }
    return NONE;
}

static uint32_t prefix_bits(const uint64_t *mask, const struct ps_field_desc *field) {
    const uint8_t *bytes = (const uint8_t *)mask + field->offset;
    uint32_t bits = 0;
    for (uint32_t i = 0; i < (field->width + 7) / 8; i++) bits += (uint32_t)__builtin_popcount(bytes[i]);
    return bits;
}

/* Clears the bits that the mask leaves out, so that equal entries have equal bytes. Returns the rank of the entry:
 * its priority, or in an lpm table the length of its prefix. */
uint32_t ps_masked_normalize(const struct ps_table_store *s, uint64_t *value, const uint64_t *mask, uint32_t priority) {
    const struct ps_table_desc *desc = s->t->desc;
    uint8_t *v = (uint8_t *)value;
    const uint8_t *m = (const uint8_t *)mask;
    uint32_t prefix = 0;
    for (uint32_t i = 0; i < desc->key_count; i++) {
        const struct ps_field_desc *f = &desc->keys[i];
        if (f->match_kind == PS_RANGE) continue; /* the mask is the high bound */
        for (uint32_t b = 0; b < (f->width + 7) / 8; b++) v[f->offset + b] &= m[f->offset + b];
        if (f->match_kind == PS_LPM) prefix += prefix_bits(mask, f);
    }
    return s->tuple_min == 1 ? prefix : priority;
}

int ps_masked_init(struct ps_table_state *t, bool lpm) {
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
    s->next = ps_reserve(t->capacity * sizeof *s->next);
    s->in_tuple = ps_reserve(t->capacity);
    return s->next && s->in_tuple ? 0 : -1;
}

void ps_masked_free(struct ps_table_state *t) {
    struct ps_table_store *s = t->store;
    while (s->tuple_count) tuple_drop(s, s->tuples[0]);
    for (uint32_t i = 0; i < s->mask_used; i++) free(s->masks[i].mask);
    free(s->tuples);
    free(s->masks);
    free(s->rows);
    free(s->tails);
    ps_release(s->next, t->capacity * sizeof *s->next);
    ps_release(s->in_tuple, t->capacity);
    free(s);
    t->store = NULL;
}
