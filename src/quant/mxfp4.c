#include "quant/mxfp4.h"

#include "base/bytes.h"

#include <string.h>
#if defined(__SSE2__)
#include <emmintrin.h>
#endif

enum { GROUP = 32, GROUP_BYTES = 16, TILE = 32, LINE_ROWS = 4 };

const float ms_e2m1[16] = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                           -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};
const int8_t ms_e2m1_doubled[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};

bool ms_expert_shape_valid(ms_expert_shape s) {
    if (s.hidden == 0 || s.inner == 0 || s.hidden % GROUP != 0 || s.inner % GROUP != 0) return false;
    /* 3 matrices at 17 bytes per 32 elements: may exceed 64 bits for hostile widths. */
    uint64_t bytes = (uint64_t)s.hidden * (s.inner / GROUP);
    return ms_mul_u64(bytes, 3 * (GROUP_BYTES + 1), &bytes) && bytes <= SIZE_MAX / 2;
}

uint32_t ms_expert_rows(ms_expert_shape s, ms_expert_matrix m) { return m == MS_W2 ? s.hidden : s.inner; }

uint32_t ms_expert_groups(ms_expert_shape s, ms_expert_matrix m) { return (m == MS_W2 ? s.inner : s.hidden) / GROUP; }

static size_t matrix_groups(ms_expert_shape s) { return (size_t)s.hidden * (s.inner / GROUP); }

size_t ms_expert_bytes(ms_expert_shape s) { return 3 * matrix_groups(s) * (GROUP_BYTES + 1); }

size_t ms_expert_tile_offset(ms_expert_shape s, ms_expert_matrix m, uint32_t tile) {
    size_t tile_bytes = (size_t)ms_expert_groups(s, m) * TILE * (GROUP_BYTES + 1);
    if (m == MS_W2) return 2 * matrix_groups(s) * (GROUP_BYTES + 1) + tile * tile_bytes;
    return (2 * (size_t)tile + (m == MS_W3)) * tile_bytes;
}

float ms_e8m0(uint8_t e) {
    if (e == 255) return ms_f32_from_bits(0x7fc00000u);
    return ms_f32_from_bits(e == 0 ? 0x00400000u : (uint32_t)e << 23);
}

/* Where a matrix lies in the source: packed bytes, then its scales. */
static size_t source_offset(ms_expert_shape s, ms_expert_matrix m) {
    static const uint8_t place[][3] = {
        [MS_ORDER_W1_W2_W3] = {[MS_W1] = 0, [MS_W2] = 1, [MS_W3] = 2},
        [MS_ORDER_W2_W1_W3] = {[MS_W2] = 0, [MS_W1] = 1, [MS_W3] = 2},
    };
    return (size_t)place[s.order][m] * matrix_groups(s) * (GROUP_BYTES + 1);
}

static const char *const matrix_names[] = {[MS_W1] = "w1", [MS_W3] = "w3", [MS_W2] = "w2"};

/* Source order is row by row, so the reported group is the first bad one of the matrix. */
static ms_status check_scales(const uint8_t *scales, uint32_t rows, uint32_t groups, ms_expert_matrix m,
                              ms_error *err) {
    const uint8_t *bad = memchr(scales, 255, (size_t)rows * groups);
    if (!bad) return MS_OK;
    size_t at = (size_t)(bad - scales);
    return ms_fail(err, MS_ERR_FORMAT, "expert %s scale of row %zu group %zu: expected a byte 0..254, found 255 (NaN)",
                   matrix_names[m], at / groups, at % groups);
}

ms_status ms_expert_check(const uint8_t *source, ms_expert_shape s, ms_error *err) {
    for (int i = 0; i < 3; i++) {
        ms_expert_matrix m = (ms_expert_matrix)i;
        const uint8_t *scales = source + source_offset(s, m) + matrix_groups(s) * GROUP_BYTES;
        MS_TRY(check_scales(scales, ms_expert_rows(s, m), ms_expert_groups(s, m), m, err));
    }
    return MS_OK;
}

uint32_t ms_expert_tiles(ms_expert_shape s) { return 2 * (s.inner / TILE) + s.hidden / TILE; }

/* Four rows of a group are one line of memory.  A slot is written past the caches where the processor can: reading the
 * line first would cost as much as the rest of the work.  `ahead`: bytes from here to what is read next. */
static void put_line(uint8_t *to, const uint8_t *from, size_t row_bytes, size_t ahead) {
#if defined(__SSE2__)
    _mm_prefetch((const char *)from + ahead, _MM_HINT_T0);
    if ((uintptr_t)to % GROUP_BYTES == 0) {
        for (size_t r = 0; r < LINE_ROWS; r++)
            _mm_stream_si128((__m128i *)(void *)(to + r * GROUP_BYTES),
                             _mm_loadu_si128((const __m128i *)(const void *)(from + r * row_bytes)));
        return;
    }
#else
    (void)ahead;
#endif
    for (size_t r = 0; r < LINE_ROWS; r++) memcpy(to + r * GROUP_BYTES, from + r * row_bytes, GROUP_BYTES);
}

