/* mzg2_model.h: how fit and encoder see an expert: row classes, scale symbols, column classes. */
#ifndef MS_STORE_MZG2_MODEL_H
#define MS_STORE_MZG2_MODEL_H

#include "store/mzg2_internal.h"

typedef struct mzg2_matrix {
    ms_expert_matrix kind;
    uint32_t rows, groups;
    const uint8_t *packed, *scales; /* canonical source, row-major */
} mzg2_matrix;

static inline mzg2_matrix mzg2_matrix_of(const uint8_t *source, ms_expert_shape s, ms_expert_matrix m) {
    size_t bytes = (size_t)s.hidden * (s.inner / 32) * MZG2_GROUP_BYTES, order = m == MS_W1 ? 0 : m == MS_W2 ? 1 : 2;
    const uint8_t *packed = source + order * (bytes + bytes / MZG2_GROUP_BYTES);
    return (mzg2_matrix){.kind = m,
                         .rows = ms_expert_rows(s, m),
                         .groups = ms_expert_groups(s, m),
                         .packed = packed,
                         .scales = packed + bytes};
}

/* Eight times the mean scale byte of a row, rounded: its class is the last octal digit. */
static inline uint32_t mzg2_row_mean8(const uint8_t *scales, uint32_t groups) {
    uint64_t sum = 0;
    for (uint32_t g = 0; g < groups; g++) sum += scales[g];
    return (uint32_t)((8 * sum + groups / 2) / groups);
}

enum { MZG2_BASE_BELOW = 2, MZG2_MAX_BASE = 31 };

/* Row byte: class and base, for sets whose lowest base is e_base. */
static inline uint8_t mzg2_row_byte(uint32_t mean8, uint32_t e_base) {
    int base = (int)(mean8 / 8) - MZG2_BASE_BELOW - (int)e_base;
    base = base < 0 ? 0 : base > MZG2_MAX_BASE ? MZG2_MAX_BASE : base;
    return (uint8_t)((mean8 & 7) | (unsigned)base << 3);
}

typedef struct mzg2_ranked {
    uint64_t sum;
    uint32_t column;
} mzg2_ranked;

/* Classes of the byte columns of one matrix by their size against the scales, `classes` equal parts.  base[row] is
 * subtracted from the row's scale bytes; `order` has 16 * groups entries of scratch. */
void mzg2_column_classes(uint8_t *out, const mzg2_matrix *m, const uint8_t *base, uint32_t classes, mzg2_ranked *order);

#endif
