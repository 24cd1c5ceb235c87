/* The emulator's own test: kernels that break a rule of gpu.h must be caught, each in a process of its own.  Which
 * rules a build can see depends on its sanitizer: see the list at the end. */
#include "test_kernels.h"

#include "backend/gpu/gpu_gate.h"

#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__has_feature)
#define HAS(x) __has_feature(x)
#else
#define HAS(x) 0
#endif
#if defined(__SANITIZE_ADDRESS__) || HAS(address_sanitizer)
enum { ADDRESSES = 1, RACES = 0 };
#elif defined(__SANITIZE_THREAD__) || HAS(thread_sanitizer)
enum { ADDRESSES = 0, RACES = 1 };
#else
enum { ADDRESSES = 0, RACES = 0 };
#endif

enum { THREADS = 64 };
struct lanes {
    uint32_t v[THREADS];
};
struct too_much {
    uint8_t v[(48 << 10) + 1];
};

/* Right: what the wrong ones are made of.  out[i] = value of the other end of the block. */
GPU_KERNEL kern_right(uint32_t *out) {
    GPU_SHARED(lanes, sh);
    sh.v[gpu_tid()] = gpu_tid();
    gpu_sync();
    out[gpu_tid()] = sh.v[THREADS - 1 - gpu_tid()] + gpu_shfl(gpu_tid(), 0) * 0;
}
GPU_KERNEL kern_no_barrier(uint32_t *out) {
    GPU_SHARED(lanes, sh);
    sh.v[gpu_tid()] = gpu_tid();
    out[gpu_tid()] = sh.v[THREADS - 1 - gpu_tid()];
}
GPU_KERNEL kern_half_sync(uint32_t *out) {
    if (gpu_tid() < THREADS / 2) gpu_sync();
    out[gpu_tid()] = THREADS - 1 - gpu_tid();
}
GPU_KERNEL kern_half_wave(uint32_t *out) {
    uint32_t v = THREADS - 1 - gpu_tid();
    if (gpu_lane() < GPU_WAVE / 2) v = gpu_shfl(v, (int)gpu_lane());
    out[gpu_tid()] = v;
}
GPU_KERNEL kern_mixed_wave(uint32_t *out) {
    uint32_t v = THREADS - 1 - gpu_tid();
    out[gpu_tid()] = gpu_lane() % 2 ? gpu_shfl(v, (int)gpu_lane()) : gpu_shfl_xor_u32(v, 0);
}
GPU_KERNEL kern_shared_size(uint32_t *out) {
    GPU_SHARED(too_much, sh);
    sh.v[gpu_tid()] = 0;
    out[gpu_tid()] = THREADS - 1 - gpu_tid();
}
GPU_KERNEL kern_unwritten(uint32_t *out) {
    GPU_SHARED(lanes, sh);
    out[gpu_tid()] = sh.v[gpu_tid()];
}
GPU_KERNEL kern_behind_the_end(uint32_t *out) {
    out[gpu_tid() + (gpu_tid() == 5 ? THREADS : 0)] = THREADS - 1 - gpu_tid();
}

/* The first wave hands three values to the second one, through one place. */
struct gated {
    uint32_t v[GPU_WAVE];
    gpu_gate full, free;
};
template <bool WAIT_FULL, bool WAIT_FREE, uint32_t ARRIVALS> GPU_KERNEL kern_gates(uint32_t *out) {
    GPU_SHARED(gated, sh);
    if (gpu_tid() == 0) {
        gpu_gate_init(&sh.full, ARRIVALS);
        gpu_gate_init(&sh.free, 1);
    }
    gpu_sync();
    uint32_t sum = 0;
    for (uint32_t turn = 0; turn < 3; turn++) {
        if (gpu_wave() == 0) {
            if (WAIT_FREE) gpu_gate_wait(&sh.free, turn - 1);
            sh.v[gpu_lane()] = 100 * turn + gpu_lane();
            gpu_gate_arrive(&sh.full);
        } else {
            if (WAIT_FULL) gpu_gate_wait(&sh.full, turn);
            sum += sh.v[GPU_WAVE - 1 - gpu_lane()];
            gpu_gate_arrive(&sh.free);
        }
    }
    const uint32_t good = gpu_wave() == 0 ? 0 : 300 + 3 * (GPU_WAVE - 1 - gpu_lane());
    out[gpu_tid()] = THREADS - 1 - gpu_tid() + sum - good;
}

