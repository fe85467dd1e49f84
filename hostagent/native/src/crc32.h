/* CRC-32 as zlib computes it (the polynomial of Ethernet), by carry-less multiplication where the processor has it. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Continues `crc` (0 to begin) over `size` bytes. */
uint32_t dp_crc32(uint32_t crc, const void *bytes, size_t size);

/* The same, always by tables: what processors without carry-less multiplication run. */
uint32_t dp_crc32_by_tables(uint32_t crc, const void *bytes, size_t size);
