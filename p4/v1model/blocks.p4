// A segment as blocks of BLOCK_BYTES. FOR_EACH_BLOCK(x) stands for x(0) x(1) ... x(SEGMENT_BLOCKS - 1):
// P4 has no loops over header stacks that bmv2 accepts, so the preprocessor unrolls them.

#ifndef KVCAST_BLOCKS_P4
#define KVCAST_BLOCKS_P4

#define BLOCKS_0_TO_0(x)  x(0)
#define BLOCKS_0_TO_1(x)  BLOCKS_0_TO_0(x) x(1)
#define BLOCKS_0_TO_3(x)  BLOCKS_0_TO_1(x) x(2) x(3)
#define BLOCKS_0_TO_7(x)  BLOCKS_0_TO_3(x) x(4) x(5) x(6) x(7)
#define BLOCKS_0_TO_15(x) BLOCKS_0_TO_7(x) x(8) x(9) x(10) x(11) x(12) x(13) x(14) x(15)

#if SEGMENT_BYTES == 256
#define SEGMENT_BLOCKS 1
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_0(x)
#elif SEGMENT_BYTES == 512
#define SEGMENT_BLOCKS 2
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_1(x)
#elif SEGMENT_BYTES == 1024
#define SEGMENT_BLOCKS 4
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_3(x)
#elif SEGMENT_BYTES == 2048
#define SEGMENT_BLOCKS 8
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_7(x)
#elif SEGMENT_BYTES == 4096
#define SEGMENT_BLOCKS 16
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_15(x)
#else
#error "SEGMENT_BYTES must be 256, 512, 1024, 2048 or 4096"
#endif

#endif
