/* What belongs to the whole shared object: which instructions it uses, and the sizes of its structures. */
#include "datapath.h"

#include <assert.h>

#include "asker.h"
#include "blake3.h"
#include "crc32.h"
#include "gets.h"
#include "pulls.h"
#include "reads.h"

_Static_assert(DP_MASKED_SOURCE + 4 <= DP_MASKED_BYTES && DP_MASKED_SOURCE_PORT + 2 <= DP_MASKED_BYTES,
               "what is masked holds the source and its port");
_Static_assert(DP_KV_KEY + DP_KEY_BYTES <= DP_HEADER_BYTES && DP_CHUNK_HEADER < DP_HEADER_BYTES,
               "a header ends with its chunk");
_Static_assert(DP_BTH_RESERVED < DP_CHUNK_HEADER && DP_ICRC_BYTES == sizeof(uint32_t),
               "what the ICRC masks, and its size");

const uint32_t dp_structure_bytes[] = {
    sizeof(struct dp_completion_queue),
    sizeof(struct dp_receive_queue),
    sizeof(struct dp_receiver_config),
    sizeof(struct dp_report),
    sizeof(struct dp_drained),
    sizeof(struct dp_group),
    sizeof(struct dp_job),
    sizeof(struct dp_outcome),
    sizeof(struct dp_send_queue),
    sizeof(struct dp_chain),
    sizeof(struct dp_asker_config),
    sizeof(struct dp_allowance),
    sizeof(struct dp_range),
    sizeof(struct dp_came),
    sizeof(struct dp_asked),
    sizeof(struct dp_getter_config),
    sizeof(struct dp_got),
    sizeof(struct dp_puller_config),
    sizeof(struct dp_pull),
    sizeof(struct dp_pulled),
    sizeof(struct dp_pulls),
    sizeof(struct dp_server_config),
    sizeof(struct dp_returned),
    sizeof(struct dp_reads),
    sizeof(struct dp_part),
};

int dp_use_level(int level) {
    assert(level >= CPU_BASE && level <= CPU_AVX512);
    enum cpu_level found = cpu_level_up_to((enum cpu_level)level);
    unsigned extras = cpu_of_this_machine().extras;
    if (found < CPU_AVX2) extras &= ~(unsigned)CPU_FOLDS_PAIRS;
    if (found < CPU_AVX512) extras &= ~(unsigned)CPU_FOLDS_WIDE;
    if (level == CPU_BASE) extras = 0;
    dp_crc32_use(extras);
    blake3_use_level(found);
    return (int)found;
}

__attribute__((constructor)) static void choose(void) { dp_use_level(CPU_AVX512); }

uint32_t dp_crc(uint32_t crc, const void *bytes, uint64_t size) { return dp_crc32(crc, bytes, size); }
