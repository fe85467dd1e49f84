/* v1model.c: what happens to a packet between the functions of a v1model program. */
#ifndef P4SWITCH_V1MODEL_H
#define P4SWITCH_V1MODEL_H

#include "buffer.h"
#include "pipeline.h"

struct ps_pending { /* a packet that waits to enter ingress */
    struct ps_buffer *frame;
    uint32_t ingress_port;
    uint32_t instance_type;
    uint32_t slot; /* of pipeline->pending_metadata */
};

/* Bytes of a metadata image. Programs read it as the beginning of a PHV, so it has the alignment of one. */
static inline size_t ps_pending_image_bytes(const struct ps_program *program) {
    return ((size_t)program->metadata_bytes + 63) / 64 * 64;
}

static inline uint8_t *ps_pending_image(const struct ps_pipeline *pipeline, uint32_t slot) {
    return pipeline->pending_metadata + slot * ps_pending_image_bytes(pipeline->program);
}

void ps_v1model_ingress(struct ps_switch *sw, struct ps_buffer *frame, uint32_t port); /* owns frame */

/* Runs up to `budget` of the packets that wait to enter ingress again. Returns how many. */
int ps_v1model_pending(struct ps_switch *sw, int budget);
void ps_v1model_flush_pending(struct ps_switch *sw);

#endif
