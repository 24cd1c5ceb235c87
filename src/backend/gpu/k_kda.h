// k_kda.h - KDA over a range of tokens in one launch: convolution, norms, gates, recurrence, output norm and gate.
//
// Work: a block owns a head.  It takes the tokens in chunks: the convolution outputs, norms and gates of a chunk are
//   made by all threads together, then the recurrence walks the chunk without a block barrier, then the outputs are
//   normed.
// State: in the tuned form (KDA_DIM) thread (group of columns, r) keeps S[key = 4 j + r][its columns] in registers for
//   the whole range; the lanes r = 0..3 hold the four partial sums of col4.  The generic form keeps it in state_out.
// Owns: nothing.  Bits: docs/numerics.md, section 4; the oracle is src/backend/cpu/cpu_kda.c.
// Errors: none here; kda_fits() says what the launcher takes.
#pragma once
#include "backend/gpu/k_common.h"

// Registers on AMD, where kda_windows, early states and decay inputs have not enough of them; NVIDIA has more to spare,
// since no SM gets a second head.
#if GPU_HIP
#define KDA_REGISTERS __attribute__((amdgpu_num_vgpr(120)))
#define KDA_WINDOWS   0
#else
#define KDA_REGISTERS
#define KDA_WINDOWS 1
#endif

#if GPU_HIP || GPU_CUDA
#define KDA_ROLLED _Pragma("unroll 1")
#else
#define KDA_ROLLED
#endif

enum {
    KDA_STREAMS = 3,
    KDA_DIM = 128,   // head width of the tuned form
    KDA_COLUMNS = 2, // value columns a thread of it owns
    KDA_THREADS = 4 * KDA_DIM / KDA_COLUMNS,
    KDA_CHUNK = 8, // most tokens of a chunk
    KDA_GENERIC_FLOATS = 5120,
    KDA_GENERIC_ROWS = 5, // floats a token and channel needs: q, k, alpha, v, o
    KDA_MAX_DIM = KDA_GENERIC_FLOATS / KDA_GENERIC_ROWS,
    KDA_MAX_TAPS = 16
};

// Shapes and meaning as ms_kda and ms_kda_io; every pointer is a device address.
typedef struct kda_args {
    uint32_t heads, dim, taps, n;
    float gate_bound, norm_eps;
    const float *conv[KDA_STREAMS], *a_log, *dt_bias, *o_norm;
    const float *in[KDA_STREAMS]; // q, k, v: [n][heads * dim]
    const float *e, *b, *g, *state_in;
    // Not NULL (n == 1, tuned form, KDA_WINDOWS): e is made here, a product of decay_x [KDA_DIM], and left in made_e.
    const int8_t *decay_w; // Q8 [heads * KDA_DIM][KDA_DIM]
    const float *decay_scales, *decay_x;
    float *made_e;
    uint32_t early; // the kernel before this one does not write state_in
    float *state_out;
    const void *history_in;
    void *history_out;
    float *out;
    int8_t *q;             // not NULL (heads of KDA_DIM): the int8 form of out too, a head is a group of 128
    float *q_scales;       // [n][heads]
    uint32_t history_bf16; // fast: the history and the convolution inputs are bf16 values
} kda_args;

// Where the values of a chunk lie in shared memory.
typedef struct kda_chunk {
    float *q, *k, *alpha; // [KDA_CHUNK], `row` floats apart, element i at kda_at(i)
    float *v, *o;         // [KDA_CHUNK][dim]
    float *gate;          // [KDA_CHUNK][dim], tuned form
    float *beta;          // [KDA_CHUNK]
    const float *e;       // [dim]: decay inputs that were made here; NULL: they are in memory
    uint32_t row;
} kda_chunk;

// The tuned form keeps the elements 4 j + r of a row together, by r: a thread reads its keys 16 bytes at a time.
enum { KDA_PLANE = KDA_DIM / 4 + 4 };
template <bool TUNED> GPU_DEV uint32_t kda_at(uint32_t i) { return TUNED ? i % 4 * KDA_PLANE + i / 4 : i; }

