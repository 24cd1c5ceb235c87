/* mzg2_model.c: column classes and canonical bytes. */
#include "store/mzg2_model.h"

#include <stdlib.h>
#include <string.h>

#include "store/mzg2_encode.h"

static void clear(uint8_t *p, size_t n) {
    const uint64_t ones = UINT64_C(0x1111111111111111), low3 = UINT64_C(0x7777777777777777);
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t v;
        memcpy(&v, p, 8);
        /* bit 3 of a nibble of `nonzero` tells whether its magnitude is not zero */
        uint64_t nonzero = ((v & low3) + low3) & (ones << 3);
        v &= low3 | nonzero;
        memcpy(p, &v, 8);
    }
    for (; n; p++, n--) {
        if ((*p & 0x0f) == 0x08) *p &= 0xf0;
        if ((*p & 0xf0) == 0x80) *p &= 0x0f;
    }
}

void ms_mzg2_clear_zeros(uint8_t *source, ms_expert_shape s) {
    size_t bytes = (size_t)s.hidden * (s.inner / 32) * MZG2_GROUP_BYTES;
    for (int i = 0; i < 3; i++) clear(source + (size_t)i * (bytes + bytes / MZG2_GROUP_BYTES), bytes);
}

/* Sum of both magnitudes of a byte, doubled. */
static void make_sizes(uint8_t sizes[256]) {
    static const uint8_t magnitude[8] = {0, 1, 2, 3, 4, 6, 8, 12};
    for (int i = 0; i < 256; i++) sizes[i] = (uint8_t)(magnitude[i & 7] + magnitude[i >> 4 & 7]);
}

static int by_sum(const void *a, const void *b) {
    const mzg2_ranked *x = a, *y = b;
    if (x->sum != y->sum) return x->sum < y->sum ? -1 : 1;
    return x->column < y->column ? -1 : 1;
}

void mzg2_column_classes(uint8_t *out, const mzg2_matrix *m, const uint8_t *base, uint32_t classes,
                         mzg2_ranked *order) {
    uint8_t sizes[256];
    uint32_t columns = m->groups * MZG2_GROUP_BYTES;
    make_sizes(sizes);
    for (uint32_t i = 0; i < columns; i++) order[i] = (mzg2_ranked){.column = i};
    for (uint32_t r = 0; r < m->rows; r++) {
        const uint8_t *bytes = m->packed + (size_t)r * columns, *scales = m->scales + (size_t)r * m->groups;
        for (uint32_t g = 0; g < m->groups; g++) {
            uint8_t s = (uint8_t)(scales[g] - base[r]);
            unsigned shift = s < 15 ? s : 15;
            for (uint32_t k = 0; k < MZG2_GROUP_BYTES; k++)
                order[g * MZG2_GROUP_BYTES + k].sum += (uint64_t)sizes[bytes[g * MZG2_GROUP_BYTES + k]] << shift;
        }
    }
    qsort(order, columns, sizeof *order, by_sum);
    for (uint32_t i = 0; i < columns; i++) out[order[i].column] = (uint8_t)((uint64_t)i * classes / columns);
}
