/* A program written by hand against the ABI, to exercise the runtime: frames of type 0x88b5 carry a command that says what
 * ingress and egress ask of the traffic manager; all others are looked up in tables of every kind. */
#include "p4switch_abi.h"

struct command { /* behind the Ethernet header, 16 bytes, big-endian */
    uint8_t op, list;
    uint16_t a, b, c;
    uint64_t value;
};

struct user {
    uint64_t kept;    /* field list 1 */
    uint64_t dropped; /* in no list */
};

struct phv {
    struct ps_standard_metadata std;
    _Alignas(8) struct user user;
    _Alignas(8) uint8_t ethernet_valid;
    uint8_t command_valid;
    _Alignas(8) uint8_t ethernet[14];
    uint8_t command[16];
};

enum op {
    OP_FORWARD = 1,     /* to a */
    OP_MULTICAST = 2,   /* group a; also egress_spec b */
    OP_CLONE_I2E = 3,   /* session a, forward to b */
    OP_CLONE_E2E = 4,   /* session a, forward to b */
    OP_RESUBMIT = 5,    /* once, then forward to a */
    OP_RECIRCULATE = 6, /* a more times, then forward to b */
    OP_DIGEST = 7,      /* {value, a}, forward to b */
    OP_DROP = 8,
    OP_TRUNCATE = 9,      /* to a bytes, forward to b */
    OP_EGRESS_DROP = 10,  /* multicast a; egress drops copies whose rid is b */
    OP_EGRESS_WRITE = 11, /* multicast a; egress writes its port into the header where rid is odd */
    OP_REGISTER = 12,     /* cell a += value, answer in value, forward to b */
    OP_METER = 13,        /* meter cell a, colour into c, forward to b */
    OP_LOG = 14,          /* log_msg, forward to a */
    OP_REMOVE = 15,       /* remove the command header, forward to a */
    OP_CLONE_LOOP = 16,   /* egress clones to session a for ever, forward to b */
    OP_RANDOM = 17,       /* value = random(0, value), forward to a */
    OP_SEE = 18,          /* value = ports of MACs 1 and 2 in dmac, register cell 0; forward to a */
};

enum action { FORWARD, DROP, MARK, NOP };
enum table {
    T_DMAC,
    T_ROUTE,
    T_ACL,
    T_RANGES,
    T_OPTIONAL,
    T_WIDE,
    T_SELECT,
    T_AGED,
    T_SET,
    T_CONST,
    T_SMALL,
    T_KEYLESS
};

static void parse(struct ps_ctx *ctx, void *state) {
    struct phv *phv = state;
    if (ctx->packet_bytes < 14) {
        phv->std.parser_error = PS_ERROR_PACKET_TOO_SHORT;
        return;
    }
    memcpy(phv->ethernet, ctx->packet, 14);
    phv->ethernet_valid = 1;
    ctx->consumed = 14;
    if (ps_load16(phv->ethernet + 12) != 0x88b5) return;
    if (ctx->packet_bytes < 30) {
        phv->std.parser_error = PS_ERROR_PACKET_TOO_SHORT;
        return;
    }
    memcpy(phv->command, ctx->packet + 14, 16);
    phv->command_valid = 1;
    ctx->consumed = 30;
}

static void run_action(struct ps_ctx *ctx, struct phv *phv, const struct ps_action *action) {
    (void)ctx;
    switch (action->index) {
    case FORWARD:
        phv->std.egress_spec = ps_load16(action->params);
        break;
    case DROP:
        ps_mark_to_drop(&phv->std);
        break;
    case MARK: {
        uint64_t mark;
        memcpy(&mark, action->params, 8);
        phv->user.dropped = mark;
        break;
    }
    default:
        break;
    }
}