// Row `at` of the convolution input of a stream, counted from the oldest history row.
GPU_DEV float kda_input(const kda_args &a, uint32_t stream, uint32_t at, size_t channel) {
    uint32_t past = a.taps - 1;
    size_t inner = (size_t)a.heads * a.dim;
    if (at < past) {
        size_t i = ((size_t)stream * past + at) * inner + channel;
        return a.history_bf16 ? gpu_bf16_f32(((const gpu_bf16 *)a.history_in)[i]) : ((const float *)a.history_in)[i];
    }
    float z = a.in[stream][(size_t)(at - past) * inner + channel];
    return a.history_bf16 ? gpu_bf16_f32(gpu_f32_bf16(z)) : z;
}

GPU_DEV float kda_convolve(const kda_args &a, uint32_t stream, uint32_t t, size_t channel) {
    const float *taps = a.conv[stream] + channel * a.taps;
    float y = 0.0f;
    for (uint32_t j = 0; j < a.taps; j++) y = gpu_fma(taps[j], kda_input(a, stream, t + j, channel), y);
    return y * k_sigmoid(y);
}

// The newest inputs to the history.
GPU_DEV void kda_store_history(const kda_args &a, uint32_t head) {
    uint32_t past = a.taps - 1, count = KDA_STREAMS * past * a.dim;
    size_t inner = (size_t)a.heads * a.dim;
    for (uint32_t i = gpu_tid(); i < count; i += gpu_nt()) {
        uint32_t row = i / a.dim, stream = row / past, r = row % past;
        size_t channel = (size_t)head * a.dim + i % a.dim, to = (size_t)row * inner + channel;
        float z = kda_input(a, stream, a.n + r, channel);
        if (a.history_bf16)
            ((gpu_bf16 *)a.history_out)[to] = gpu_f32_bf16(z);
        else
            ((float *)a.history_out)[to] = z;
    }
}

GPU_DEV float kda_decay(const kda_args &a, const kda_chunk &c, float decay, size_t from, size_t channel) {
    const float e = c.e ? c.e[channel % a.dim] : a.e[from];
    return k_exp(a.gate_bound * k_sigmoid(decay * (e + a.dt_bias[channel])));
}

// The four taps of a channel and what they meet at token t.
enum { KDA_TAPS = 4 };
struct kda_window {
    gpu_f4 taps;
    float z[KDA_TAPS];
};
GPU_DEV void kda_window_load(kda_window &w, const kda_args &a, uint32_t stream, uint32_t t, size_t channel) {
    const size_t inner = (size_t)a.heads * a.dim;
    w.taps = gpu_load_f4(a.conv[stream] + channel * KDA_TAPS);
    GPU_UNROLL
    for (uint32_t j = 0; j < KDA_TAPS; j++) {
        const bool old = t + j < KDA_TAPS - 1;
        const size_t past = ((size_t)stream * (KDA_TAPS - 1) + t + j) * inner + channel;
        if (!old) w.z[j] = a.in[stream][(size_t)(t + j - (KDA_TAPS - 1)) * inner + channel];
        if (old && a.history_bf16) w.z[j] = gpu_bf16_f32(((const gpu_bf16 *)a.history_in)[past]);
        if (old && !a.history_bf16) w.z[j] = ((const float *)a.history_in)[past];
    }
}

// The last token's window leaves the history.
GPU_DEV void kda_window_store(const kda_window &w, const kda_args &a, uint32_t stream, size_t channel) {
    const size_t inner = (size_t)a.heads * a.dim;
    GPU_UNROLL
    for (uint32_t j = 1; j < KDA_TAPS; j++) {
        const size_t to = ((size_t)stream * (KDA_TAPS - 1) + j - 1) * inner + channel;
        if (a.history_bf16)
            ((gpu_bf16 *)a.history_out)[to] = gpu_f32_bf16(w.z[j]);
        else
            ((float *)a.history_out)[to] = w.z[j];
    }
}

