/* bench_phases.h: the time of each kind of operation of a backend.
 *
 * A backend in front of another one: it hands every operation on, waits for the device and counts.  What runs through
 * it is slower by the waits.  It knows the operations of a pass; memory, weights and installs go to the other one.
 * Owns: its tables.  Threads: the one that drives the backend.
 */
#ifndef MS_APPS_BENCH_PHASES_H
#define MS_APPS_BENCH_PHASES_H

#include "backend/backend.h"

typedef struct ms_phases ms_phases;

ms_status ms_phases_create(ms_phases **out, ms_backend *inner, ms_error *err);
ms_backend *ms_phases_backend(ms_phases *p);
/* A line a kind of operation: calls and milliseconds a pass, rate of weights; `seconds` is what all passes took. */
void ms_phases_print(const ms_phases *p, uint32_t passes, double seconds);
void ms_phases_destroy(ms_phases *p);

#endif
