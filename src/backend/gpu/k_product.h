// k_product.h - arguments of matrix products.
#pragma once
#include "backend/gpu/k_common.h"

enum { K_PRODUCTS = 8 };

typedef struct k_product {
    const void *data;    // in the layout of its mode; see k_common.h
    const float *scales; // Q8
    float *out;          // [n] rows, out_stride floats apart
    size_t out_stride;
    uint32_t rows, mode;
    uint32_t block_end; // set by the launcher: first block behind this product
} k_product;

// Products of the same input rows.
typedef struct k_project_args {
    k_product product[K_PRODUCTS];
    uint32_t count;
    const float *x;    // [n][cols]; for all modes but K_MODE_Q8
    const int8_t *x_q; // from k_quantise; for K_MODE_Q8
    const float *x_s;
    uint32_t n, cols;
    uint32_t share; // set by the launcher: Q8 tiles of a block whose waves share them; 0: a wave has a tile
    bool wide;      // Q8 products of several rows on wide tiles (k_project_wide.h)
} k_project_args;