static void l2(struct ps_ctx *ctx, struct phv *phv) {
    _Alignas(8) uint8_t key[8] = {0};
    memcpy(key, phv->ethernet, 6);
    struct ps_table *dmac = &ctx->tables[T_DMAC];
    struct ps_entry *entry = ps_lookup_exact(dmac, key, 8);
    ps_count_entry(ctx, entry);
    if (ps_meter_entry(ctx, entry, PS_GREEN) == PS_RED) {
        ps_mark_to_drop(&phv->std);
        return;
    }
    run_action(ctx, phv, ps_entry_action(entry));
    _Alignas(8) uint8_t source[8] = {0};
    memcpy(source, phv->ethernet + 6, 6);
    entry = ps_lookup_exact(&ctx->tables[T_AGED], source, 8);
    if (ps_hit(&ctx->tables[T_AGED], entry)) ps_touch_entry(ctx, entry);
    entry = ps_lookup_exact(&ctx->tables[T_SELECT], key, 8);
    if (ps_hit(&ctx->tables[T_SELECT], entry))
        run_action(ctx, phv, ps_select_action(&ctx->tables[T_SELECT], entry, ctx->api->crc32(phv->ethernet + 6, 6)));
    ps_count(ctx, &ctx->counters[0], phv->std.ingress_port);
}

/* What three pieces of state say at this moment: a batch changes all of them at once. */
static uint64_t see(struct ps_ctx *ctx) {
    uint64_t seen = 0;
    for (uint8_t last = 1; last <= 2; last++) {
        _Alignas(8) uint8_t key[8] = {2, 0, 0, 0, 0, last};
        const struct ps_action *action = ps_entry_action(ps_lookup_exact(&ctx->tables[T_DMAC], key, 8));
        seen = seen << 16 | (action->index == FORWARD ? ps_load16(action->params) : 0xffff);
    }
    uint32_t cell;
    memcpy(&cell, ps_register_cell(&ctx->registers[0], 0, 4), 4);
    return seen << 16 | (uint16_t)cell;
}

static void ingress(struct ps_ctx *ctx, void *state) {
    struct phv *phv = state;
    if (!phv->command_valid) {
        l2(ctx, phv);
        return;
    }
    uint8_t *c = phv->command;
    uint16_t a = ps_load16(c + 2), b = ps_load16(c + 4);
    int32_t list = (int32_t)c[1] - 1;
    uint64_t value = ps_load64(c + 8);
    if (phv->std.instance_type == PS_INSTANCE_NORMAL) {
        phv->user.kept = value;
        phv->user.dropped = value;
    }
    phv->std.egress_spec = b;
    switch (c[0]) {
    case OP_FORWARD:
    case OP_LOG:
    case OP_REMOVE:
    case OP_RANDOM:
    case OP_SEE:
        phv->std.egress_spec = a;
        break;
    case OP_MULTICAST:
    case OP_EGRESS_DROP:
    case OP_EGRESS_WRITE:
        phv->std.mcast_grp = a;
        break;
    case OP_CLONE_I2E:
        ps_clone(ctx, a, list);
        ps_store64(c + 8, ~value);
        break;
    case OP_RESUBMIT:
        if (phv->std.instance_type != PS_INSTANCE_RESUBMITTED) {
            ps_store64(c + 8, 0xdead); /* must not be seen again */
            ps_resubmit(ctx, list);
        } else {
            ps_store64(c + 8, phv->user.kept);
            ps_store16(c + 6, phv->std.ingress_port);
            phv->std.egress_spec = a;
        }
        break;
    case OP_RECIRCULATE:
        if (phv->std.instance_type == PS_INSTANCE_RECIRCULATED) ps_store64(c + 8, phv->user.kept + phv->user.dropped);
        break;
    case OP_DIGEST: {
        struct {
            uint64_t value;
            uint16_t a;
        } packed = {value, a};
        ps_digest(ctx, 0, &packed);
        break;
    }
    case OP_DROP:
        ps_mark_to_drop(&phv->std);
        break;
    case OP_TRUNCATE:
        ps_truncate(ctx, a);
        break;
    case OP_REGISTER: {
        uint8_t *cell = ps_register_cell(&ctx->registers[0], a, 4);
        if (!cell) break;
        uint32_t sum;
        memcpy(&sum, cell, 4);
        sum += (uint32_t)value;
        memcpy(cell, &sum, 4);
        ps_store64(c + 8, sum);
        break;
    }
    case OP_METER: {
        uint32_t color = 9;
        ps_meter(ctx, &ctx->meters[0], a, &color);
        ps_store16(c + 6, (uint16_t)color);
        break;
    }
    default:
        break;
    }
    if (c[0] == OP_LOG && ctx->log_enabled) ctx->api->log(ctx, PS_LOG_MSG, "hello", 5);
    if (c[0] == OP_SEE) ps_store64(c + 8, see(ctx));
    if (c[0] == OP_RANDOM) ps_store64(c + 8, ps_random(ctx, 0, value));
    if (c[0] == OP_REMOVE) {
        phv->command_valid = 0;
        ctx->length_change -= 16;
    }
}

