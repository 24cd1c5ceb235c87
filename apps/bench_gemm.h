/* bench_gemm.h: the rate at which a device multiplies bf16 matrices with the library its maker tuned for it.
 *
 * The library is loaded when asked for and only measured against; nothing of the product uses it.
 * Threads: the thread that drives the backend.
 */
#ifndef MS_APPS_BENCH_GEMM_H
#define MS_APPS_BENCH_GEMM_H

#include "backend/backend.h"

/* Operations a second (a multiply-add is two) of products of size x size matrices, median of `rounds` (at most 100).
 * *rate 0 and the reason in `why` when there is no such library for the backend. */
ms_status ms_probe_gemm(ms_backend *be, uint32_t size, uint32_t rounds, double *rate, char *why, size_t why_bytes,
                        ms_error *err);

#endif
