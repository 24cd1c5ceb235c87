/* gpu_backend.h: what a GPU backend library gives to the program that loads it: one function.
 *
 * libmoonshine_hip.so, libmoonshine_cuda.so and libmoonshine_emu.so (the same kernels run by an emulator on the CPU,
 * for tests) are built from the files of this folder; backend/loader.h opens them by name. Threads: as backend.h says.
 */
#ifndef MS_BACKEND_GPU_GPU_BACKEND_H
#define MS_BACKEND_GPU_GPU_BACKEND_H

#ifdef __cplusplus
extern "C" {
#endif

#include "backend/backend.h"

/* Raised with every change to backend.h or to this file that a library built before would not notice. */
enum { MS_GPU_INTERFACE = 5 };

typedef struct ms_gpu_options {
    uint32_t interface;     /* MS_GPU_INTERFACE of the caller; stays the first member */
    uint32_t backend_bytes; /* sizeof(ms_backend) of the caller */
    const char *version;    /* MS_VERSION of the caller */
    ms_precision precision;
    int device;      /* counted from 0 */
    bool range_blas; /* see backend/loader.h */
} ms_gpu_options;

#define MS_GPU_CREATE_SYMBOL "ms_backend_gpu_create"
typedef ms_status ms_backend_gpu_create_fn(ms_backend **out, const ms_gpu_options *options, ms_error *err);

/* Errors: MS_ERR_UNSUPPORTED (another version's library, no device, or one that has no kernels here, no matrix library), MS_ERR_MEMORY. */
__attribute__((visibility("default"))) ms_backend_gpu_create_fn ms_backend_gpu_create;

#ifdef __cplusplus
}
#endif
#endif
