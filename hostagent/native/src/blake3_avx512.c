#if defined(__x86_64__)
#define BLAKE3_LANES_OF_LEVEL blake3_lanes_avx512
#include "blake3_of_level.h"
#endif