// kda_convolve with four taps, all loads under way together.
GPU_DEV float kda_convolve_tuned(const kda_args &a, uint32_t stream, uint32_t t, size_t channel) {
    kda_window w;
    kda_window_load(w, a, stream, t, channel);
    float y = 0.0f;
    GPU_UNROLL
    for (uint32_t j = 0; j < KDA_TAPS; j++)
        y = gpu_fma(w.taps.v[j], a.history_bf16 ? gpu_bf16_f32(gpu_f32_bf16(w.z[j])) : w.z[j], y);
    if (t + 1 == a.n) kda_window_store(w, a, stream, channel);
    return y * k_sigmoid(y);
}

// The convolutions, decays and output gates of a chunk, with four taps: half of the threads have q and k.
GPU_DEV void kda_windows(const kda_args &a, const kda_chunk &c, uint32_t head, uint32_t t0, uint32_t count) {
    const uint32_t half = count * KDA_DIM;
    const float decay = k_exp(a.a_log[head]);
    for (uint32_t i = gpu_tid(); i < 2 * half; i += gpu_nt()) { // whole waves
        const bool second = i >= half;
        const uint32_t of = second ? i - half : i, t = of / KDA_DIM, d = of % KDA_DIM, at = t * c.row + kda_at<true>(d);
        const size_t channel = (size_t)head * KDA_DIM + d, from = (size_t)(t0 + t) * a.heads * KDA_DIM + channel;
        if (second) {
            const float gate = a.g[from];
            c.v[t * KDA_DIM + d] = kda_convolve_tuned(a, 2, t0 + t, channel);
            c.alpha[at] = kda_decay(a, c, decay, from, channel);
            c.gate[t * KDA_DIM + d] = k_sigmoid(gate);
        } else {
            c.q[at] = kda_convolve_tuned(a, 0, t0 + t, channel);
            c.k[at] = kda_convolve_tuned(a, 1, t0 + t, channel);
        }
    }
}

// Convolution, decay and write strength of the tokens [t0, t0 + count), then the norms of q and k.
template <bool TUNED>
GPU_DEV void kda_prepare(const kda_args &a, const kda_chunk &c, uint32_t head, uint32_t t0, uint32_t count) {
    uint32_t dim = TUNED ? (uint32_t)KDA_DIM : a.dim;
    if (TUNED && KDA_WINDOWS) {
        kda_windows(a, c, head, t0, count);
    } else {
        float decay = k_exp(a.a_log[head]);
        for (uint32_t i = gpu_tid(); i < count * dim; i += gpu_nt()) {
            uint32_t t = i / dim, d = i % dim, at = t * c.row + kda_at<TUNED>(d);
            size_t channel = (size_t)head * dim + d, from = (size_t)(t0 + t) * a.heads * dim + channel;
            KDA_ROLLED
            for (uint32_t stream = 0; stream < KDA_STREAMS; stream++) {
                float y = kda_convolve(a, stream, t0 + t, channel);
                (stream == 0 ? c.q : stream == 1 ? c.k : c.v)[stream == 2 ? t * dim + d : at] = y;
            }
            c.alpha[at] = kda_decay(a, c, decay, from, channel);
        }
    }
    if (gpu_tid() < count) c.beta[gpu_tid()] = k_sigmoid(a.b[(size_t)(t0 + gpu_tid()) * a.heads + head]);
    gpu_sync();
    float q_scale = 1.0f / gpu_sqrt((float)dim);
    for (uint32_t i = gpu_wave(); i < 2 * count; i += gpu_nt() / GPU_WAVE) {
        bool is_q = i % 2 == 0;
        float *x = (is_q ? c.q : c.k) + i / 2 * c.row, s = 0.0f;
        for (uint32_t d = gpu_lane(); d < dim; d += GPU_WAVE) s = gpu_fma(x[kda_at<TUNED>(d)], x[kda_at<TUNED>(d)], s);
        float r = 1.0f / gpu_sqrt(gpu_wave_sum(s) + 1e-6f);
        for (uint32_t d = gpu_lane(); d < dim; d += GPU_WAVE) {
            float y = x[kda_at<TUNED>(d)] * r;
            x[kda_at<TUNED>(d)] = is_q ? y * q_scale : y;
        }
    }
    gpu_sync();
}

