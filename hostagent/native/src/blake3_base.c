#define BLAKE3_LANES_OF_LEVEL blake3_lanes_base
#include "blake3_of_level.h"
