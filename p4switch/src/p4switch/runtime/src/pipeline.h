/* pipeline.c: the state of one program. */
#ifndef P4SWITCH_PIPELINE_H
#define P4SWITCH_PIPELINE_H

#include <pthread.h>

#include "maps.h"
#include "table.h"

struct ps_replica {
    uint32_t port;
    uint32_t instance;
};

struct ps_replicas { /* multicast group or clone session */
    uint32_t id;
    uint32_t count;
    uint32_t truncate_bytes;
    uint32_t class_of_service;
    struct ps_replica *list;
};

struct ps_member {
    uint32_t id;
    uint32_t refs; /* entries and group slots */
    struct ps_action *action;
};

struct ps_weighted {
    uint32_t member;
    uint32_t weight;
    uint32_t watch_port; /* UINT32_MAX: none */
};

struct ps_group_state {
    struct ps_group group; /* first: entries point to it */
    uint32_t refs;
    uint32_t member_count;
    struct ps_weighted *members;
};

struct ps_profile {
    const struct ps_profile_desc *desc;
    struct ps_id_map members; /* struct ps_member * */
    struct ps_id_map groups;  /* struct ps_group_state * */
    uint64_t member_count;
    uint32_t param_bytes_max;
};

struct ps_switch;

struct ps_pipeline {
    uint64_t serial;
    struct ps_switch *sw;
    pthread_mutex_t control; /* one batch at a time, including its preparation outside the gate */
    const struct ps_program *program;
    struct ps_table *tables;
    struct ps_table_state *states;
    struct ps_profile *profiles;
    struct ps_register *registers;
    struct ps_counter *counters;
    struct ps_meter *meters;
    struct ps_id_map mcast;            /* struct ps_replicas * */
    struct ps_id_map clones;           /* struct ps_replicas * */
    struct ps_replicas **mcast_direct; /* by id below PS_MCAST_DIRECT */
    uint8_t *egress_phv;               /* TNA: the state of the one packet that is at egress */
    uint8_t *phvs;                     /* PS_PHVS of them: a working one and a pristine one for each depth of cloning */
    uint8_t *pending_metadata;         /* PS_PENDING_MAX images, see ps_pending_image() */
    void *scratch;
    bool ages; /* some table has idle timeouts */
};

static inline bool ps_in_range(uint64_t first, uint64_t count, uint64_t size) {
    return first <= size && count <= size - first;
}

enum { PS_MCAST_DIRECT = 65536, PS_PHVS = 2 * (PS_CLONE_DEPTH_MAX + 1) };

void ps_pipeline_age(struct ps_pipeline *p, uint64_t now_us, uint32_t budget);

/* batch.c */
int ps_load_const_entries(struct ps_pipeline *p, struct ps_table_state *t);

#endif
