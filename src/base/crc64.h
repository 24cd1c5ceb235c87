/* crc64.h: CRC-64/XZ (ECMA-182 polynomial, reflected, all-ones start and end).  Threads: pure function. */
#ifndef MS_BASE_CRC64_H
#define MS_BASE_CRC64_H

#include <stddef.h>
#include <stdint.h>

/* The checksum of what `crc` covers followed by data[0..n).  Start with 0.  data may be NULL when n is 0. */
uint64_t ms_crc64(uint64_t crc, const void *data, size_t n);

#endif
