/* The state of one program: made from its descriptor, aged, freed. */
#include <stdlib.h>
#include <sys/mman.h>

#include "groups.h"
#include "switch.h"

/* ------------------------------------------------------------------ ageing */

/* Checks up to `budget` entries. Reports an idle one, and reports it again whenever its timeout passes once more. */
void ps_pipeline_age(struct ps_pipeline *p, uint64_t now_us, uint32_t budget) {
    for (uint32_t i = 0; i < p->program->table_count; i++) {
        struct ps_table_state *t = &p->states[i];
        if (!(t->desc->flags & PS_TABLE_AGES) || t->live == 0) continue;
        uint32_t look = budget < t->high_water ? budget : t->high_water;
        while (look--) {
            if (t->idle_cursor >= t->high_water) t->idle_cursor = 0;
            uint32_t n = t->idle_cursor++;
            if (!t->live_bits[n]) continue;
            struct ps_entry_extra *s = &t->extras[n];
            if (s->timeout_us == 0 || now_us < s->last_hit_us + s->timeout_us ||
                now_us < s->notified_us + s->timeout_us)
                continue;
            s->notified_us = now_us;
            ps_events_post(&p->sw->events, PS_EVENT_IDLE, p->serial, now_us, i, n, NULL, 0);
        }
    }
}

/* ------------------------------------------------------------------ making and freeing */

static void *cells_alloc(uint64_t count, uint64_t bytes) {
    if (count && bytes > (UINT64_C(1) << 40) / count) return NULL;
    size_t size = count * bytes + PS_BUFFER_SLACK;
    void *p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return NULL;
    if (size >= (8u << 20)) (void)madvise(p, size, MADV_HUGEPAGE);
    return p;
}

static void cells_free(void *cells, uint64_t count, uint64_t bytes) {
    if (cells) munmap(cells, count * bytes + PS_BUFFER_SLACK);
}

static int init_profile(struct ps_pipeline *p, struct ps_profile *profile, const struct ps_profile_desc *desc) {
    profile->desc = desc;
    for (uint32_t i = 0; i < desc->action_count; i++) {
        uint32_t bytes = p->program->actions[desc->actions[i]].param_bytes;
        if (bytes > profile->param_bytes_max) profile->param_bytes_max = bytes;
    }
    return 0;
}

static int init_arrays(struct ps_pipeline *p) {
    const struct ps_program *program = p->program;
    for (uint32_t i = 0; i < program->register_count; i++) {
        const struct ps_register_desc *d = &program->registers[i];
        p->registers[i] = (struct ps_register){cells_alloc(d->count, d->cell_bytes), d->count, d->cell_bytes, 0};
        if (!p->registers[i].cells) return -1;
        for (uint64_t k = 0; d->initial && k < d->count; k++)
            memcpy(p->registers[i].cells + k * d->cell_bytes, d->initial, d->cell_bytes);
    }
    for (uint32_t i = 0; i < program->counter_count; i++) {
        uint64_t count = program->counters[i].count;
        p->counters[i] = (struct ps_counter){cells_alloc(count, sizeof(struct ps_counter_cell)), count};
        if (!p->counters[i].cells) return -1;
    }
    for (uint32_t i = 0; i < program->meter_count; i++) {
        uint64_t count = program->meters[i].count;
        p->meters[i] = (struct ps_meter){cells_alloc(count, sizeof(struct ps_meter_cell)), count};
        if (!p->meters[i].cells) return -1;
        for (uint64_t k = 0; program->meters[i].unit == PS_UNIT_PACKETS && k < count; k++)
            p->meters[i].cells[k].by_packets = 1;
    }
    return 0;
}

/* The pipeline must not be the one that packets run through. */
PS_EXPORT void ps_pipeline_free(struct ps_pipeline *p) {
    const struct ps_program *program = p->program;
    for (uint32_t i = 0; p->states && i < program->table_count; i++) ps_table_free(&p->states[i]);
    for (uint32_t i = 0; p->profiles && i < program->profile_count; i++) ps_profile_free(&p->profiles[i]);
    for (uint32_t i = 0; p->registers && i < program->register_count; i++)
        cells_free(p->registers[i].cells, p->registers[i].count, p->registers[i].cell_bytes);
    for (uint32_t i = 0; p->counters && i < program->counter_count; i++)
        cells_free(p->counters[i].cells, p->counters[i].count, sizeof(struct ps_counter_cell));
    for (uint32_t i = 0; p->meters && i < program->meter_count; i++)
        cells_free(p->meters[i].cells, p->meters[i].count, sizeof(struct ps_meter_cell));
    ps_replicas_map_free(&p->mcast);
    ps_replicas_map_free(&p->clones);
    free(p->mcast_direct);
    free(p->tables);
    free(p->states);
    free(p->profiles);
    free(p->registers);
    free(p->counters);
    free(p->meters);
    free(p->phvs);
    free(p->egress_phv);
    free(p->pending_metadata);
    free(p->scratch);
    pthread_mutex_destroy(&p->control);
    free(p);
}