static void transpose_8x8(uint64_t a[8]) {
    for (int i = 0; i < 4; i++) {
        uint64_t t = ((a[i] >> 32) ^ a[i + 4]) & 0xffffffffu;
        a[i + 4] ^= t;
        a[i] ^= t << 32;
    }
    for (int i = 0; i < 8; i += i % 4 == 1 ? 3 : 1) {
        uint64_t t = ((a[i] >> 16) ^ a[i + 2]) & 0x0000ffff0000ffffu;
        a[i + 2] ^= t;
        a[i] ^= t << 16;
    }
    for (int i = 0; i < 8; i += 2) {
        uint64_t t = ((a[i] >> 8) ^ a[i + 1]) & 0x00ff00ff00ff00ffu;
        a[i + 1] ^= t;
        a[i] ^= t << 8;
    }
}

/* [TILE][groups] to [groups][TILE]. */
static void put_scales(uint8_t *to, const uint8_t *from, uint32_t groups) {
    for (size_t r = 0; r < TILE; r += 8) {
        const uint8_t *rows = from + r * groups;
        size_t g = 0;
        for (; g + 8 <= groups; g += 8) {
            uint64_t block[8];
            for (size_t i = 0; i < 8; i++) block[i] = ms_le64(rows + i * groups + g);
            transpose_8x8(block);
            for (size_t i = 0; i < 8; i++) ms_put_le64(to + (g + i) * TILE + r, block[i]);
        }
        for (; g < groups; g++)
            for (size_t i = 0; i < 8; i++) to[g * TILE + r + i] = rows[i * groups + g];
    }
}

bool ms_expert_install_tile(void *slot, const uint8_t *source, ms_expert_shape s, uint32_t tile) {
    ms_expert_matrix m = MS_W1;
    while (m != MS_W2 && tile >= s.inner / TILE) {
        tile -= s.inner / TILE;
        m = m == MS_W1 ? MS_W3 : MS_W2;
    }
    uint32_t groups = ms_expert_groups(s, m);
    size_t row_bytes = (size_t)groups * GROUP_BYTES, tile_bytes = TILE * row_bytes;
    const uint8_t *from = source + source_offset(s, m) + tile * tile_bytes;
    const uint8_t *scales = source + source_offset(s, m) + matrix_groups(s) * GROUP_BYTES + (size_t)tile * TILE * groups;
    uint8_t *to = (uint8_t *)slot + ms_expert_tile_offset(s, m, tile);
    if (memchr(scales, 255, (size_t)TILE * groups)) return false;
    size_t next = tile + 1 < ms_expert_rows(s, m) / TILE ? tile_bytes : 0;
    for (size_t r = 0; r < TILE; r += LINE_ROWS)
        for (size_t g = 0; g < groups; g++) {
            /* the next tile is fetched in the order of memory, a line for every line written here */
            size_t here = r * row_bytes + g * GROUP_BYTES, line = (r * groups + g * LINE_ROWS) * GROUP_BYTES;
            put_line(to + (g * TILE + r) * GROUP_BYTES, from + here, row_bytes, next ? next + line - here : 0);
        }
    put_scales(to + tile_bytes, scales, groups);
#if defined(__SSE2__)
    _mm_sfence(); /* the streamed lines are there for whoever hears that this is done */
#endif
    return true;
}

ms_status ms_expert_install(void *slot, const uint8_t *source, ms_expert_shape s, ms_error *err) {
    for (uint32_t tile = 0; tile < ms_expert_tiles(s); tile++)
        if (!ms_expert_install_tile(slot, source, s, tile)) return ms_expert_check(source, s, err);
    return MS_OK;
}

void ms_expert_extract(uint8_t *source, const void *slot, ms_expert_shape s) {
    for (int i = 0; i < 3; i++) {
        ms_expert_matrix m = (ms_expert_matrix)i;
        uint32_t rows = ms_expert_rows(s, m), groups = ms_expert_groups(s, m);
        uint8_t *packed = source + source_offset(s, m);
        uint8_t *scales = packed + matrix_groups(s) * GROUP_BYTES;
        for (uint32_t r = 0; r < rows; r++) {
            const uint8_t *tile = (const uint8_t *)slot + ms_expert_tile_offset(s, m, r / TILE);
            const uint8_t *tile_scales = tile + (size_t)groups * TILE * GROUP_BYTES;
            for (uint32_t g = 0; g < groups; g++) {
                size_t in_tile = (size_t)g * TILE + r % TILE, in_matrix = (size_t)r * groups + g;
                memcpy(packed + in_matrix * GROUP_BYTES, tile + in_tile * GROUP_BYTES, GROUP_BYTES);
                scales[in_matrix] = tile_scales[in_tile];
            }
        }
    }
}

void ms_expert_row(float *out, const void *slot, ms_expert_shape s, ms_expert_matrix m, uint32_t row) {
    uint32_t groups = ms_expert_groups(s, m);
    const uint8_t *tile = (const uint8_t *)slot + ms_expert_tile_offset(s, m, row / TILE);
    const uint8_t *scales = tile + (size_t)groups * TILE * GROUP_BYTES;
    for (uint32_t g = 0; g < groups; g++) {
        size_t at = (size_t)g * TILE + row % TILE;
        float scale = ms_e8m0(scales[at]);
        const uint8_t *bytes = tile + at * GROUP_BYTES;
        for (uint32_t i = 0; i < GROUP_BYTES; i++) {
            out[g * GROUP + 2 * i] = ms_e2m1[bytes[i] & 15] * scale;
            out[g * GROUP + 2 * i + 1] = ms_e2m1[bytes[i] >> 4] * scale;
        }
    }
}
