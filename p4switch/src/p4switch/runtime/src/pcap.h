/* pcap.c: capture files. */
#ifndef P4SWITCH_PCAP_H
#define P4SWITCH_PCAP_H

#include <stdint.h>
#include <stdio.h>
#include <sys/uio.h>

FILE *ps_pcap_open(const char *path);
void ps_pcap_write(FILE *f, uint64_t epoch_us, const struct iovec *parts, int count);

#endif