static int init_pipeline(struct ps_pipeline *p) {
    const struct ps_program *program = p->program;
    p->tables = calloc(program->table_count + 1u, sizeof *p->tables);
    p->states = calloc(program->table_count + 1u, sizeof *p->states);
    p->profiles = calloc(program->profile_count + 1u, sizeof *p->profiles);
    p->registers = calloc(program->register_count + 1u, sizeof *p->registers);
    p->counters = calloc(program->counter_count + 1u, sizeof *p->counters);
    p->meters = calloc(program->meter_count + 1u, sizeof *p->meters);
    p->mcast_direct = calloc(PS_MCAST_DIRECT, sizeof *p->mcast_direct);
    p->phvs = aligned_alloc(64, (size_t)program->phv_bytes * PS_PHVS);
    p->egress_phv = aligned_alloc(64, program->egress_phv_bytes + 64u);
    p->pending_metadata = aligned_alloc(64, PS_PENDING_MAX * ps_pending_image_bytes(program));
    p->scratch = calloc(1, program->scratch_bytes + 8u);
    if (!p->tables || !p->states || !p->profiles || !p->registers || !p->counters || !p->meters || !p->mcast_direct ||
        !p->phvs || !p->egress_phv || !p->pending_metadata || !p->scratch)
        return -1;
    memset(p->phvs, 0, (size_t)program->phv_bytes * PS_PHVS);
    memset(p->egress_phv, 0, program->egress_phv_bytes);
    for (uint32_t i = 0; i < program->profile_count; i++)
        if (init_profile(p, &p->profiles[i], &program->profiles[i]) != 0) return -1;
    for (uint32_t i = 0; i < program->table_count; i++) {
        if (ps_table_init(&p->states[i], &p->tables[i], program, &program->tables[i]) != 0) return -1;
        ps_reset_default(p, &p->states[i]);
        p->ages = p->ages || (program->tables[i].flags & PS_TABLE_AGES) != 0;
        if (ps_load_const_entries(p, &p->states[i]) != 0) return -1;
    }
    return init_arrays(p);
}

static const char *descriptor_fault(const struct ps_program *program) {
    if (program->abi_version != PS_ABI_VERSION) return "the program was compiled for another version of the runtime";
    if (program->descriptor_bytes != sizeof *program) return "the program's descriptor has another size";
    if (program->phv_bytes % 64 || program->phv_bytes == 0) return "phv_bytes is no multiple of 64";
    if (program->metadata_bytes % 8 || program->zero_bytes % 8)
        return "metadata_bytes and zero_bytes must be multiples of 8";
    bool tna = program->architecture == PS_TNA;
    if (!tna && program->architecture != PS_V1MODEL)
        return "the program is for an architecture that the runtime does not have";
    if (program->metadata_bytes < (tna ? sizeof(struct ps_tna_ingress) : sizeof(struct ps_standard_metadata)))
        return "metadata_bytes leaves out intrinsic metadata";
    if (tna && (program->egress_phv_bytes % 64 || program->egress_zero_bytes < sizeof(struct ps_tna_egress) ||
                program->egress_phv_bytes < program->egress_zero_bytes))
        return "the PHV of egress leaves out intrinsic metadata";
    if (tna && (!program->egress_parse || !program->egress_deparse)) return "parser or deparser of egress is missing";
    if (program->zero_bytes < program->metadata_bytes || program->phv_bytes < program->zero_bytes)
        return "PHV regions overlap";
    if (program->max_header_bytes > PS_FRAME_BYTES_MAX / 2)
        return "the program's headers are longer than a frame may be";
    if (!program->parse || !program->ingress || !program->deparse) return "parse, ingress or deparse is missing";
    return NULL;
}

/* Makes a pipeline with empty tables and the entries that the program declares. NULL, with *error set, on failure. */
PS_EXPORT struct ps_pipeline *ps_pipeline_new(struct ps_switch *sw, const struct ps_program *program,
                                              const char **error) {
    *error = descriptor_fault(program);
    if (*error) return NULL;
    struct ps_pipeline *p = calloc(1, sizeof *p);
    if (!p) {
        *error = "out of memory";
        return NULL;
    }
    pthread_mutex_init(&p->control, NULL);
    p->sw = sw;
    p->program = program;
    p->serial = __atomic_add_fetch(&sw->pipeline_serial, 1, __ATOMIC_RELAXED);
    if (init_pipeline(p) != 0) {
        *error = "not enough memory for the program's tables and registers, or a table's description is faulty";
        ps_pipeline_free(p);
        return NULL;
    }
    return p;
}

PS_EXPORT uint64_t ps_pipeline_serial(const struct ps_pipeline *p) { return p->serial; }
