/* metrics.h: counters of the server and their Prometheus text.
 *
 * Owns: plain numbers.  Threads: any; every counter is atomic, the text is a sum of moments.
 */
#ifndef MS_SERVER_METRICS_H
#define MS_SERVER_METRICS_H

#include <stdatomic.h>

#include "base/text.h"

typedef atomic_uint_fast64_t ms_counter;

typedef enum ms_outcome { MS_OUTCOME_OK, MS_OUTCOME_CLIENT_ERROR, MS_OUTCOME_FAILED, MS_OUTCOME_CANCELLED } ms_outcome;
enum { MS_OUTCOMES = 4, MS_APIS = 4, MS_BUCKETS = 12, MS_CANCEL_PHASES = 3 };

typedef struct ms_histogram {
    ms_counter bucket[MS_BUCKETS + 1]; /* the last one: beyond all */
    ms_counter sum_us, count;
} ms_histogram;

typedef struct ms_metrics {
    ms_counter requests[MS_APIS][MS_OUTCOMES]; /* by ms_api_kind */
    ms_counter in_progress;
    ms_counter prompt_tokens, prompt_tokens_reused, completion_tokens, reasoning_tokens;
    ms_counter prefill_us, decode_us;
    ms_counter busy_rejections, deadline_exceeded, cancelled[MS_CANCEL_PHASES]; /* queue, prefill, decode */
    ms_counter expert_hits, expert_accesses, expert_read_bytes, borrowed_bytes; /* of the engine, since it was opened */
    ms_histogram first_token, decode_token;
} ms_metrics;

/* Buckets from 1 ms to 10 min. */
void ms_histogram_add(ms_histogram *h, double seconds);
/* All but what the server adds itself (state, build). */
void ms_metrics_write(ms_metrics *m, ms_text *out);

#endif
