// gpu_attention.cpp - KDA and MLA of a GPU backend.
//
// Threads and errors: as gpu_internal.h says.
#include "backend/gpu/gpu_internal.h"

#include "backend/gpu/k_kda.h"
#include "backend/gpu/k_mla.h"

uint64_t mla_scratch_need(const ms_scratch_need *n) {
    bool mla = n->mla_rank && mla_fits(n->mla_heads ? n->mla_heads : 1, n->mla_extra, n->mla_rank);
    return mla ? mla_scratch_bytes(n->rows, n->mla_heads, n->mla_extra, n->mla_rank) : 0;
}

static_assert((int)DECAY_COLS == (int)KDA_DIM, "the width of a head");

namespace {

// The product that waits becomes part of the kernel, if it makes the decay inputs of this call and nothing else there
// is in its way.
void take_decay(gpu_backend *g, kda_args *a, const ms_kda_io *io) {
    gpu_decay *d = &g->decay;
    if (!KDA_WINDOWS || !d->open || d->product.out != io->e) return;
    if (a->n != 1 || a->dim != KDA_DIM || a->taps != KDA_TAPS) return;
    const size_t inner = (size_t)a->heads * a->dim, bytes = inner * sizeof(float);
    if (d->product.weight->rows != inner) return;
    const struct {
        const float *p;
        size_t bytes;
    } read[] = {{io->q, bytes}, {io->k, bytes}, {io->v, bytes}, {io->g, bytes}, {io->b, a->heads * sizeof(float)},
                {d->x, KDA_DIM * sizeof(float)}};
    for (const auto &r : read)
        if (overlap(io->e, bytes, r.p, r.bytes)) return;
    if (overlap(io->out, bytes, d->x, KDA_DIM * sizeof(float))) return;
    a->decay_w = (const int8_t *)d->product.weight->data;
    a->decay_scales = d->product.weight->scales;
    a->decay_x = d->x;
    a->made_e = d->product.out;
    d->open = false;
}

void kda_range(ms_backend *be, const ms_kda *kda, const ms_kda_io *io, uint32_t n) {
    gpu_backend *g = gpu_of(be);
    const ms_scratch_need *have = &g->scratch.need;
    uint64_t inner = (uint64_t)kda->heads * kda->dim;
    bool fits = kda->dim <= have->kda_dim && kda->taps <= have->kda_taps && kda->heads <= have->kda_heads;
    if (!need(g, fits && kda_fits(kda->heads, kda->dim, kda->taps), "kda_range", "head shape")) return;
    kda_args a = {};
    for (int i = 0; i < KDA_STREAMS; i++)
        if (!(a.conv[i] = f32_of(g, kda->conv[i], inner * kda->taps, "kda_range", "conv weight"))) return;
    a.a_log = f32_of(g, kda->a_log, kda->heads, "kda_range", "a_log");
    a.dt_bias = f32_of(g, kda->dt_bias, inner, "kda_range", "dt_bias");
    a.o_norm = f32_of(g, kda->o_norm, kda->dim, "kda_range", "o_norm");
    if (!a.a_log || !a.dt_bias || !a.o_norm) return;
    a.heads = kda->heads;
    a.dim = kda->dim;
    a.taps = kda->taps;
    a.n = n;
    a.gate_bound = kda->gate_bound;
    a.norm_eps = kda->norm_eps;
    a.in[0] = io->q;
    a.in[1] = io->k;
    a.in[2] = io->v;
    a.e = io->e;
    a.b = io->b;
    a.g = io->g;
    a.state_in = io->state_in;
    a.state_out = io->state_out;
    a.history_in = io->history_in;
    a.history_out = io->history_out;
    a.out = io->out;
    a.history_bf16 = is_fast(g);
    take_decay(g, &a, io);
    settle(g);
    a.early = untouched(g, io->state_in, inner * kda->dim * sizeof(float));
    a.q = rows_fit(g, n, (uint32_t)inner) && kda->dim == KDA_DIM && kda->taps == KDA_TAPS ? g->scratch.x_q : nullptr;
    a.q_scales = g->scratch.x_s;
    k_kda_range(g->stream, &a);
    g->held = {};
    if (a.q && n) rows_held(g, io->out, n, (uint32_t)inner);
    launched(g, "kda_range");
}

void mla_range(ms_backend *be, const ms_mla *mla, const ms_mla_io *io, uint32_t n) {
    gpu_backend *g = gpu_of(be);
    const ms_scratch_need *have = &g->scratch.need;
    bool fits = mla->rank <= have->mla_rank && mla->extra <= have->mla_extra && mla->value <= have->mla_value &&
                mla->heads <= have->mla_heads && mla->nope <= have->mla_nope && n <= have->rows;
    if (!need(g, fits && mla_fits(mla->heads, mla->extra, mla->rank), "mla_range", "head shape")) return;
    if (!need(g, io->position <= have->context && n <= have->context - io->position, "mla_range", "context")) return;
    uint64_t kv_rows = (uint64_t)mla->heads * ((uint64_t)mla->nope + mla->value);
    bool kv_ok = mla->kv_b->format == MS_FORMAT_BF16 && mla->kv_b->cols == mla->rank && mla->kv_b->rows == kv_rows;
    if (!need(g, kv_ok && kv_rows > 1, "mla_range", "kv_b weight")) return;
    mla_args a = {};
    a.kv_norm = vector_of(g, mla->kv_norm, mla->rank, "mla_range");
    if (!a.kv_norm.data) return;
    a.heads = mla->heads;
    a.nope = mla->nope;
    a.extra = mla->extra;
    a.value = mla->value;
    a.rank = mla->rank;
    a.n = n;
    a.norm_eps = mla->norm_eps;
    a.scale = mla->scale;
    a.kv_b = (const gpu_bf16 *)mla->kv_b->data;
    a.q = io->q;
    a.c = io->c;
    a.gate = io->gate;
    a.rows = io->rows;
    a.rows_bf16 = is_fast(g);
    a.position = io->position;
    a.out = io->out;
    a.scratch = g->scratch.mla;
    settle(g);
    g->held = {};
    k_mla_range(g->stream, &a);
    launched(g, "mla_range");
}

} // namespace

void set_attention_members(ms_backend *be) {
    be->kda_range = kda_range;
    be->mla_range = mla_range;
}
