// k_router.h - the choice of experts from the gate's products (docs/numerics.md, section 4).
//
// Owns: nothing.  One block a row.  A row with a choice that is not finite gets ids 0.. with weight 0 and lowers *bad.
#pragma once
#include "backend/gpu/k_common.h"

enum { K_ROUTER_BLOCK = 256, K_ROUTER_WAVES = K_ROUTER_BLOCK / GPU_WAVE, K_ROUTER_TOP = 1024 };

typedef struct k_router_args {
    uint32_t *ids;              // [n][top_k]
    float *weights;             // [n][top_k]
    float *score;               // [n][experts]: gate products, overwritten by their sigmoids
    const float *bias;          // [experts]
    uint32_t n, experts, top_k; // 0 < top_k <= experts, top_k <= K_ROUTER_TOP
    uint32_t renormalize;
    float scale;
    uint32_t *bad; // lowered to bad_base + row
    uint32_t bad_base;
    // Of a single row with few experts and picks: not NULL: the ids and *bad go there too, memory of the host.
    uint32_t *host_ids, *host_bad;
} k_router_args;

typedef struct k_router_shared {
    uint32_t id[K_ROUTER_TOP];
    float value[K_ROUTER_WAVES];
    uint32_t best[K_ROUTER_WAVES];
    uint32_t bad[K_ROUTER_WAVES];
    float score[K_ROUTER_TOP]; // of the picks, by rank of id
} k_router_shared;

// True when choice (v, id) stands before (w, other): larger, or equal with the lower id.
GPU_DEV bool k_router_before(float v, uint32_t id, float w, uint32_t other) { return v > w || (v == w && id < other); }

// The best of the block's candidates; UINT32_MAX is no candidate.  Every thread gets it.
GPU_DEV void k_router_best(k_router_shared *sh, float *value, uint32_t *id) {
    GPU_UNROLL
    for (int m = GPU_WAVE / 2; m; m >>= 1) {
        float v = gpu_shfl_xor(*value, m);
        uint32_t other = gpu_shfl_xor_u32(*id, m);
        bool take = other != 0xffffffffu && (*id == 0xffffffffu || k_router_before(v, other, *value, *id));
        *value = take ? v : *value;
        *id = take ? other : *id;
    }
    if (gpu_lane() == 0) {
        sh->value[gpu_wave()] = *value;
        sh->best[gpu_wave()] = *id;
    }
    gpu_sync();
    *value = sh->value[0];
    *id = sh->best[0];
    for (int w = 1; w < K_ROUTER_WAVES; w++) {
        bool take = sh->best[w] != 0xffffffffu &&
                    (*id == 0xffffffffu || k_router_before(sh->value[w], sh->best[w], *value, *id));
        *value = take ? sh->value[w] : *value;
        *id = take ? sh->best[w] : *id;
    }
    gpu_sync();
}

// Sorts the picked ids and weighs them.
GPU_DEV void k_router_write(const k_router_args *a, k_router_shared *sh, const float *score, uint32_t *ids,
                            float *weights) {
    for (uint32_t i = gpu_tid(); i < a->top_k; i += K_ROUTER_BLOCK) {
        uint32_t rank = 0, id = sh->id[i];
        float s = score[id];
        for (uint32_t j = 0; j < a->top_k; j++) rank += sh->id[j] < id;
        ids[rank] = id;
        sh->score[rank] = s;
    }
    gpu_sync();
    float l = 0.0f;
    for (uint32_t i = 0; i < a->top_k; i++) l = l + sh->score[i];
    l = l + 1e-20f;
    for (uint32_t i = gpu_tid(); i < a->top_k; i += K_ROUTER_BLOCK) {
        float w = sh->score[i];
        weights[i] = (a->renormalize ? w / l : w) * a->scale;
    }
}

// Takes expert e with choice v for the candidate when it stands behind the last pick and before the candidate.
GPU_DEV void k_router_try(float *value, uint32_t *id, float v, uint32_t e, float last, uint32_t last_id) {
    bool left = last_id == 0xffffffffu || k_router_before(last, last_id, v, e);
    if (left && (*id == 0xffffffffu || k_router_before(v, e, *value, *id))) {
        *value = v;
        *id = e;
    }
}

