/* hash.c, meter.c: the algorithms behind a program's externs. */
#ifndef P4SWITCH_EXTERNS_H
#define P4SWITCH_EXTERNS_H

#include "common.h"

uint32_t ps_crc32(const uint8_t *bytes, size_t length);
uint16_t ps_crc16(const uint8_t *bytes, size_t length);
uint16_t ps_csum16(const uint8_t *bytes, size_t length);
uint16_t ps_xor16(const uint8_t *bytes, size_t length);
uint32_t ps_meter_run(struct ps_ctx *ctx, struct ps_meter_cell *cell, uint32_t pre_color);
void ps_meter_configure(struct ps_meter_cell *cell, const uint64_t config[4], bool configured, uint64_t now_us);

uint16_t ps_inet_sum(const uint8_t *bytes, size_t length, uint32_t start);

#endif