static void egress(struct ps_ctx *ctx, void *state) {
    struct phv *phv = state;
    if (!phv->command_valid) {
        if (phv->std.egress_rid != 0 && phv->std.egress_port == phv->std.ingress_port) ps_mark_to_drop(&phv->std);
        return;
    }
    uint8_t *c = phv->command;
    uint16_t a = ps_load16(c + 2), b = ps_load16(c + 4);
    if (phv->std.instance_type == PS_INSTANCE_INGRESS_CLONE || phv->std.instance_type == PS_INSTANCE_EGRESS_CLONE) {
        ps_store16(c + 6, (uint16_t)phv->std.instance_type); /* what the clone looks like: type, kept metadata */
        ps_store64(c + 8, c[1] ? phv->user.kept : ps_load64(c + 8));
        ctx->headers_written = 1;
        if (c[0] == OP_CLONE_LOOP) ps_clone(ctx, a, 0);
        return;
    }
    switch (c[0]) {
    case OP_CLONE_E2E:
    case OP_CLONE_LOOP:
        ps_clone(ctx, a, (int32_t)c[1] - 1);
        break;
    case OP_RECIRCULATE:
        if (a > 0) {
            ps_store16(c + 2, (uint16_t)(a - 1));
            ctx->headers_written = 1;
            ps_recirculate(ctx, (int32_t)c[1] - 1);
        }
        break;
    case OP_EGRESS_DROP:
        phv->user.dropped++; /* metadata writes must not leak from copy to copy */
        if (phv->std.egress_rid == b) ps_mark_to_drop(&phv->std);
        break;
    case OP_EGRESS_WRITE:
        if (phv->std.egress_rid & 1) {
            ps_store16(c + 6, phv->std.egress_port);
            ctx->headers_written = 1;
        }
        break;
    default:
        break;
    }
}

static uint32_t deparse(struct ps_ctx *ctx, void *state, uint8_t *out) {
    const struct phv *phv = state;
    uint32_t n = 0;
    (void)ctx;
    if (phv->ethernet_valid) memcpy(out, phv->ethernet, n = 14);
    if (phv->command_valid) {
        memcpy(out + n, phv->command, 16);
        n += 16;
    }
    return n;
}

static void copy_field_list(void *dst, const void *src, int32_t list) {
    if (list == 0) ((struct phv *)dst)->user.kept = ((const struct phv *)src)->user.kept;
}

#define COUNT(list) (sizeof(list) / sizeof((list)[0]))
#define KEY(list) .key_count = COUNT(list), .keys = list
#define ALL_ACTIONS .action_count = 4, .actions = ANY

