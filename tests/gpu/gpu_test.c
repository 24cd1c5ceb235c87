#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "gpu_test.h"

#include "backend/loader.h"

#include <stdlib.h>
#include <string.h>

static ms_backend *owner;

const char *gpu_test_name(void) {
    const char *name = getenv("MOONSHINE_TEST_BACKEND");
    return name ? name : "emu";
}

ms_backend *gpu_test_open(ms_precision precision) {
    ms_backend *be = NULL;
    ms_error err = {0};
    ms_backend_options o = {.name = gpu_test_name(), .precision = precision};
    if (ms_backend_open(&be, &o, &err) != MS_OK) fail_msg("%s", err.message);
    return be;
}

void gpu_test_use(ms_backend *be) { owner = strcmp(gpu_test_name(), "emu") ? be : NULL; }

/* On the emulator plain malloc, so that the address checker sees each buffer's end. */
void *gpu_test_malloc(size_t bytes) {
    void *p = NULL;
    if (!owner) return malloc(bytes ? bytes : 1);
    if (owner->alloc(owner, MS_MEM_STAGING, bytes, "test memory", &p, NULL) != MS_OK) return NULL;
    return p;
}

void gpu_test_free(void *p) {
    if (!owner)
        free(p);
    else
        owner->release(owner, MS_MEM_STAGING, p, 0);
}