GPU_KERNEL GPU_BOUNDS(K_ROUTER_BLOCK, 2) kern_router(k_router_args a) {
    GPU_SHARED(k_router_shared, sh);
    gpu_begin();
    const size_t row = gpu_bx();
    float *score = a.score + row * a.experts;
    uint32_t *ids = a.ids + row * a.top_k;
    float *weights = a.weights + row * a.top_k;
    bool bad = false;
    for (uint32_t e = gpu_tid(); e < a.experts; e += K_ROUTER_BLOCK) {
        score[e] = k_sigmoid(score[e]);
        bad = bad || !k_finite(score[e] + a.bias[e]);
    }
    uint32_t in_wave = gpu_ballot(bad);
    if (gpu_lane() == 0) sh.bad[gpu_wave()] = in_wave;
    gpu_sync();
    bad = false;
    for (int w = 0; w < K_ROUTER_WAVES; w++) bad = bad || sh.bad[w] != 0;
    if (bad) {
        for (uint32_t i = gpu_tid(); i < a.top_k; i += K_ROUTER_BLOCK) {
            ids[i] = i;
            weights[i] = 0.0f;
        }
        if (gpu_tid() == 0) (void)gpu_atomic_min(a.bad, a.bad_base + (uint32_t)row);
        return;
    }
    // Each pick is the first choice behind the pick before it.
    float last = 0.0f;
    uint32_t last_id = 0xffffffffu;
    for (uint32_t pick = 0; pick < a.top_k; pick++) {
        float value = 0.0f;
        uint32_t id = 0xffffffffu;
        for (uint32_t e = gpu_tid(); e < a.experts; e += K_ROUTER_BLOCK)
            k_router_try(&value, &id, score[e] + a.bias[e], e, last, last_id);
        k_router_best(&sh, &value, &id);
        last = value;
        last_id = id;
        if (gpu_tid() == 0) sh.id[pick] = id;
    }
    gpu_sync();
    k_router_write(&a, &sh, score, ids, weights);
}

// ---------------------------------------------------------------- few experts and picks
// A thread has four choices, a group is one of the four of a wave's threads.  When top_k groups have a choice of at
// least some value, no smaller one is picked: the choices left are few, and each counts those before it.
enum {
    K_ROUTER_FEW = GPU_WAVE,
    K_ROUTER_EACH = 4,
    K_ROUTER_FEW_EXPERTS = K_ROUTER_BLOCK * K_ROUTER_EACH,
    K_ROUTER_GROUPS = K_ROUTER_WAVES * K_ROUTER_EACH
};
static_assert((int)K_ROUTER_GROUPS == (int)GPU_WAVE, "a lane has the first choice of a group");
typedef struct k_router_few_shared {
    uint32_t bad[K_ROUTER_WAVES], top[K_ROUTER_GROUPS], left;
    uint32_t key[K_ROUTER_FEW_EXPERTS], id[K_ROUTER_FEW_EXPERTS]; // choices left, in any order
    uint32_t pick[K_ROUTER_FEW];
    float score[K_ROUTER_FEW_EXPERTS], picked[K_ROUTER_FEW]; // by expert; by rank of id
} k_router_few_shared;

// Larger for a larger value, equal for both zeros, 0 for no finite value.
GPU_DEV uint32_t k_router_key(float x) {
    const uint32_t u = gpu_as_u32(x);
    if (u == 0x80000000u) return 0x80000000u;
    return u >> 31 ? ~u : u | 0x80000000u;
}

// A value that at least top_k choices reach, or 0.
GPU_DEV uint32_t k_router_least(const k_router_few_shared *sh, uint32_t top_k) {
    const uint32_t mine = sh->top[gpu_lane()];
    uint32_t reach = 0;
    GPU_UNROLL
    for (int g = 0; g < K_ROUTER_GROUPS; g++) reach += gpu_shfl(mine, g) >= mine;
    return gpu_wave_max_u32(reach >= top_k ? mine : 0);
}

// Choices that reach `least` to the list.
GPU_DEV void k_router_keep(k_router_few_shared *sh, const uint32_t (&key)[K_ROUTER_EACH], uint32_t first,
                           uint32_t least) {
    uint32_t kept[K_ROUTER_EACH], count = 0, at = 0;
    GPU_UNROLL
    for (uint32_t i = 0; i < K_ROUTER_EACH; i++) {
        kept[i] = gpu_ballot(key[i] != 0 && key[i] >= least);
        count += gpu_popc(kept[i]);
    }
    if (gpu_lane() == 0 && count) at = gpu_atomic_add(&sh->left, count);
    at = gpu_shfl(at, 0);
    GPU_UNROLL
    for (uint32_t i = 0; i < K_ROUTER_EACH; i++) {
        const uint32_t place = at + gpu_popc(kept[i] & ((1u << gpu_lane()) - 1));
        if (kept[i] >> gpu_lane() & 1) {
            sh->key[place] = key[i];
            sh->id[place] = first + i * GPU_WAVE;
        }
        at += gpu_popc(kept[i]);
    }
}

// The picks in ascending order of id, weighed; the first wave has one a lane.
GPU_DEV void k_router_few_write(k_router_few_shared *sh, const k_router_args &a, size_t row) {
    const uint32_t lane = gpu_lane(), id = lane < a.top_k ? sh->pick[lane] : UINT32_MAX;
    uint32_t rank = 0;
    GPU_UNROLL
    for (int j = 0; j < K_ROUTER_FEW; j++) rank += gpu_shfl(id, j) < id;
    const float s = id != UINT32_MAX ? sh->score[id] : 0.0f;
    if (gpu_wave() == 0 && lane < a.top_k) {
        a.ids[row * a.top_k + rank] = id;
        if (a.host_ids) a.host_ids[rank] = id;
        sh->picked[rank] = s;
    }
    gpu_sync();
    float l = 0.0f;
    GPU_UNROLL_8
    for (uint32_t i = 0; i < a.top_k; i++) l = l + sh->picked[i];
    l = l + 1e-20f;
    if (gpu_wave() == 0 && lane < a.top_k) a.weights[row * a.top_k + rank] = (a.renormalize ? s / l : s) * a.scale;
}

