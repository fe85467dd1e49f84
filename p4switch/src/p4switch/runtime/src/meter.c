/* Two-rate three-colour markers (RFC 2698). Tokens are kept in millionths, so rates below one unit per microsecond
 * lose nothing between two packets. */
#include "externs.h"

#define MILLION 1000000u

static uint64_t refill(uint64_t tokens, uint64_t rate, uint64_t burst, uint64_t elapsed_us) {
    unsigned __int128 sum = (unsigned __int128)rate * elapsed_us + tokens;
    unsigned __int128 full = (unsigned __int128)burst * MILLION;
    if (full > UINT64_MAX) full = UINT64_MAX;
    return sum > full ? (uint64_t)full : (uint64_t)sum;
}

/* Colour-aware: the result is never better than `pre_color`. Colour-blind programs pass green. */
static uint32_t mark(const struct ps_ctx *ctx, struct ps_meter_cell *cell, uint32_t pre_color) {
    if (!cell->configured) return PS_GREEN;
    uint64_t elapsed_us = ctx->now_us > cell->updated_us ? ctx->now_us - cell->updated_us : 0;
    cell->committed_utokens = refill(cell->committed_utokens, cell->cir, cell->cburst, elapsed_us);
    cell->peak_utokens = refill(cell->peak_utokens, cell->pir, cell->pburst, elapsed_us);
    cell->updated_us += elapsed_us;
    uint64_t cost = (cell->by_packets ? 1u : (uint64_t)ctx->count_bytes) * MILLION;
    if (pre_color == PS_RED || cell->peak_utokens < cost) return PS_RED;
    cell->peak_utokens -= cost;
    if (pre_color == PS_YELLOW || cell->committed_utokens < cost) return PS_YELLOW;
    cell->committed_utokens -= cost;
    return PS_GREEN;
}

uint32_t ps_meter_run(struct ps_ctx *ctx, struct ps_meter_cell *cell, uint32_t pre_color) {
    uint32_t color = mark(ctx, cell, pre_color);
    cell->colors[color].packets++;
    cell->colors[color].bytes += ctx->count_bytes;
    return color;
}

void ps_meter_configure(struct ps_meter_cell *cell, const uint64_t config[4], bool configured, uint64_t now_us) {
    cell->cir = config[0];
    cell->cburst = config[1];
    cell->pir = config[2];
    cell->pburst = config[3];
    cell->configured = configured;
    cell->updated_us = now_us;
    cell->committed_utokens = refill(0, UINT64_MAX, cell->cburst, 1); /* both buckets start full */
    cell->peak_utokens = refill(0, UINT64_MAX, cell->pburst, 1);
}