// Norm, gate and int8 form of a token's outputs, whose gates have not been made.
template <bool TUNED> GPU_DEV void kda_finish_row(const kda_args &a, const float *o, float r, size_t at) {
    uint32_t amax = 0;
    for (uint32_t d = gpu_lane(); d < a.dim; d += GPU_WAVE) {
        float y = a.o_norm[d] * (o[d] * r) * k_sigmoid(a.g[at + d]);
        a.out[at + d] = y;
        amax = gpu_max_u32(amax, k_abs_bits(y));
    }
    if (!TUNED || !a.q) return;
    const k_quant k = k_quant_of(gpu_wave_max_u32(amax));
    KDA_ROLLED
    for (uint32_t d = gpu_lane(); d < KDA_DIM; d += GPU_WAVE) // each lane reads what it wrote: registers are scarce
        a.q[at + d] = (int8_t)k_quant_one(a.out[at + d], k);
    if (gpu_lane() == 0) a.q_scales[at / KDA_DIM] = k.scale;
}

// Norm and gate of the recurrence's outputs, a wave a token.
template <bool TUNED>
GPU_DEV void kda_finish(const kda_args &a, const kda_chunk &c, uint32_t head, uint32_t t0, uint32_t count) {
    gpu_sync();
    for (uint32_t t = gpu_wave(); t < count; t += gpu_nt() / GPU_WAVE) {
        const float *o = c.o + t * a.dim;
        float r = k_rms_factor(k_wave_dot32(o, o, a.dim), a.dim, a.norm_eps);
        size_t at = ((size_t)(t0 + t) * a.heads + head) * a.dim;
        if (!TUNED || !KDA_WINDOWS) {
            kda_finish_row<TUNED>(a, o, r, at);
            continue;
        }
        const uint32_t d = gpu_lane() * 4;
        const gpu_f4 norm = gpu_load_f4(a.o_norm + d), before = gpu_load_f4(o + d),
                     gate = gpu_load_f4(c.gate + t * KDA_DIM + d);
        gpu_f4 y;
        uint32_t amax = 0;
        GPU_UNROLL
        for (int e = 0; e < 4; e++) {
            y.v[e] = norm.v[e] * (before.v[e] * r) * gate.v[e];
            amax = gpu_max_u32(amax, k_abs_bits(y.v[e]));
        }
        *(gpu_f4 *)(a.out + at + d) = y;
        if (!a.q) continue;
        const k_quant k = k_quant_of(gpu_wave_max_u32(amax));
        ((uint32_t *)(a.q + at))[gpu_lane()] =
            k_pack4(k_quant_one(y.v[0], k), k_quant_one(y.v[1], k), k_quant_one(y.v[2], k), k_quant_one(y.v[3], k));
        if (gpu_lane() == 0) a.q_scales[(size_t)(t0 + t) * a.heads + head] = k.scale;
    }
}

