#if defined(__x86_64__)
#define KC_LOOPS_OF_LEVEL kc_loops_avx512
#include "loops_of_level.h"
#endif
