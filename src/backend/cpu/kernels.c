#include "backend/cpu/kernels.h"

#include <string.h>
#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

typedef struct candidate {
    const ms_cpu_kernels *table;
    bool (*supported)(void);
} candidate;

static bool always(void) { return true; }

#if defined(__x86_64__)
static bool has_avx2(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

static bool has_avx512(void) {
    return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
           __builtin_cpu_supports("avx512vnni");
}
#elif defined(__aarch64__)
static bool has_neon_dot(void) { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
#endif

/* Best first. */
static const candidate candidates[] = {
#if defined(__x86_64__)
    {&ms_cpu_kernels_avx512, has_avx512},
    {&ms_cpu_kernels_avx2, has_avx2},
#elif defined(__aarch64__)
    {&ms_cpu_kernels_neon, has_neon_dot},
#endif
    {&ms_cpu_kernels_scalar, always},
};

const ms_cpu_kernels *ms_cpu_kernels_find(const char *name) {
    for (size_t i = 0; i < sizeof candidates / sizeof candidates[0]; i++) {
        const candidate *c = &candidates[i];
        if (name && strcmp(name, c->table->name) != 0) continue;
        if (c->supported()) return c->table;
    }
    return NULL;
}