static const struct ps_field_desc PORT_PARAM[] = {{.name = "port", .id = 1, .width = 9}};
static const struct ps_field_desc MARK_PARAM[] = {{.name = "mark", .id = 1, .width = 64, .order = PS_NATIVE}};
static const struct ps_action_desc ACTIONS[] = {
    [FORWARD] = {.name = "forward", .param_count = 1, .param_bytes = 2, .params = PORT_PARAM},
    [DROP] = {.name = "drop"},
    [MARK] = {.name = "mark", .param_count = 1, .param_bytes = 8, .params = MARK_PARAM},
    [NOP] = {.name = "NoAction"},
};
static const uint32_t ANY[] = {FORWARD, DROP, MARK, NOP};
static const struct ps_field_desc MAC_KEY[] = {{.name = "mac", .width = 48, .match_kind = PS_EXACT}};
static const struct ps_field_desc ROUTE_KEY[] = {{.name = "vrf", .width = 12, .match_kind = PS_EXACT},
                                                 {.name = "dst", .width = 32, .offset = 2, .match_kind = PS_LPM}};
static const struct ps_field_desc ACL_KEY[] = {{.name = "src", .width = 32, .match_kind = PS_TERNARY},
                                               {.name = "dst", .width = 32, .offset = 4, .match_kind = PS_TERNARY},
                                               {.name = "proto", .width = 8, .offset = 8, .match_kind = PS_TERNARY}};
static const struct ps_field_desc RANGE_KEY[] = {{.name = "low", .width = 16, .match_kind = PS_RANGE},
                                                 {.name = "proto", .width = 8, .offset = 2, .match_kind = PS_EXACT},
                                                 {.name = "wide", .width = 80, .offset = 3, .match_kind = PS_RANGE}};
static const struct ps_field_desc OPTIONAL_KEY[] = {
    {.name = "vlan", .width = 12, .match_kind = PS_OPTIONAL},
    {.name = "port", .width = 9, .offset = 2, .match_kind = PS_OPTIONAL}};
static const struct ps_field_desc WIDE_KEY[] = {{.name = "blob", .width = 300, .match_kind = PS_EXACT}};
static const struct ps_field_desc SET_KEY[] = {{.name = "type", .width = 16, .match_kind = PS_EXACT}};

static const uint8_t CONST_KEY[8] = {0, 0, 0, 0, 0, 7}, CONST_PARAM[2] = {0, 3}, DEFAULT_PORT[2] = {0, 9};
static const struct ps_const_entry CONST_ENTRIES[] = {{.key = CONST_KEY, .action = FORWARD, .params = CONST_PARAM}};

static const struct ps_table_desc TABLES[] = {
    [T_DMAC] = {.name = "dmac",
                .flags = PS_TABLE_COUNTS_PACKETS | PS_TABLE_COUNTS_BYTES | PS_TABLE_METERS_PACKETS | PS_TABLE_METERS,
                .size = 200000,
                .key_bytes = 8,
                KEY(MAC_KEY),
                ALL_ACTIONS,
                .default_action = DROP,
                .profile = PS_NO_PROFILE},
    [T_ROUTE] = {.name = "route",
                 .size = 100000,
                 .key_bytes = 8,
                 KEY(ROUTE_KEY),
                 ALL_ACTIONS,
                 .default_action = DROP,
                 .profile = PS_NO_PROFILE},
    [T_ACL] = {.name = "acl",
               .size = 20000,
               .key_bytes = 16,
               KEY(ACL_KEY),
               ALL_ACTIONS,
               .default_action = NOP,
               .profile = PS_NO_PROFILE},
    [T_RANGES] = {.name = "ranges",
                  .size = 20000,
                  .key_bytes = 16,
                  KEY(RANGE_KEY),
                  ALL_ACTIONS,
                  .default_action = NOP,
                  .profile = PS_NO_PROFILE},
    [T_OPTIONAL] = {.name = "optional",
                    .size = 1000,
                    .key_bytes = 8,
                    KEY(OPTIONAL_KEY),
                    ALL_ACTIONS,
                    .default_action = NOP,
                    .profile = PS_NO_PROFILE},
    [T_WIDE] = {.name = "wide",
                .size = 1000,
                .key_bytes = 40,
                KEY(WIDE_KEY),
                ALL_ACTIONS,
                .default_action = NOP,
                .profile = PS_NO_PROFILE},
    [T_SELECT] =
        {.name = "select", .size = 100, .key_bytes = 8, KEY(MAC_KEY), ALL_ACTIONS, .default_action = NOP, .profile = 0},
    [T_AGED] = {.name = "aged",
                .flags = PS_TABLE_AGES,
                .size = 100,
                .key_bytes = 8,
                KEY(MAC_KEY),
                ALL_ACTIONS,
                .default_action = NOP,
                .profile = PS_NO_PROFILE},
    [T_SET] = {.name = "set",
               .flags = PS_TABLE_VALUE_SET,
               .size = 4,
               .key_bytes = 8,
               KEY(SET_KEY),
               .default_action = PS_NO_ACTION,
               .profile = PS_NO_PROFILE},
    [T_CONST] = {.name = "const",
                 .flags = PS_TABLE_CONST_ENTRIES | PS_TABLE_CONST_DEFAULT,
                 .size = 4,
                 .key_bytes = 8,
                 KEY(MAC_KEY),
                 ALL_ACTIONS,
                 .default_action = NOP,
                 .profile = PS_NO_PROFILE,
                 .const_entry_count = 1,
                 .const_entries = CONST_ENTRIES},
    [T_SMALL] = {.name = "small",
                 .size = 3,
                 .key_bytes = 8,
                 KEY(MAC_KEY),
                 ALL_ACTIONS,
                 .default_action = NOP,
                 .profile = PS_NO_PROFILE},
    [T_KEYLESS] = {.name = "keyless",
                   ALL_ACTIONS,
                   .default_action = FORWARD,
                   .default_params = DEFAULT_PORT,
                   .profile = PS_NO_PROFILE},
};
static const struct ps_profile_desc PROFILES[] = {
    {.name = "selector", .is_selector = 1, .size = 16, .action_count = 4, .actions = ANY}};
