/* The smallest useful program, as the compiler would write it by hand: an L2 switch that floods what it does not know.
 * It tests the runtime alone, apart from the compiler. */
#include "p4switch_abi.h"

struct phv {
    struct ps_standard_metadata std;
    _Alignas(8) uint8_t ethernet_valid;
    _Alignas(8) uint8_t ethernet[14];
};

enum { METADATA_BYTES = (sizeof(struct ps_standard_metadata) + 7) / 8 * 8 };

enum { FORWARD = 0, FLOOD = 1 };
enum { TABLE_DMAC = 0 };

static void parse(struct ps_ctx *ctx, void *state) {
    struct phv *phv = state;
    if (ctx->packet_bytes < 14) {
        phv->std.parser_error = PS_ERROR_PACKET_TOO_SHORT;
        return;
    }
    memcpy(phv->ethernet, ctx->packet, 14);
    phv->ethernet_valid = 1;
    ctx->consumed = 14;
}

static void ingress(struct ps_ctx *ctx, void *state) {
    struct phv *phv = state;
    _Alignas(8) uint8_t key[8] = {0};
    const struct ps_table *table = &ctx->tables[TABLE_DMAC];
    memcpy(key, phv->ethernet, 6);
    struct ps_entry *entry = ps_lookup_exact(table, key, 8);
    ps_count_entry(ctx, entry);
    const struct ps_action *action = ps_entry_action(entry);
    if (action->index == FORWARD)
        phv->std.egress_spec = ps_load16(action->params);
    else if (action->index == FLOOD)
        phv->std.mcast_grp = ps_load16(action->params);
}

static void egress(struct ps_ctx *ctx, void *state) {
    struct phv *phv = state;
    (void)ctx;
    if (phv->std.egress_rid != 0 && phv->std.egress_port == phv->std.ingress_port) ps_mark_to_drop(&phv->std);
}

static uint32_t deparse(struct ps_ctx *ctx, void *state, uint8_t *out) {
    const struct phv *phv = state;
    (void)ctx;
    if (!phv->ethernet_valid) return 0;
    memcpy(out, phv->ethernet, 14);
    return 14;
}

static const struct ps_field_desc FORWARD_PARAMS[] = {{.name = "port", .id = 1, .width = 9}};
static const struct ps_field_desc FLOOD_PARAMS[] = {{.name = "group", .id = 1, .width = 16}};
static const struct ps_action_desc ACTIONS[] = {
    {.name = "L2Ingress.forward", .param_count = 1, .param_bytes = 2, .params = FORWARD_PARAMS},
    {.name = "L2Ingress.flood", .param_count = 1, .param_bytes = 2, .params = FLOOD_PARAMS},
};
static const struct ps_field_desc DMAC_KEY[] = {
    {.name = "hdr.ethernet.dst", .id = 1, .width = 48, .match_kind = PS_EXACT}};
static const uint32_t DMAC_ACTIONS[] = {FORWARD, FLOOD};
static const uint8_t GROUP_ALL[2] = {0, 1};
static const struct ps_table_desc TABLES[] = {
    {.name = "L2Ingress.dmac",
     .flags = PS_TABLE_COUNTS_PACKETS | PS_TABLE_COUNTS_BYTES,
     .size = 1 << 20,
     .key_count = 1,
     .key_bytes = 8,
     .keys = DMAC_KEY,
     .action_count = 2,
     .default_action = FLOOD,
     .actions = DMAC_ACTIONS,
     .default_params = GROUP_ALL,
     .profile = PS_NO_PROFILE},
};

static const struct ps_program PROGRAM = {
    .abi_version = PS_ABI_VERSION,
    .descriptor_bytes = sizeof(struct ps_program),
    .name = "l2",
    .flags = PS_PROGRAM_TRACKS_HEADER_WRITES,
    .phv_bytes = (sizeof(struct phv) + 63) / 64 * 64,
    .metadata_bytes = METADATA_BYTES,
    .zero_bytes = METADATA_BYTES + 8,
    .max_header_bytes = 14,
    .parse = parse,
    .ingress = ingress,
    .egress = egress,
    .deparse = deparse,
    .action_count = 2,
    .table_count = 1,
    .actions = ACTIONS,
    .tables = TABLES,
};

__attribute__((visibility("default"))) const struct ps_program *p4switch_program(void) { return &PROGRAM; }
