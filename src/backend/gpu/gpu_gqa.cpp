// gpu_gqa.cpp - grouped-query attention of a GPU backend.
//
// Threads and errors: as gpu_internal.h says.
#include "backend/gpu/gpu_internal.h"

#include "backend/gpu/k_gqa.h"

uint64_t gqa_scratch_need(const ms_scratch_need *n) {
    if (!n->gqa_heads) return 0;
    return n->context <= GQA_POSITIONS ? gqa_scratch_bytes(n->rows, n->gqa_heads, n->gqa_key, n->gqa_value)
                                       : UINT64_MAX;
}

namespace {

bool fits(const ms_scratch_need *have, const ms_gqa *g, const ms_gqa_io *io, uint32_t n) {
    if (!gqa_fits(g->heads, g->kv_heads) || g->heads > have->gqa_heads || n > have->rows) return false;
    if (g->key > have->gqa_key || g->value > have->gqa_value || g->rotary > g->key || g->rotary % 2) return false;
    if (have->context > GQA_POSITIONS || io->position > have->context || n > have->context - io->position) return false;
    return !io->ring || (io->ring % GQA_KEYS == 0 && g->window && io->ring >= (uint64_t)g->window - 1 + n);
}

void gqa_range(ms_backend *be, const ms_gqa *gqa, const ms_gqa_io *io, uint32_t n) {
    gpu_backend *g = gpu_of(be);
    if (!need(g, fits(&g->scratch.need, gqa, io, n), "gqa_range", "head shape, context or ring") || n == 0) return;
    gqa_args a = {};
    if (gqa->sink && !(a.sink = vector_of(g, gqa->sink, gqa->heads, "gqa_range")).data) return;
    a.heads = gqa->heads;
    a.kv_heads = gqa->kv_heads;
    a.key = gqa->key;
    a.value = gqa->value;
    a.rotary = gqa->rotary;
    a.window = gqa->window;
    a.n = n;
    a.scale = gqa->scale;
    a.value_scale = gqa->value_scale;
    a.q = io->q;
    a.k = io->k;
    a.v = io->v;
    a.rope = io->rope;
    a.rows = io->rows;
    a.rows_bf16 = is_fast(g);
    a.ring = io->ring < GQA_POSITIONS ? (uint32_t)io->ring : 0; // a longer one is never gone round
    a.position = (uint32_t)io->position;
    a.out = io->out;
    a.scratch = g->scratch.gqa;
    settle(g);
    g->held = {};
    k_gqa_range(g->stream, &a);
    launched(g, "gqa_range");
}

} // namespace

void set_gqa_members(ms_backend *be) { be->gqa_range = gqa_range; }