// ---------------------------------------------------------------- tuned form
// The product that makes the decay inputs of a head, dot32 over KDA_DIM columns: four threads have a row, each of them
// eight of the 32 partial sums.
enum { KDA_DECAY_ROWS = KDA_THREADS / 4, KDA_DECAY_ROUNDS = KDA_DIM / KDA_DECAY_ROWS, KDA_DECAY_TERMS = KDA_DIM / 32 };
struct kda_decay_weights {
    gpu_u2 w[KDA_DECAY_ROUNDS][KDA_DECAY_TERMS];
    float scale[KDA_DECAY_ROUNDS];
};
GPU_DEV void kda_decay_load(kda_decay_weights &d, const kda_args &a, uint32_t head) {
    const uint32_t row = head * KDA_DIM + gpu_tid() / 4;
    const int8_t *from = a.decay_w + (size_t)row * KDA_DIM + gpu_tid() % 4 * 8;
    GPU_UNROLL
    for (uint32_t i = 0; i < KDA_DECAY_ROUNDS; i++) {
        d.scale[i] = a.decay_scales[row + i * KDA_DECAY_ROWS]; // a row is one group
        GPU_UNROLL
        for (uint32_t t = 0; t < KDA_DECAY_TERMS; t++)
            d.w[i][t] = gpu_load_u2(from + i * KDA_DECAY_ROWS * KDA_DIM + t * 32);
    }
}
GPU_DEV void kda_decay_input(float *e, const kda_decay_weights &d, const kda_args &a, uint32_t head) {
    float s[KDA_DECAY_ROUNDS][8] = {};
    GPU_UNROLL
    for (uint32_t t = 0; t < KDA_DECAY_TERMS; t++) {
        const float *x = a.decay_x + t * 32 + gpu_tid() % 4 * 8;
        const gpu_f4 low = gpu_load_f4(x), high = gpu_load_f4(x + 4);
        GPU_UNROLL
        for (uint32_t i = 0; i < KDA_DECAY_ROUNDS; i++) {
            GPU_UNROLL
            for (int c = 0; c < 8; c++) {
                const float w = (float)(int8_t)(d.w[i][t].v[c / 4] >> c % 4 * 8) * d.scale[i];
                s[i][c] = gpu_fma(c < 4 ? low.v[c % 4] : high.v[c % 4], w, s[i][c]);
            }
        }
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < KDA_DECAY_ROUNDS; i++) { // the butterfly: 16 and 8 are other threads', the rest is ours
        GPU_UNROLL
        for (int c = 0; c < 8; c++) s[i][c] = s[i][c] + gpu_shfl_xor(s[i][c], 2);
        GPU_UNROLL
        for (int c = 0; c < 8; c++) s[i][c] = s[i][c] + gpu_shfl_xor(s[i][c], 1);
        const float even = (s[i][0] + s[i][4]) + (s[i][2] + s[i][6]), odd = (s[i][1] + s[i][5]) + (s[i][3] + s[i][7]);
        const uint32_t row = i * KDA_DECAY_ROWS + gpu_tid() / 4;
        if (gpu_tid() % 4 == 0) {
            e[row] = even + odd;
            a.made_e[(size_t)head * KDA_DIM + row] = even + odd;
        }
    }
    gpu_sync();
}

struct kda_tuned_shared {
    alignas(16) float q[KDA_CHUNK][4 * KDA_PLANE], k[KDA_CHUNK][4 * KDA_PLANE], alpha[KDA_CHUNK][4 * KDA_PLANE];
    alignas(16) float v[KDA_CHUNK][KDA_DIM], o[KDA_CHUNK][KDA_DIM], gate[KDA_CHUNK][KDA_DIM];
    float beta[KDA_CHUNK], e[KDA_DIM];
};
static_assert(sizeof(kda_tuned_shared) <= 48 << 10, "shared memory");

// The lanes r = 0..3 hold a partial sum each: (p0 + p2) + (p1 + p3), for all of them.
GPU_DEV float kda_sum4(float p) {
    p = p + gpu_shfl_xor(p, 2);
    return p + gpu_shfl_xor(p, 1);
}

typedef float kda_columns[KDA_DIM / 4][KDA_COLUMNS]; // of the state, this thread's

