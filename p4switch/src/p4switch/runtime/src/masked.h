/* masked.c: tables of lpm, ternary, range and optional keys. Only table.c uses them. */
#ifndef P4SWITCH_MASKED_H
#define P4SWITCH_MASKED_H

#include "table.h"

int ps_masked_init(struct ps_table_state *t, bool lpm);
void ps_masked_free(struct ps_table_state *t);
uint32_t ps_masked_normalize(const struct ps_table_store *s, uint64_t *value, const uint64_t *mask, uint32_t priority);
bool ps_masked_insert(struct ps_table_store *s, uint32_t number);
void ps_masked_remove(struct ps_table_store *s, uint32_t number);
uint32_t ps_masked_find(const struct ps_table_store *s, const uint64_t *value, const uint64_t *mask, uint32_t priority);
struct ps_entry *ps_masked_lookup(const struct ps_table *table, const uint8_t *key);

#endif
