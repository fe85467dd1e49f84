// Sizes and limits on Tofino. A build sets them as those of ../include/sizes.p4.

#ifndef KVCAST_TNA_SIZES_P4
#define KVCAST_TNA_SIZES_P4

// Segments that can have a place in the orbit; at most 65536, what a 16-bit register index reaches. How many really
// circulate at once the controller bounds: each waits for its next round in the buffer of the switch.
#ifndef SLOTS
#define SLOTS 65536
#endif

#include "../include/sizes.p4"

// Where a packet goes to come round again: the recirculation port of the pipe that this program runs in.
#ifndef RECIRCULATION_PORT
#define RECIRCULATION_PORT 68
#endif

// Times in ticks of 2^16 ns. The first three are only what a switch starts with: the controller sets them to the
// fabric's interest_ttl_us, to half of it, and to heat_window_us.
#ifndef INTEREST_TTL_TICKS
#define INTEREST_TTL_TICKS 30518        // 2 s
#endif
#ifndef INTEREST_TURN_TICKS
#define INTEREST_TURN_TICKS 15259       // 1 s
#endif
#ifndef HEAT_WINDOW_TICKS
#define HEAT_WINDOW_TICKS 15259         // 1 s
#endif
// A segment that was not seen for this long has been lost on its round. Many orbits: one of 16 MiB takes 1.3 ms at
// 100 Gb/s.
#ifndef ORBIT_LOST_TICKS
#define ORBIT_LOST_TICKS 256            // 17 ms
#endif

// A port tells the controller once in that time, at most, where a node is.
#define HERE_INTERVAL_TICKS 153         // 10 ms

// Bits of an index into registers of these sizes.
#if INTEREST == 65536
#define INTEREST_INDEX_BITS 16
#elif INTEREST == 16384
#define INTEREST_INDEX_BITS 14
#elif INTEREST == 4096
#define INTEREST_INDEX_BITS 12
#else
#error "INTEREST must be 4096, 16384 or 65536 on Tofino"
#endif

#if HEAT_CELLS == 16384
#define HEAT_INDEX_BITS 14
#elif HEAT_CELLS == 4096
#define HEAT_INDEX_BITS 12
#elif HEAT_CELLS == 1024
#define HEAT_INDEX_BITS 10
#else
#error "HEAT_CELLS must be 1024, 4096 or 16384 on Tofino"
#endif

#if SLOTS > 65536
#error "SLOTS must be at most 65536 on Tofino"
#endif

#endif
