/* moe.h: one mixture-of-experts feed-forward over n rows, shared by all lanes.
 *
 * Router on the device, ids to the host, rows grouped by expert, one request for the union of experts; shared experts and hits
 * run while misses land; results are kept per (row, choice) and summed in ascending expert index.
 * A model may lack the latent width, the norm after the sum and the shared experts.
 *
 * Owns: nothing; buffers belong to the caller's workspace.  Threads: the inference thread.
 */
#ifndef MS_NN_MOE_H
#define MS_NN_MOE_H

#include "nn/expert_service.h"

typedef struct ms_moe {
    uint32_t layer;   /* of the model, for messages */
    uint32_t dim;     /* width of x and out */
    uint32_t experts;
    ms_expert_shape shape;
    ms_router router;
    ms_situ act;
    float norm_eps;
    const ms_weight *latent_down, *latent_up; /* dim -> latent, latent -> dim; NULL: the experts work in dim */
    const ms_weight *latent_norm;             /* RMS after the sum; NULL: none */
    const ms_weight *shared_gate, *shared_up, *shared_down; /* NULL: no shared experts */
    /* For one row: called for the layer after this one and its place among the routed ones while the last reads are under
     * way, with `out` as it would be if what is still missing added nothing.  x is not needed any more.  NULL: nobody. */
    ms_status (*guess)(void *arg, uint32_t layer, uint32_t moe_layer, const float *out, ms_error *err);
    void *guess_arg;
} ms_moe;

/* For at most R rows of K choices each and E experts. */
typedef struct ms_moe_buffers {
    uint32_t *ids;      /* device [R][K] */
    float *weights;     /* device [R][K] */
    float *latent;      /* device [R][latent]; only with a latent width, as sum */
    float *pairs;       /* device [R * K][latent], latent == dim without it */
    float *sum;         /* device [R][latent] */
    float *shared;      /* device [R][dim]; only with shared experts */
    uint32_t *guess_ids;  /* device [K]; for ms_moe_guess, as guess_weights */
    float *guess_weights; /* device [K] */
    void *host;         /* ms_moe_host_bytes(R, K, E) */
} ms_moe_buffers;

size_t ms_moe_host_bytes(uint32_t rows, uint32_t top_k, uint32_t experts);

/* out [n][dim] = shared(x) + up(norm(sum of weighted experts)); what the model lacks is left out.  *host_ids (may be NULL) gets the chosen ids [n][K], ascending
 * per row, valid until the next call. */
ms_status ms_moe_forward(ms_backend *be, ms_expert_service *service, uint32_t moe_layer, const ms_moe *moe,
                         const ms_moe_buffers *buf, float *out, const float *x, uint32_t n, const uint32_t **host_ids,
                         ms_error *err);

/* Guesses the experts of the next routed layer from x [1][dim], a state like the one its router will see, and starts their
 * reads: the three quarters with the largest weights.  Waits for the device: worth it beside reads that are under way. */
ms_status ms_moe_guess(ms_backend *be, ms_expert_service *service, uint32_t moe_layer, const ms_router *router,
                       const ms_moe_buffers *buf, const float *x, ms_error *err);

#endif
