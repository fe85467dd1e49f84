/* BLAKE3 of at most 64 KiB (the BLAKE3 paper, 2020-01-09), for digests as `hostagent.tree` makes them. */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "cpu.h"

#define BLAKE3_BYTES_MAX 65536
#define BLAKE3_OUT_BYTES 32

/* A mode of the hash. */
struct blake3_mode {
    uint32_t key[8];
    uint32_t flags;
};

/* The plain hash. */
struct blake3_mode blake3_plain(void);

/* Key derivation: hashes of key material in this context. `count`: at most BLAKE3_BYTES_MAX. */
struct blake3_mode blake3_of_context(const uint8_t *context, size_t count);

/* `count`: at most BLAKE3_BYTES_MAX. */
void blake3_hash(const struct blake3_mode *mode, const uint8_t *bytes, size_t count, uint8_t out[BLAKE3_OUT_BYTES]);

/* Hashes in as many lanes as this level has from now on. Before everything else, and while nothing else runs. The
 * processor must have the level. */
void blake3_use_level(enum cpu_level level);