static const struct ps_register_desc REGISTERS[] = {
    {.name = "sums", .width = 32, .count = 1024, .cell_bytes = 4, .order = PS_NATIVE},
    {.name = "blocks", .width = 2048, .count = 100, .cell_bytes = 256, .order = PS_BIG}};
static const struct ps_counter_desc COUNTERS[] = {{.name = "per_port", .unit = PS_UNIT_BOTH, .count = 512}};
static const struct ps_meter_desc METERS[] = {{.name = "rates", .unit = PS_UNIT_BYTES, .count = 16}};
static const struct ps_field_desc DIGEST_FIELDS[] = {{.name = "value", .width = 64, .order = PS_NATIVE},
                                                     {.name = "a", .width = 16, .offset = 8, .order = PS_NATIVE}};
static const struct ps_digest_desc DIGESTS[] = {
    {.name = "report", .field_count = 2, .fields = DIGEST_FIELDS, .packed_bytes = 10}};

static const struct ps_program PROGRAM = {
    .abi_version = PS_ABI_VERSION,
    .descriptor_bytes = sizeof(struct ps_program),
    .name = "exerciser",
    .flags = PS_PROGRAM_TRACKS_HEADER_WRITES,
    .phv_bytes = (sizeof(struct phv) + 63) / 64 * 64,
    .metadata_bytes = offsetof(struct phv, ethernet_valid),
    .zero_bytes = offsetof(struct phv, ethernet),
    .max_header_bytes = 30,
    .parse = parse,
    .ingress = ingress,
    .egress = egress,
    .deparse = deparse,
    .copy_field_list = copy_field_list,
    .action_count = COUNT(ACTIONS),
    .table_count = COUNT(TABLES),
    .profile_count = 1,
    .register_count = COUNT(REGISTERS),
    .counter_count = 1,
    .meter_count = 1,
    .digest_count = 1,
    .actions = ACTIONS,
    .tables = TABLES,
    .profiles = PROFILES,
    .registers = REGISTERS,
    .counters = COUNTERS,
    .meters = METERS,
    .digests = DIGESTS,
};

__attribute__((visibility("default"))) const struct ps_program *p4switch_program(void) { return &PROGRAM; }