GPU_DEV void k_router_few(k_router_few_shared *sh, const k_router_args &a, size_t row) {
    const uint32_t first = gpu_wave() * K_ROUTER_EACH * GPU_WAVE + gpu_lane();
    uint32_t key[K_ROUTER_EACH];
    float product[K_ROUTER_EACH] = {}, bias[K_ROUTER_EACH] = {};
    bool bad = false;
    GPU_UNROLL
    for (uint32_t i = 0; i < K_ROUTER_EACH; i++) {
        const uint32_t e = first + i * GPU_WAVE;
        if (e < a.experts) product[i] = a.score[row * a.experts + e];
        if (e < a.experts) bias[i] = a.bias[e];
    }
    GPU_UNROLL
    for (uint32_t i = 0; i < K_ROUTER_EACH; i++) {
        const uint32_t e = first + i * GPU_WAVE;
        const float s = k_sigmoid(product[i]), choice = s + bias[i];
        if (e < a.experts) sh->score[e] = s;
        key[i] = e < a.experts ? k_router_key(choice) : 0;
        bad = bad || (e < a.experts && !k_finite(choice));
        const uint32_t top = gpu_wave_max_u32(key[i]);
        if (gpu_lane() == 0) sh->top[gpu_wave() * K_ROUTER_EACH + i] = top;
    }
    const uint32_t in_wave = gpu_ballot(bad);
    if (gpu_lane() == 0) sh->bad[gpu_wave()] = in_wave;
    if (gpu_tid() == 0) sh->left = 0;
    gpu_sync();
    uint32_t any = 0;
    for (int w = 0; w < K_ROUTER_WAVES; w++) any |= sh->bad[w];
    if (gpu_tid() == 0 && (any || a.host_bad)) {
        const uint32_t mine = any ? a.bad_base + (uint32_t)row : UINT32_MAX, old = gpu_atomic_min(a.bad, mine);
        if (a.host_bad) *a.host_bad = old < mine ? old : mine;
    }
    if (any) {
        if (gpu_tid() < a.top_k) {
            a.ids[row * a.top_k + gpu_tid()] = gpu_tid();
            a.weights[row * a.top_k + gpu_tid()] = 0.0f;
            if (a.host_ids) a.host_ids[gpu_tid()] = gpu_tid();
        }
        return;
    }
    k_router_keep(sh, key, first, k_router_least(sh, a.top_k));
    gpu_sync();
    const uint32_t left = sh->left;
    for (uint32_t c = gpu_tid(); c < left; c += K_ROUTER_BLOCK) {
        const uint32_t mine = sh->key[c], id = sh->id[c];
        uint32_t rank = 0;
        GPU_UNROLL_8
        for (uint32_t i = 0; i < left; i++) rank += sh->key[i] > mine || (sh->key[i] == mine && sh->id[i] < id);
        if (rank < a.top_k) sh->pick[rank] = id;
    }
    gpu_sync();
    k_router_few_write(sh, a, row);
}

GPU_KERNEL GPU_BOUNDS(K_ROUTER_BLOCK, 2) kern_router_few(k_router_args a) {
    GPU_SHARED(k_router_few_shared, sh);
    gpu_begin();
    k_router_few(&sh, a, gpu_bx());
}

K_BOTH bool k_router_is_few(uint32_t experts, uint32_t top_k) {
    return top_k <= K_ROUTER_FEW && experts <= K_ROUTER_FEW_EXPERTS;
}

static void k_router(gpuStream_t stream, const k_router_args *a) {
    if (!a->n) return;
    if (k_router_is_few(a->experts, a->top_k))
        GPU_LAUNCH_EARLY(kern_router_few, a->n, K_ROUTER_BLOCK, stream, *a);
    else
        GPU_LAUNCH_EARLY(kern_router, a->n, K_ROUTER_BLOCK, stream, *a);
}

// ---------------------------------------------------------------- words for the host
enum { K_FETCH_WORDS = 1024 };
typedef struct k_fetch_args {
    uint32_t *to; // host memory that the device sees
    const uint32_t *from;
    uint32_t count; // at most K_FETCH_WORDS
    uint32_t *flag; // not NULL: *flag = *bad
    const uint32_t *bad;
} k_fetch_args;

GPU_KERNEL GPU_BOUNDS(K_ROUTER_BLOCK, 1) kern_fetch(k_fetch_args a) {
    gpu_begin();
    for (uint32_t i = gpu_tid(); i < a.count; i += K_ROUTER_BLOCK) a.to[i] = a.from[i];
    if (gpu_tid() == 0 && a.flag) *a.flag = *a.bad;
}

static inline void k_fetch(gpuStream_t stream, const k_fetch_args *a) {
    GPU_LAUNCH_EARLY(kern_fetch, 1, K_ROUTER_BLOCK, stream, *a);
}
