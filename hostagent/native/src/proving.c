/* See proving.h. A thread takes a few pieces of a pull at a time, so that several share one. What it reads while the
 * pull is given up may be anything by then, and is not used. */
#include "proving.h"

#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>

#define TAKEN_PIECES 4  /* at a time: some 50 us */
#define BEHIND_PIECES 4 /* that wait for the thread which receives, before others help it */
_Static_assert(DP_PIECE_BYTES <= BLAKE3_BYTES_MAX, "a piece is hashed by one call");

static void unlink_proof(struct dp_puller *puller, const struct pull *pull) {
    struct pull **link = &puller->proofs;
    while (*link && *link != pull) link = &(*link)->next_proof;
    if (*link) *link = pull->next_proof;
}

void proving_give_up(struct dp_puller *puller, struct pull *pull) {
    if (pull->is_listed) {
        unlink_proof(puller, pull);
        puller->unproven_pieces -= pull->ready_pieces - pull->taken_pieces;
    }
    pull->is_listed = 0;
    pull->leaves = NULL;
}

static void free_unless_used(struct pull *pull) {
    if (!pull->is_held && !pull->users) pulling_free_pull(pull);
}

void proving_let_go(struct dp_puller *puller, struct pull *pull) {
    proving_give_up(puller, pull);
    pull->is_held = 0;
    free_unless_used(pull);
}

static void tell_whole(struct dp_puller *puller, struct pull *pull, int is_proven) {
    struct told *told = pull->end;
    struct dp_pulled pulled = told->pulled;
    pull->end = NULL;
    pulled.is_proven = is_proven;
    proving_let_go(puller, pull);
    pulling_tell(puller, told, &pulled);
}

void proving_came(struct dp_puller *puller, struct pull *pull, uint64_t have_bytes) {
    if (!pull->is_listed) {
        struct pull **link = &puller->proofs;
        while (*link) link = &(*link)->next_proof;
        pull->next_proof = NULL;
        *link = pull;
        pull->is_listed = 1;
    }
    uint32_t before = pull->ready_pieces;
    pull->ready_pieces = have_bytes == pull->size_bytes ? pull->pieces : (uint32_t)(have_bytes / DP_PIECE_BYTES);
    puller->unproven_pieces += pull->ready_pieces - before;
    if (puller->unproven_pieces >= BEHIND_PIECES) pthread_cond_signal(&puller->provable);
}

void proving_finish(struct dp_puller *puller, struct pull *pull, const struct dp_pulled *pulled) {
    pull->end->pulled = *pulled;
    pull->is_whole = 1;
    pull->is_held = 0;
    if (pull->proven_pieces == pull->pieces) tell_whole(puller, pull, 1);
}

void proving_hurry(struct dp_puller *puller, uint64_t connection) {
    struct pull *next;
    for (struct pull *pull = puller->proofs; pull; pull = next) {
        next = pull->next_proof;
        if (pull->is_whole && pull->connection == connection) tell_whole(puller, pull, 0);
    }
}

void proving_forget(struct dp_puller *puller, uint64_t connection, uint64_t number) {
    struct pull *next;
    for (struct pull *pull = puller->proofs; pull; pull = next) {
        next = pull->next_proof;
        if (pull->is_whole && pull->connection == connection && (!number || pull->number == number))
            proving_let_go(puller, pull);
    }
}

static struct pull *next_to_prove(const struct dp_puller *puller) {
    struct pull *pull = puller->proofs;
    while (pull && pull->taken_pieces == pull->ready_pieces) pull = pull->next_proof;
    return pull;
}

/* Hashes some pieces of a pull, without the lock. */
static void prove(struct dp_puller *puller, struct pull *pull) {
    uint8_t leaves[TAKEN_PIECES][BLAKE3_OUT_BYTES];
    const uint8_t *bytes = pull->into;
    uint64_t size_bytes = pull->size_bytes;
    uint32_t first = pull->taken_pieces, count = pull->ready_pieces - first;
    if (count > TAKEN_PIECES) count = TAKEN_PIECES;
    pull->taken_pieces += count;
    puller->unproven_pieces -= count;
    pull->users++;
    pthread_mutex_unlock(&puller->lock);
    for (uint32_t i = 0; i < count; i++) {
        uint64_t at = (uint64_t)(first + i) * DP_PIECE_BYTES, left = size_bytes - at;
        blake3_hash(&puller->plain, bytes + at, left < DP_PIECE_BYTES ? left : DP_PIECE_BYTES, leaves[i]);
    }
    pthread_mutex_lock(&puller->lock);
    pull->users--;
    if (!pull->leaves) {
        free_unless_used(pull);
        return;
    }
    memcpy(pull->leaves + (size_t)first * BLAKE3_OUT_BYTES, leaves, count * sizeof *leaves);
    pull->proven_pieces += count;
    if (pull->is_whole && pull->proven_pieces == pull->pieces) tell_whole(puller, pull, 1);
}

int proving_some(struct dp_puller *puller) {
    struct pull *pull = next_to_prove(puller);
    if (pull) prove(puller, pull);
    return pull != NULL;
}

void *proving_run(void *argument) {
    struct dp_puller *puller = argument;
    struct pull *pull;
    prctl(PR_SET_NAME, "kvcast-proofs");
    pthread_mutex_lock(&puller->lock);
    while (!puller->stop) {
        if (puller->unproven_pieces >= BEHIND_PIECES && (pull = next_to_prove(puller)))
            prove(puller, pull);
        else
            pthread_cond_wait(&puller->provable, &puller->lock);
    }
    pthread_mutex_unlock(&puller->lock);
    return NULL;
}
