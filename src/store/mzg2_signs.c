#include "store/mzg2_signs.h"

#include <string.h>

static size_t packed_bytes(ms_expert_shape s) { return (size_t)s.hidden * (s.inner / 32) * 16; }
/* w1, w2, w3, as in the source */
static size_t packed_offset(ms_expert_shape s, int part) {
    return (size_t)part * (packed_bytes(s) + packed_bytes(s) / 16);
}

size_t ms_mzg2_signs_max_bytes(ms_expert_shape s) { return (3 * 2 * packed_bytes(s) + 7) / 8; }

size_t ms_mzg2_signs_take(uint8_t *bits, const uint8_t *source, ms_expert_shape s) {
    size_t n = 0;
    unsigned count = 0, byte = 0;
    for (int part = 0; part < 3; part++) {
        const uint8_t *p = source + packed_offset(s, part);
        for (size_t i = 0; i < packed_bytes(s); i++)
            for (unsigned shift = 0; shift < 8; shift += 4) {
                unsigned nibble = p[i] >> shift & 15;
                if ((nibble & 7) != 0) continue;
                byte |= nibble >> 3 << count;
                if (++count < 8) continue;
                bits[n++] = (uint8_t)byte;
                byte = count = 0;
            }
    }
    if (count) bits[n++] = (uint8_t)byte;
    return n;
}

bool ms_mzg2_signs_put(uint8_t *canonical, ms_expert_shape s, const uint8_t *bits, size_t length) {
    size_t n = 0; /* bits used */
    for (int part = 0; part < 3; part++) {
        uint8_t *p = canonical + packed_offset(s, part);
        for (size_t i = 0; i < packed_bytes(s); i++)
            for (unsigned shift = 0; shift < 8; shift += 4) {
                if ((p[i] >> shift & 7) != 0) continue;
                if (n / 8 >= length) return false;
                p[i] = (uint8_t)(p[i] | (bits[n / 8] >> n % 8 & 1) << (shift + 3));
                n++;
            }
    }
    return (n + 7) / 8 == length;
}
