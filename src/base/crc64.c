/* crc64.c: CRC-64/XZ through liblzma, which picks a table or carry-less multiplication at run time. */
#include "base/crc64.h"

#include <lzma.h>

uint64_t ms_crc64(uint64_t crc, const void *data, size_t n) {
    if (n == 0) return crc;
    return lzma_crc64(data, n, crc);
}
