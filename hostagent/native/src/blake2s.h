/* Tags of a catalog: BLAKE2s of a chunk's key, 16 bytes, keyed with the catalog's salt (RFC 7693, kvclient.catalog). */
#pragma once

#include <stdint.h>

#define TAG_BYTES 16
#define TAG_KEY_BYTES 16
#define TAG_SALT_BYTES 16

/* The hash after the block that holds its key. */
struct tags {
    uint32_t keyed[8];
};

void tags_begin(struct tags *tags, const uint8_t salt[TAG_SALT_BYTES]);

/* Writes the tag of a chunk's key. */
void tags_of(const struct tags *tags, const uint8_t key[TAG_KEY_BYTES], uint8_t tag[TAG_BYTES]);
