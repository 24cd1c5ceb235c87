/* loader.h: opens a backend by name.
 *
 *   "cpu"         the CPU, always there
 *   "hip", "cuda" libmoonshine_hip.so, libmoonshine_cuda.so: a GPU, where the library, a driver and a device exist
 *   "emu"         libmoonshine_emu.so: the GPU kernels run by an emulator; slow, for tests
 *   "auto"        the first of cuda, hip, cpu that opens
 * NULL is "cpu".  A library is looked for in the program's folder, in ../lib beside it, then as dlopen does for a bare
 * name. Libraries stay loaded: a backend's code must outlive every pointer to it, and unloading a GPU runtime is not
 * safe. Threads: the inference thread.
 */
#ifndef MS_BACKEND_LOADER_H
#define MS_BACKEND_LOADER_H

#include "backend/backend.h"

typedef struct ms_backend_options {
    const char *name; /* see above */
    ms_precision precision;
    unsigned threads;    /* CPU only; 0: all processors */
    const char *kernels; /* CPU only; NULL: best for this CPU */
    int device;          /* GPU only; counted from 0 */
    bool range_blas; /* GPU only: products of many rows by cuBLASLt or hipBLASLt; near the results of backend.h, not the
                        same bits.  A CPU is an error then */
    void (*log)(void *arg, const char *line); /* "auto" says why a GPU was not taken; may be NULL */
    void *log_arg;
} ms_backend_options;

/* Errors: MS_ERR_USAGE (unknown name, range_blas without a GPU), MS_ERR_UNSUPPORTED (library or device is missing, or
 * of another version), MS_ERR_MEMORY. */
ms_status ms_backend_open(ms_backend **out, const ms_backend_options *options, ms_error *err);

#endif
