/* groups.c: what entries refer to, and where packets are copied to. */
#ifndef P4SWITCH_GROUPS_H
#define P4SWITCH_GROUPS_H

#include "pipeline.h"

enum ps_action_kind { PS_ACTION_NONE = 0, PS_ACTION_CALL = 1, PS_ACTION_MEMBER = 2, PS_ACTION_GROUP = 3 };
enum ps_status ps_set_action(struct ps_pipeline *p, struct ps_table_state *t, struct ps_entry *entry, uint32_t kind,
                             uint32_t action, const uint8_t *params, size_t param_bytes);
void ps_unref_action(struct ps_pipeline *p, const struct ps_table_desc *desc, struct ps_entry *entry);
void ps_reset_default(struct ps_pipeline *p, struct ps_table_state *t);
enum ps_status ps_member_set(struct ps_pipeline *p, struct ps_profile *profile, uint32_t id, uint32_t action,
                             const uint8_t *params, size_t param_bytes);
enum ps_status ps_member_delete(struct ps_profile *profile, uint32_t id);
enum ps_status ps_group_set(struct ps_pipeline *p, struct ps_profile *profile, uint32_t id,
                            const struct ps_weighted *list, uint32_t count);
enum ps_status ps_group_delete(struct ps_profile *profile, uint32_t id);
void ps_profile_free(struct ps_profile *profile);
enum ps_status ps_replicas_set(struct ps_pipeline *p, bool mcast, uint32_t id, const struct ps_replica *list,
                               uint32_t count, uint64_t truncate_bytes, uint64_t class_of_service);
enum ps_status ps_replicas_delete(struct ps_pipeline *p, bool mcast, uint32_t id);
void ps_replicas_map_free(struct ps_id_map *map);

#define PS_ANY_PORT UINT32_MAX
/* Spreads the groups that watch `port` (PS_ANY_PORT: any port) again over those members whose ports are up. */
void ps_pipeline_port_changed(struct ps_pipeline *p, uint32_t port);

#endif