// One token: decay, prediction, update and read-out of this thread's columns.
GPU_DEV void kda_step(kda_columns &s, float *o, const float *q, const float *k,
                      const float *alpha, const float *v, float beta) {
    float p[KDA_COLUMNS] = {}, delta[KDA_COLUMNS], out[KDA_COLUMNS] = {};
    GPU_UNROLL
    for (int j = 0; j < KDA_DIM / 4; j += 4) {
        gpu_f4 al = gpu_load_f4(alpha + j), key = gpu_load_f4(k + j);
        GPU_UNROLL
        for (int i = 0; i < 4; i++) {
            GPU_UNROLL
            for (int c = 0; c < KDA_COLUMNS; c++) {
                s[j + i][c] = al.v[i] * s[j + i][c];
                p[c] = gpu_fma(key.v[i], s[j + i][c], p[c]);
            }
        }
    }
    GPU_UNROLL
    for (int c = 0; c < KDA_COLUMNS; c++) delta[c] = beta * (v[c] - kda_sum4(p[c]));
    GPU_UNROLL
    for (int j = 0; j < KDA_DIM / 4; j += 4) {
        gpu_f4 query = gpu_load_f4(q + j), key = gpu_load_f4(k + j);
        GPU_UNROLL
        for (int i = 0; i < 4; i++) {
            GPU_UNROLL
            for (int c = 0; c < KDA_COLUMNS; c++) {
                s[j + i][c] = gpu_fma(key.v[i], delta[c], s[j + i][c]);
                out[c] = gpu_fma(query.v[i], s[j + i][c], out[c]);
            }
        }
    }
    GPU_UNROLL
    for (int c = 0; c < KDA_COLUMNS; c++) out[c] = kda_sum4(out[c]);
    if (gpu_tid() % 4 == 0)
        for (int c = 0; c < KDA_COLUMNS; c++) o[c] = out[c];
}

GPU_DEV void kda_state_load(kda_columns &s, const float *from) {
    GPU_UNROLL
    for (int j = 0; j < KDA_DIM / 4; j++)
        for (int i = 0; i < KDA_COLUMNS; i++) s[j][i] = from[(size_t)j * 4 * KDA_DIM + (size_t)i];
}

GPU_KERNEL GPU_BOUNDS(KDA_THREADS, 1) KDA_REGISTERS k_kda_tuned(kda_args a) {
    GPU_SHARED(kda_tuned_shared, sh);
    const bool early = KDA_WINDOWS && a.early, makes = KDA_WINDOWS && a.decay_w;
    kda_chunk c = {sh.q[0], sh.k[0], sh.alpha[0],  sh.v[0], sh.o[0], sh.gate[0],
                   sh.beta, makes ? sh.e : nullptr, 4 * KDA_PLANE};
    uint32_t head = gpu_bx(), r = gpu_tid() % 4, column = gpu_tid() / 4 * KDA_COLUMNS;
    size_t state = ((size_t)head * KDA_DIM + r) * KDA_DIM + column; // of key r
    kda_columns s;
    if (early) kda_state_load(s, a.state_in + state);
    if (makes) {
        kda_decay_weights decay;
        kda_decay_load(decay, a, head);
        gpu_wait_previous();
        kda_decay_input(sh.e, decay, a, head);
    } else {
        gpu_wait_previous();
    }
    if (!early) kda_state_load(s, a.state_in + state);
    for (uint32_t t0 = 0; t0 < a.n; t0 += KDA_CHUNK) {
        uint32_t count = a.n - t0 < KDA_CHUNK ? a.n - t0 : (uint32_t)KDA_CHUNK;
        kda_prepare<true>(a, c, head, t0, count);
        for (uint32_t t = 0; t < count; t++)
            kda_step(s, sh.o[t] + column, sh.q[t] + r * KDA_PLANE, sh.k[t] + r * KDA_PLANE, sh.alpha[t] + r * KDA_PLANE,
                     sh.v[t] + column, sh.beta[t]);
        kda_finish<true>(a, c, head, t0, count);
        if (KDA_WINDOWS && t0 + count < a.n) gpu_sync(); // the next chunk's gates go where this one's are
    }
    GPU_UNROLL
    for (int j = 0; j < KDA_DIM / 4; j++)
        for (int i = 0; i < KDA_COLUMNS; i++) a.state_out[state + (size_t)j * 4 * KDA_DIM + (size_t)i] = s[j][i];
    if (a.n == 0 || !KDA_WINDOWS) kda_store_history(a, head);
}

// ---------------------------------------------------------------- generic form
enum { KDA_GENERIC_THREADS = 128 };
struct kda_generic_shared {
    float x[KDA_GENERIC_FLOATS], beta[KDA_CHUNK];
};
static_assert(sizeof(kda_generic_shared) <= 48 << 10, "shared memory");

