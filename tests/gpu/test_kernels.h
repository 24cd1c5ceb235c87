/* test_kernels.h: what the tests of the kernel families share: inputs, device copies, the CPU backend with its scalar
 * kernels as the oracle, and the comparison of bits.
 *
 * Values are f32 arrays; `bf16` stores the same values rounded.  Memory comes from the target's allocator, which the
 * emulator fills with NaN.
 */
#ifndef TESTS_GPU_TEST_KERNELS_H
#define TESTS_GPU_TEST_KERNELS_H

#include "backend/gpu/k_common.h"

extern "C" {
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>
#include "backend/backend.h"
}

#include <math.h>
#include <string.h>
#include <vector>

enum kernel_values { VALUES_NORMAL, VALUES_MIXED, VALUES_NAN };
typedef std::vector<float> floats;
typedef std::vector<gpu_bf16> halves;

static inline uint32_t next_random(uint64_t *state) {
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (uint32_t)(*state >> 33);
}

static inline floats values(size_t count, uint32_t salt, kernel_values kind = VALUES_NORMAL) {
    floats x(count);
    uint64_t state = salt * UINT64_C(0x9e3779b97f4a7c15) + 1;
    for (size_t i = 0; i < count; i++) {
        float u = (float)next_random(&state) / 0x1p30f - 1.0f, v = (float)next_random(&state) / 0x1p30f - 1.0f;
        uint32_t pick = next_random(&state) % 8;
        x[i] = u + v;
        if (kind == VALUES_MIXED) x[i] *= pick == 0 ? 0.0f : pick == 1 ? 0x1p-130f : pick == 2 ? 0x1p+12f : 1.0f;
        if (kind == VALUES_NAN && next_random(&state) % 211 == 7) x[i] = pick < 4 ? NAN : -INFINITY;
    }
    return x;
}

static inline halves to_bf16(const floats &x) {
    halves h(x.size());
    for (size_t i = 0; i < x.size(); i++) h[i] = gpu_f32_bf16(x[i]);
    return h;
}

/* Weights: bf16 values, so that every format holds the same. */
static inline floats weights(size_t count, uint32_t salt) {
    floats w = values(count, salt);
    for (float &x : w) x = gpu_bf16_f32(gpu_f32_bf16(0.25f * x));
    return w;
}

/* Device memory, freed with the object. */
class device {
  public:
    device(const void *host, size_t bytes) : bytes_(bytes) {
        if (gpuMalloc(&at, bytes + 64) != gpuSuccess) fail_msg("no device memory: %zu bytes", bytes);
        if (host && gpuMemcpyAsync(at, host, bytes, gpuMemcpyHostToDevice, 0) != gpuSuccess) fail_msg("copy");
    }
    template <class T> explicit device(const std::vector<T> &v) : device(v.data(), v.size() * sizeof(T)) {}
    device(const device &) = delete;
    device &operator=(const device &) = delete;
    ~device() { (void)gpuFree(at); }
    template <class T> T *as() const { return (T *)at; }
    /* The first `count` values, when everything before has run. */
    template <class T> std::vector<T> get(size_t count) const {
        std::vector<T> v(count);
        if (count * sizeof(T) > bytes_) fail_msg("device buffer of %zu bytes", bytes_);
        if (gpuGetLastError() != gpuSuccess) fail_msg("launch");
        if (count && gpuMemcpyAsync(v.data(), at, count * sizeof(T), gpuMemcpyDeviceToHost, 0) != gpuSuccess)
            fail_msg("copy");
        if (gpuStreamSynchronize(0) != gpuSuccess) fail_msg("kernel");
        return v;
    }

  private:
    void *at = nullptr;
    size_t bytes_;
};

static inline ms_backend *oracle(ms_precision precision, const ms_scratch_need *need) {
    ms_backend *be;
    ms_cpu_options o = {precision, 1, "scalar"};
    ms_error err;
    assert_int_equal(ms_backend_cpu_create(&be, &o, &err), MS_OK);
    assert_int_equal(be->scratch_reserve(be, need, &err), MS_OK);
    return be;
}

static inline void oracle_weight(ms_backend *be, ms_weight *w, ms_format format, uint32_t rows, uint32_t cols,
                                 const floats &host) {
    assert_int_equal(be->weight_create(be, w, format, rows, cols, NULL), MS_OK);
    assert_int_equal(be->weight_fill(be, w, 0, rows, host.data(), MS_FORMAT_F32, NULL), MS_OK);
}

static inline void oracle_close(ms_backend *be) {
    ms_error err = {};
    if (be->sync(be, &err) != MS_OK) fail_msg("oracle: %s", err.message);
    be->destroy(be);
}

/* All NaNs are one value: which payload survives is the instruction's choice. */
static inline uint32_t comparable(float x) { return x != x ? 0x7fc00000u : gpu_as_u32(x); }
static inline uint32_t comparable(gpu_bf16 x) { return comparable(gpu_bf16_f32(x)); }

template <class T>
static inline void expect_bits(const std::vector<T> &expected, const std::vector<T> &found, const char *label,
                               const char *what) {
    if (expected.size() != found.size())
        fail_msg("%s: %s: %zu and %zu values", label, what, expected.size(), found.size());
    for (size_t i = 0; i < found.size(); i++)
        if (comparable(expected[i]) != comparable(found[i]))
            fail_msg("%s: %s %zu: expected bits %08x, found %08x", label, what, i, comparable(expected[i]),
                     comparable(found[i]));
}

#endif
