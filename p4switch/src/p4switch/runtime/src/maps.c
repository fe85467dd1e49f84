/* Maps from ids that the control plane chooses to what they name. */
#include <stdlib.h>

#include "maps.h"

static uint64_t id_hash(uint32_t id) { return ps_mix(id ^ 0x9e3779b97f4a7c15u, 0xd6e8feb86659fd93u); }

void *ps_map_get(const struct ps_id_map *map, uint32_t id) {
    if (!map->ids) return NULL;
    for (uint64_t i = id_hash(id) & map->mask; map->ids[i] != PS_FREE_ID; i = (i + 1) & map->mask)
        if (map->ids[i] == id) return map->values[i];
    return NULL;
}

int ps_map_put(struct ps_id_map *map, uint32_t id, void *value) {
    if (!map->ids || (map->used + 1) * 2 > map->mask + 1) {
        struct ps_id_map larger = {.mask = map->ids ? map->mask * 2 + 1 : 15};
        larger.ids = malloc((larger.mask + 1) * sizeof *larger.ids);
        larger.values = calloc(larger.mask + 1, sizeof *larger.values);
        if (!larger.ids || !larger.values) {
            ps_map_free(&larger);
            return -1;
        }
        memset(larger.ids, 0xff, (larger.mask + 1) * sizeof *larger.ids);
        for (uint64_t i = 0; map->ids && i <= map->mask; i++)
            if (map->ids[i] != PS_FREE_ID) (void)ps_map_put(&larger, map->ids[i], map->values[i]);
        ps_map_free(map);
        *map = larger;
    }
    uint64_t i = id_hash(id) & map->mask;
    while (map->ids[i] != PS_FREE_ID && map->ids[i] != id) i = (i + 1) & map->mask;
    if (map->ids[i] == PS_FREE_ID) map->used++;
    map->ids[i] = id;
    map->values[i] = value;
    return 0;
}

void *ps_map_remove(struct ps_id_map *map, uint32_t id) {
    if (!map->ids) return NULL;
    uint64_t i = id_hash(id) & map->mask;
    while (map->ids[i] != id) {
        if (map->ids[i] == PS_FREE_ID) return NULL;
        i = (i + 1) & map->mask;
    }
    void *value = map->values[i];
    uint64_t hole = i;
    for (uint64_t j = (i + 1) & map->mask; map->ids[j] != PS_FREE_ID; j = (j + 1) & map->mask) {
        uint64_t home = id_hash(map->ids[j]) & map->mask;
        if (((j - home) & map->mask) >= ((j - hole) & map->mask)) {
            map->ids[hole] = map->ids[j];
            map->values[hole] = map->values[j];
            hole = j;
        }
    }
    map->ids[hole] = PS_FREE_ID;
    map->used--;
    return value;
}

void ps_map_free(struct ps_id_map *map) {
    free(map->ids);
    free(map->values);
    *map = (struct ps_id_map){0};
}
