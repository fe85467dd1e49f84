/* What the threads of the data path have in common: a clock, and a way to wake up the caller's side. */
#pragma once

#include <stdint.h>
#include <time.h>
#include <unistd.h>

static inline int64_t now_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static inline void write_event(int fd) {
    uint64_t one = 1;
    /* A full counter is readable, and nobody needs more. */
    (void)!write(fd, &one, sizeof one);
}
