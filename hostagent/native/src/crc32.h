/* CRC-32 as zlib computes it (the polynomial of Ethernet), by carry-less multiplication where the processor has it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Continues `crc` (0 to begin) over `size` bytes. */
uint32_t dp_crc32(uint32_t crc, const void *bytes, size_t size);

/* Uses these instructions of enum cpu_extra (kvcodec/src/cpu.h) from now on, tables for the rest. Before everything
 * else, and while nothing else runs. The processor must have them. */
void dp_crc32_use(unsigned extras);
