// A segment as blocks of BLOCK_BYTES. FOR_EACH_BLOCK(x) stands for x(0) x(1) ... x(SEGMENT_BLOCKS - 1):
// P4 has no loops over header stacks that bmv2 accepts, so the preprocessor unrolls them.

#ifndef KVCAST_BLOCKS_P4
#define KVCAST_BLOCKS_P4

#define BLOCKS_0_TO_0(x)  x(0)
#define BLOCKS_0_TO_1(x)  BLOCKS_0_TO_0(x) x(1)
#define BLOCKS_0_TO_2(x)  BLOCKS_0_TO_1(x) x(2)
#define BLOCKS_0_TO_3(x)  BLOCKS_0_TO_2(x) x(3)
#define BLOCKS_0_TO_4(x)  BLOCKS_0_TO_3(x) x(4)
#define BLOCKS_0_TO_5(x)  BLOCKS_0_TO_4(x) x(5)
#define BLOCKS_0_TO_6(x)  BLOCKS_0_TO_5(x) x(6)
#define BLOCKS_0_TO_7(x)  BLOCKS_0_TO_6(x) x(7)
#define BLOCKS_0_TO_8(x)  BLOCKS_0_TO_7(x) x(8)
#define BLOCKS_0_TO_9(x)  BLOCKS_0_TO_8(x) x(9)
#define BLOCKS_0_TO_10(x) BLOCKS_0_TO_9(x) x(10)
#define BLOCKS_0_TO_11(x) BLOCKS_0_TO_10(x) x(11)
#define BLOCKS_0_TO_12(x) BLOCKS_0_TO_11(x) x(12)
#define BLOCKS_0_TO_13(x) BLOCKS_0_TO_12(x) x(13)
#define BLOCKS_0_TO_14(x) BLOCKS_0_TO_13(x) x(14)
#define BLOCKS_0_TO_15(x) BLOCKS_0_TO_14(x) x(15)

#if SEGMENT_BYTES == 256
#define SEGMENT_BLOCKS 1
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_0(x)
#elif SEGMENT_BYTES == 512
#define SEGMENT_BLOCKS 2
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_1(x)
#elif SEGMENT_BYTES == 768
#define SEGMENT_BLOCKS 3
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_2(x)
#elif SEGMENT_BYTES == 1024
#define SEGMENT_BLOCKS 4
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_3(x)
#elif SEGMENT_BYTES == 1280
#define SEGMENT_BLOCKS 5
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_4(x)
#elif SEGMENT_BYTES == 1536
#define SEGMENT_BLOCKS 6
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_5(x)
#elif SEGMENT_BYTES == 1792
#define SEGMENT_BLOCKS 7
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_6(x)
#elif SEGMENT_BYTES == 2048
#define SEGMENT_BLOCKS 8
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_7(x)
#elif SEGMENT_BYTES == 2304
#define SEGMENT_BLOCKS 9
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_8(x)
#elif SEGMENT_BYTES == 2560
#define SEGMENT_BLOCKS 10
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_9(x)
#elif SEGMENT_BYTES == 2816
#define SEGMENT_BLOCKS 11
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_10(x)
#elif SEGMENT_BYTES == 3072
#define SEGMENT_BLOCKS 12
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_11(x)
#elif SEGMENT_BYTES == 3328
#define SEGMENT_BLOCKS 13
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_12(x)
#elif SEGMENT_BYTES == 3584
#define SEGMENT_BLOCKS 14
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_13(x)
#elif SEGMENT_BYTES == 3840
#define SEGMENT_BLOCKS 15
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_14(x)
#elif SEGMENT_BYTES == 4096
#define SEGMENT_BLOCKS 16
#define FOR_EACH_BLOCK(x) BLOCKS_0_TO_15(x)
#else
#error "SEGMENT_BYTES must be a multiple of 256, 4096 at most"
#endif

#endif