typedef void (*kernel)(uint32_t *);

/* 0: the results are right. */
static int run_once(kernel k) {
    void *p = nullptr;
    if (gpuMalloc(&p, THREADS * sizeof(uint32_t)) != gpuSuccess) return 3;
    uint32_t *out = (uint32_t *)p;
    gpu_emu_launch(gpuDim3(1), gpuDim3(THREADS), [=] { k(out); });
    int wrong = 0;
    for (uint32_t i = 0; i < THREADS; i++) wrong |= out[i] != THREADS - 1 - i;
    (void)gpuFree(p);
    return wrong;
}

/* Whether the kernel is caught in any order of threads: a wrong result, a trap, or a sanitizer's exit. */
static bool caught(kernel k) {
    static const char *const orders[] = {"fwd", "rev", "rand"};
    for (const char *order : orders) {
        pid_t pid = fork();
        if (pid < 0) fail_msg("fork");
        if (pid == 0) {
            (void)setenv("GPU_EMU_ORDER", order, 1);
            (void)signal(SIGILL, SIG_DFL);
            (void)signal(SIGTRAP, SIG_DFL);
            if (!freopen("/dev/null", "w", stderr)) _exit(4);
            exit(run_once(k));
        }
        int status = 0;
        if (waitpid(pid, &status, 0) != pid) fail_msg("waitpid");
        if (status != 0) return true;
    }
    return false;
}

static void test_right(void **state) {
    (void)state;
    assert_false(caught(kern_right));
    assert_false(caught(kern_gates<true, true, 1>));
}

static void test_wrong(void **state) {
    (void)state;
    static const struct {
        const char *name;
        kernel k;
        bool seen; /* by this build */
    } wrong[] = {
        {"no barrier between threads that exchange", kern_no_barrier, true},
        {"gpu_sync by half of the block", kern_half_sync, true},
        {"a wave operation by half of the wave", kern_half_wave, true},
        {"different wave operations in a wave", kern_mixed_wave, true},
        {"more than 48 KiB of shared memory", kern_shared_size, true},
        {"shared memory that nobody wrote", kern_unwritten, true},
        {"no wait for a gate", kern_gates<false, true, 1>, true},
        {"no wait for the place to be free", kern_gates<true, false, 1>, true},
        {"a gate that too few come to", kern_gates<true, true, 2>, true},
        {"a store behind the end of device memory", kern_behind_the_end, true},
    };
    for (const auto &w : wrong)
        if (caught(w.k) != w.seen) fail_msg("%s: not caught", w.name);
}

/* A race that no order of threads shows in the results: both write the same. */
GPU_KERNEL kern_race(uint32_t *out) {
    GPU_SHARED(lanes, sh);
    sh.v[gpu_tid() / 2] = 7;
    gpu_sync();
    out[gpu_tid()] = sh.v[gpu_tid() / 2] - 7 + THREADS - 1 - gpu_tid();
}
/* A load behind the end, whose value does not matter. */
GPU_KERNEL kern_load_behind(uint32_t *out) {
    uint32_t v = out[gpu_tid() + (gpu_tid() == 5 ? THREADS : 0)];
    out[gpu_tid()] = THREADS - 1 - gpu_tid() + (v == 12345 ? 0 : 0);
    if (v == 0x7fffffffu) out[gpu_tid()] = 0;
}

static void test_sanitizers(void **state) {
    (void)state;
    assert_int_equal(caught(kern_race), RACES);
    assert_int_equal(caught(kern_load_behind), ADDRESSES);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_right), cmocka_unit_test(test_wrong),
                                       cmocka_unit_test(test_sanitizers)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
