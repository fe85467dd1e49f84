#define KC_LOOPS_OF_LEVEL kc_loops_base
#include "loops_of_level.h"