// The four partial sums of col4, the next one to be used first.
typedef struct kda_partials {
    float p[4];
} kda_partials;
GPU_DEV void kda_turn(kda_partials *s, float first) {
    s->p[0] = s->p[1];
    s->p[1] = s->p[2];
    s->p[2] = s->p[3];
    s->p[3] = first;
}
// Their sum after `count` additions.
GPU_DEV float kda_partials_sum(kda_partials s, uint32_t count) {
    while (count++ % 4 != 0) kda_turn(&s, s.p[0]);
    return k_sum4(s.p[0], s.p[1], s.p[2], s.p[3]);
}

// One token of one value column; the state goes from `before` to `after`, `dim` floats apart, which may be the same.
GPU_DEV float kda_column(const float *before, float *after, uint32_t dim, const float *q, const float *k,
                         const float *alpha, float v, float beta) {
    kda_partials p = {}, o = {};
    for (uint32_t i = 0; i < dim; i++) {
        float s = alpha[i] * before[(size_t)i * dim];
        after[(size_t)i * dim] = s;
        kda_turn(&p, gpu_fma(k[i], s, p.p[0]));
    }
    float delta = beta * (v - kda_partials_sum(p, dim));
    for (uint32_t i = 0; i < dim; i++) {
        float s = gpu_fma(k[i], delta, after[(size_t)i * dim]);
        after[(size_t)i * dim] = s;
        kda_turn(&o, gpu_fma(q[i], s, o.p[0]));
    }
    return kda_partials_sum(o, dim);
}

GPU_KERNEL GPU_BOUNDS(KDA_GENERIC_THREADS, 2) k_kda_generic(kda_args a, uint32_t chunk) {
    gpu_begin();
    GPU_SHARED(kda_generic_shared, sh);
    uint32_t dim = a.dim, head = gpu_bx(), area = chunk * dim;
    kda_chunk c = {sh.x,    sh.x + area, sh.x + 2 * area, sh.x + 3 * area, sh.x + 4 * area, nullptr,
                   sh.beta, nullptr,     dim};
    size_t state = (size_t)head * dim * dim;
    for (uint32_t t0 = 0; t0 < a.n; t0 += chunk) {
        uint32_t count = a.n - t0 < chunk ? a.n - t0 : chunk;
        kda_prepare<false>(a, c, head, t0, count);
        for (uint32_t t = 0; t < count; t++) {
            const float *before = (t0 + t == 0 ? a.state_in : a.state_out) + state;
            for (uint32_t j = gpu_tid(); j < dim; j += gpu_nt())
                c.o[t * dim + j] = kda_column(before + j, a.state_out + state + j, dim, c.q + t * dim, c.k + t * dim,
                                              c.alpha + t * dim, c.v[t * dim + j], c.beta[t]);
        }
        kda_finish<false>(a, c, head, t0, count);
    }
    if (a.n == 0)
        for (uint32_t i = gpu_tid(); i < dim * dim; i += gpu_nt()) a.state_out[state + i] = a.state_in[state + i];
    kda_store_history(a, head);
}

// ---------------------------------------------------------------- host
static inline bool kda_fits(uint32_t heads, uint32_t dim, uint32_t taps) {
    return heads >= 1 && dim >= 1 && dim <= KDA_MAX_DIM && taps >= 1 && taps <= KDA_MAX_TAPS;
}

static inline void k_kda_range(gpuStream_t stream, const kda_args *args) {
    kda_args a = *args;
    if (a.dim == KDA_DIM && a.taps == KDA_TAPS) {
        GPU_LAUNCH_EARLY(k_kda_tuned, gpuDim3(a.heads), gpuDim3(KDA_THREADS), stream, a);
        return;
    }
    uint32_t chunk = KDA_GENERIC_FLOATS / (KDA_GENERIC_ROWS * a.dim);
    if (chunk > KDA_CHUNK) chunk = KDA_CHUNK;
    GPU_LAUNCH_EARLY(k_kda_generic, gpuDim3(a.heads), gpuDim3(KDA_GENERIC_THREADS), stream, a, chunk);
}
