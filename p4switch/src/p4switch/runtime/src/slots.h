/* slots.c: memory of tables, and the hash slots of exact tables and tuples. */
#ifndef P4SWITCH_SLOTS_H
#define P4SWITCH_SLOTS_H

#include "common.h"

/* Returns zeroed pages, which cost nothing until they are touched. */
void *ps_reserve(size_t bytes);
void ps_release(void *p, size_t bytes);

/* Open addressing with linear probing. */
uint32_t ps_slot_tag(uint64_t hash);
void ps_slot_put(struct ps_slot *slots, uint64_t mask, uint64_t hash, uint32_t number);
void ps_slot_remove(struct ps_slot *slots, uint64_t mask, uint64_t i, uint64_t (*hash_of)(const void *, uint32_t),
                    const void *arg);

#endif
