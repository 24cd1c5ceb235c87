#include "lane/mimo26/mimo_grid.h"

#include <stdlib.h>

enum { LARGEST = 0x7E };

/* Whether rows [first, last) have the largest code in columns [from, to). */
static bool has_largest(const uint8_t *codes, uint32_t first, uint32_t last, uint32_t from, uint32_t to,
                        uint32_t cols) {
    for (uint32_t r = first; r < last; r++)
        for (uint32_t c = from; c < to; c++)
            if ((codes[(size_t)r * cols + c] & 0x7F) == LARGEST) return true;
    return false;
}

static uint32_t min_u32(uint32_t a, uint32_t b) { return a < b ? a : b; }

/* Blocks of rows [first, last) that start at `start`, over all columns. */
static void count_rows(uint64_t *blocks, uint64_t *full, const uint8_t *chunk, uint32_t start, uint32_t first,
                       uint32_t last, uint32_t cols) {
    for (uint32_t row = first - (first - start) % MIMO_FP8_BLOCK; row < last; row += MIMO_FP8_BLOCK) {
        for (uint32_t col = 0; col < cols; col += MIMO_FP8_BLOCK) {
            (*blocks)++;
            *full += has_largest(chunk, row, min_u32(row + MIMO_FP8_BLOCK, last), col,
                                 min_u32(col + MIMO_FP8_BLOCK, cols), cols);
        }
    }
}

void mimo_grid_count(mimo_grid *g, const uint8_t *codes, uint32_t chunks, const mimo_chunk *chunk, uint32_t cols) {
    for (uint32_t t = 0; t < chunks; t++) {
        const uint8_t *at = codes + (size_t)t * chunk->rows * cols;
        uint32_t k = chunk->q, v = chunk->q + chunk->k;
        count_rows(&g->running, &g->running_full, at, 0, k, chunk->rows, cols);
        count_rows(&g->restarting, &g->restarting_full, at, k, k, v, cols);
        count_rows(&g->restarting, &g->restarting_full, at, v, v, chunk->rows, cols);
    }
}

static double share(uint64_t full, uint64_t blocks) { return blocks ? 100.0 * (double)full / (double)blocks : 0; }

static ms_status judge(const mimo_grid *g, ms_text *report, ms_error *err) {
    double running = share(g->running_full, g->running), restarting = share(g->restarting_full, g->restarting);
    if (restarting > running + 1)
        return ms_fail(
            err, MS_ERR_FORMAT,
            "qkv_proj.weight_scale_inv: expected blocks that run through a chunk, but %.1f %% of such blocks have the "
            "largest code and %.1f %% of blocks that start anew at K and V",
            running, restarting);
    ms_text_printf(
        report,
        "scale grid  %.1f %% of %llu blocks with K and V rows have the largest code; %.1f %% if they started anew%s\n",
        running, (unsigned long long)g->running, restarting,
        running < 50 ? " (these weights do not tell the readings apart)" : "");
    return MS_OK;
}

ms_status mimo_grid_check(const ms_checkpoint *c, const mimo_config *cfg, ms_text *report, ms_error *err) {
    mimo_grid g = {0};
    ms_status status = MS_OK;
    for (uint32_t l = 0; l < cfg->layers && status == MS_OK; l++) {
        char name[MIMO_NAME_SIZE];
        mimo_tensor_name(name, sizeof name, l, MIMO_QKV);
        const ms_tensor *t = ms_checkpoint_find(c, name);
        if (!t) return ms_fail(err, MS_ERR_FORMAT, "tensor %s is missing", name);
        uint8_t *codes = malloc((size_t)t->bytes);
        if (!codes) return ms_fail_memory(err, "a fused matrix", (size_t)t->bytes);
        const mimo_chunk chunk = mimo_chunk_of(cfg, mimo_attention_of(cfg, l));
        status = ms_checkpoint_read(c, t, 0, codes, (size_t)t->bytes, err);
        if (status == MS_OK) mimo_grid_count(&g, codes, cfg->chunks, &chunk, cfg->hidden);
        free(codes);
    }
    return status == MS_OK ? judge(&g, report, err) : status;
}
