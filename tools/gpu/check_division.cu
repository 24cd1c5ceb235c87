// check_division.cu - k_div<true>, and what is made of it, against the compiler's own division on an NVIDIA GPU.
//
//   nvcc -x cu -std=c++17 -O3 --fmad=false --ftz=false --prec-div=true -Iinclude -Isrc -arch=sm_90 \
//       tools/gpu/check_division.cu -o check_division && ./check_division
//
// Prints, of each kind, how many of the checked results have other bits; exit code 1 if any do.  Takes about a second.
// Owns: nothing.  Threads: one.
#include "backend/gpu/k_common.h"

#include <stdio.h>

namespace {

enum kind { PAIRS, RECIPROCALS, QUANTS, SITUS, SIGNIFICANDS, KINDS };
const char *const names[KINDS] = {"a / b", "1 / b, 2 / b", "k_quant_of", "k_situ", "every significand"};
enum { BLOCKS = 1056, THREADS = 256, EACH = 20000 };

struct counts {
    unsigned long long checked[KINDS], wrong[KINDS];
};

__device__ void check(counts *c, kind k, float found, float expected) {
    atomicAdd(&c->checked[k], 1ull);
    if (__float_as_uint(found) != __float_as_uint(expected)) atomicAdd(&c->wrong[k], 1ull);
}

// A random significand, `sign` or 0 as its sign, and an exponent from `least` on.
__device__ float random_float(unsigned bits, unsigned sign, unsigned least, unsigned exponents, unsigned more) {
    return __uint_as_float((bits & (0x7fffffu | sign)) | (least + more % exponents) << 23);
}

__global__ void check_random(counts *c, unsigned long long seed) {
    unsigned long long s = (blockIdx.x * (unsigned long long)THREADS + threadIdx.x) * 0x9e3779b97f4a7c15ull + seed;
    const unsigned sign = 0x80000000u;
    for (int i = 0; i < EACH; i++) {
        s = s * 6364136223846793005ull + 1442695040888963407ull;
        const unsigned r = (unsigned)(s >> 32), q = (unsigned)(s >> 8), m = (unsigned)(s >> 40),
                       n = (unsigned)(s >> 20);
        const float a = random_float(r, sign, 67, 121, m), b = random_float(q, sign, 67, 121, n);
        check(c, PAIRS, k_div<true>(a, b), a / b);
        const float large = random_float(q, 0, 127, 125, n), one = i % 2 ? 1.0f : 2.0f;
        check(c, RECIPROCALS, k_div<true>(one, large), one / large);
        const unsigned amax = __float_as_uint(random_float(r, 0, 67, 121, m));
        const k_quant found = k_quant_of<true>(amax), expected = k_quant_of(amax);
        check(c, QUANTS, found.scale, expected.scale);
        check(c, QUANTS, found.inv, expected.inv);
        float g = random_float(r, sign, 87, 80, m), u = random_float(q, sign, 87, 80, n);
        if (i % 4 == 3) g = -100.0f + (float)(r >> 8) * 0x1p-24f * 200.0f;
        const float beta = i % 8 ? 0.1f + (float)(r >> 9 & 1023) * 0.01f : 0.0f;
        if (k_situ_moderate(g, u)) check(c, SITUS, k_situ<true>(g, u, beta, 4.0f), k_situ(g, u, beta, 4.0f));
    }
}

// One thread a significand.
__global__ void check_significands(counts *c) {
    for (unsigned e = 127; e < 130; e++) {
        const float b = __uint_as_float((blockIdx.x * (unsigned)THREADS + threadIdx.x) | e << 23);
        check(c, SIGNIFICANDS, k_div<true>(1.0f, b), 1.0f / b);
        check(c, SIGNIFICANDS, k_div<true>(2.0f, b), 2.0f / b);
        check(c, SIGNIFICANDS, k_div<true>(127.0f, b), 127.0f / b);
        check(c, SIGNIFICANDS, k_div<true>(b, 127.0f), b / 127.0f);
    }
}

} // namespace

int main(void) {
    counts *device = nullptr, host = {};
    cudaError_t e = cudaMalloc(&device, sizeof host);
    if (e == cudaSuccess) e = cudaMemset(device, 0, sizeof host);
    if (e == cudaSuccess) {
        check_random<<<BLOCKS, THREADS>>>(device, 12345);
        check_significands<<<(1 << 23) / THREADS, THREADS>>>(device);
        e = cudaMemcpy(&host, device, sizeof host, cudaMemcpyDeviceToHost);
    }
    if (e != cudaSuccess) {
        fprintf(stderr, "check_division: %s\n", cudaGetErrorString(e));
        return 1;
    }
    bool right = true;
    for (int k = 0; k < KINDS; k++) {
        printf("%-20s %llu wrong of %llu\n", names[k], host.wrong[k], host.checked[k]);
        right = right && host.checked[k] && !host.wrong[k];
    }
    return right ? 0 : 1;
}
