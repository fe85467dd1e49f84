/* maps.c: from ids that the control plane chooses to what they name. */
#ifndef P4SWITCH_MAPS_H
#define P4SWITCH_MAPS_H

#include "common.h"

struct ps_id_map { /* id -> pointer, open addressing */
    uint32_t *ids; /* 0xffffffff free */
    void **values;
    uint64_t mask;
    uint64_t used;
};

void *ps_map_get(const struct ps_id_map *map, uint32_t id);
int ps_map_put(struct ps_id_map *map, uint32_t id, void *value);
void *ps_map_remove(struct ps_id_map *map, uint32_t id);
void ps_map_free(struct ps_id_map *map);
#define PS_FREE_ID UINT32_MAX

#endif
