/* All loops, compiled for one level: included once by each loops_*.c, whose flags say which instructions there are. */
#include "loops.h"

#include <string.h>

#ifdef __AVX2__
#include <immintrin.h>
#endif

#include "lattice_loops.h"
#include "planes_loops.h"
#include "rans_loops.h"

const struct kc_loops KC_LOOPS_OF_LEVEL = {
    .prepare = prepare,
    .split = split,
    .join = join,
    .rans_encode = rans_encode,
    .rans_decode = rans_decode,
    .largest = largest_of,
    .quantise = quantise,
    .restore = restore,
};
