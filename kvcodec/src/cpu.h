/* What this processor can do beyond what every one of its architecture can. The objects are built for any of them, and
 * each chooses its loops by this when it is loaded. Asks the processor itself: what compilers offer for it answers "no"
 * to everything with some of their run-time libraries. */
#pragma once

/* Each has all that those before it have. */
enum cpu_level {
    CPU_BASE,
    CPU_AVX2,
    CPU_AVX512, /* F, DQ, BW and VL */
};

enum cpu_extra {
    CPU_FOLDS = 1,       /* multiplies without carries; PCLMULQDQ and SSE4.1, or CRC32 on AArch64 */
    CPU_FOLDS_PAIRS = 2, /* the same in registers of 256 bits: VPCLMULQDQ and AVX2 */
    CPU_FOLDS_WIDE = 4,  /* in registers of 512 bits: VPCLMULQDQ and AVX-512 F */
};

struct cpu {
    enum cpu_level level;
    unsigned extras; /* enum cpu_extra */
};

#if defined(__x86_64__)

#include <cpuid.h>
#include <stdint.h>

static inline uint64_t cpu_saved_registers(void) {
    uint32_t low, high;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static inline struct cpu cpu_of_this_machine(void) {
    struct cpu found = {CPU_BASE, 0};
    unsigned eax, ebx, ecx, edx, wide, wider;
    if (!__get_cpuid(1, &eax, &ebx, &ecx, &edx)) return found;
    if ((ecx & bit_PCLMUL) && (ecx & bit_SSE4_1)) found.extras |= CPU_FOLDS;
    /* Registers that the kernel does not save belong to nobody. */
    if (!(ecx & bit_OSXSAVE) || (cpu_saved_registers() & 0x06) != 0x06) return found;
    if (!__get_cpuid_count(7, 0, &eax, &wide, &wider, &edx) || !(wide & bit_AVX2)) return found;
    found.level = CPU_AVX2;
    if (wider & bit_VPCLMULQDQ) found.extras |= CPU_FOLDS_PAIRS;
    const unsigned wanted = bit_AVX512F | bit_AVX512DQ | bit_AVX512BW | bit_AVX512VL;
    if ((cpu_saved_registers() & 0xe6) != 0xe6 || (wide & wanted) != wanted) return found;
    found.level = CPU_AVX512;
    if (wider & bit_VPCLMULQDQ) found.extras |= CPU_FOLDS_WIDE;
    return found;
}

#elif defined(__aarch64__)

#include <asm/hwcap.h>
#include <sys/auxv.h>

static inline struct cpu cpu_of_this_machine(void) {
    return (struct cpu){CPU_BASE, getauxval(AT_HWCAP) & HWCAP_CRC32 ? CPU_FOLDS : 0};
}

#else

static inline struct cpu cpu_of_this_machine(void) { return (struct cpu){CPU_BASE, 0}; }

#endif

/* The level to use where `level` is the highest that is wanted. */
static inline enum cpu_level cpu_level_up_to(enum cpu_level level) {
    enum cpu_level found = cpu_of_this_machine().level;
    return level < found ? level : found;
}
