/* candidate.h: a request as a lane renders it: segments, their ids, and where the parts of a prompt lie.
 *
 * Owns: everything in the value.  Threads: immutable once built; building is pure.
 * Errors: MS_ERR_USAGE from the renderer, naming the field; MS_ERR_MEMORY.
 */
#ifndef MS_SERVER_CANDIDATE_H
#define MS_SERVER_CANDIDATE_H

#include "server/reasoning.h"
#include "session/conversation.h"

typedef struct ms_candidate {
    ms_segments segments;
    ms_ids ids;
    size_t *first;      /* [segments.count + 1]: where a segment's ids begin */
    ms_channel channel; /* that the generation prompt opens; NONE: raw text */
    bool thinking;
    size_t closing; /* at most so many ids close a cut reply */
    /* Directives of this turn alone (tool choice, single call, response format): ids between the last message and the
     * generation prompt.  The client's next request will not have them. */
    size_t hidden_first, hidden_count;
    ms_history history; /* of its messages; only where reasoning is remembered */
    size_t restored;    /* messages whose reasoning was put in */
    size_t anchor; /* ids of the tools and the leading system messages: where another conversation may branch off */
} ms_candidate;

/* request: an object as in chat.h. */
ms_status ms_candidate_build(ms_candidate *out, const ms_text_model *model, const ms_json *request, ms_error *err);
/* Ids without structure. */
ms_status ms_candidate_raw(ms_candidate *out, const uint32_t *ids, size_t count, ms_error *err);
void ms_candidate_free(ms_candidate *c);

#endif
