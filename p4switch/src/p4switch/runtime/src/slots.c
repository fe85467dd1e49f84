/* What exact tables and tuples are made of: pages, and hash slots in them. */
#include "slots.h"

#include <sys/mman.h>

/* ------------------------------------------------------------------ memory */

void *ps_reserve(size_t bytes) {
    void *p = mmap(NULL, bytes ? bytes : 1, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (bytes >= (8u << 20)) (void)madvise(p, bytes, MADV_HUGEPAGE);
    return p;
}

void ps_release(void *p, size_t bytes) {
    if (p) munmap(p, bytes ? bytes : 1);
}

/* ------------------------------------------------------------------ hash slots */

uint32_t ps_slot_tag(uint64_t hash) { return (uint32_t)(hash >> 32) | PS_TAG_LIVE; }

void ps_slot_put(struct ps_slot *slots, uint64_t mask, uint64_t hash, uint32_t number) {
    uint64_t i = hash & mask;
    while (slots[i].tag != 0) i = (i + 1) & mask;
    slots[i] = (struct ps_slot){ps_slot_tag(hash), number};
}

/* Removes slot i and moves later slots of its run back, so that no tombstones accumulate. */
void ps_slot_remove(struct ps_slot *slots, uint64_t mask, uint64_t i, uint64_t (*hash_of)(const void *, uint32_t),
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
