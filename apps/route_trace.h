/* route_trace.h: which experts tokens use: read from a trace file (docs/formats.md) or made up.
 *
 * Owns: its ids.  Errors: MS_ERR_FORMAT naming file and line.
 */
#ifndef MS_APPS_ROUTE_TRACE_H
#define MS_APPS_ROUTE_TRACE_H

#include "base/error.h"

typedef struct ms_route_trace {
    uint32_t tokens, layers, top_k;
    uint32_t *ids; /* [tokens][layers][top_k], distinct in a row */
} ms_route_trace;

/* Every token needs the same number of layers (at most max_layers) and of ids, all below `experts`. */
ms_status ms_route_trace_read(ms_route_trace *out, const char *path, uint32_t max_layers, uint32_t experts, ms_error *err);
/* Every expert of a token is used again by the next with probability `reuse`; the rest is drawn evenly. */
ms_status ms_route_trace_make(ms_route_trace *out, uint32_t tokens, uint32_t layers, uint32_t top_k, uint32_t experts,
                              double reuse, ms_error *err);
void ms_route_trace_free(ms_route_trace *t);

static inline const uint32_t *ms_route_trace_row(const ms_route_trace *t, uint32_t token, uint32_t layer) {
    return t->ids + ((size_t)token * t->layers + layer) * t->top_k;
}

#endif
