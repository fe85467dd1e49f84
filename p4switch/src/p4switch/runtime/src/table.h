/* table.c: the tables of a program, of every match kind. */
#ifndef P4SWITCH_TABLE_H
#define P4SWITCH_TABLE_H

#include "common.h"

/* Results of control operations, as Python reads them. */
enum ps_status {
    PS_OK = 0,
    PS_FULL = 1,
    PS_EXISTS = 2,
    PS_NOT_FOUND = 3,
    PS_CONST = 4,
    PS_INVALID = 5,
    PS_IN_USE = 6,
};

struct ps_table_store; /* private to masked.c */

struct ps_table_state {
    struct ps_table *table; /* in ps_pipeline.tables */
    const struct ps_program *program;
    const struct ps_table_desc *desc;
    uint64_t capacity;
    uint32_t live;
    uint32_t high_water;    /* entry numbers below it have been used */
    uint32_t *free_numbers; /* stack */
    uint32_t free_count;
    uint8_t *live_bits; /* one byte per entry: 0 free, 1 live, 2 live and const */
    struct ps_entry_extra *extras;
    uint32_t mask_offset;   /* in body; 0: exact, no mask */
    uint32_t action_offset; /* in body */
    uint32_t param_bytes_max;
    struct ps_slot *slots; /* exact: what table->slots points to */
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
/* Makes room for `more` entries, so that no rehash happens between packets. Called outside the gate. */
struct ps_slot *ps_table_grow_prepare(const struct ps_table_state *t, uint64_t more, uint64_t *mask);

#endif
