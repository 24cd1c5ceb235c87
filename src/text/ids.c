/* ids.c: the growing list of token ids of tokenizer.h. */
#include <stdlib.h>
#include <string.h>

#include "text/tokenizer.h"

static ms_status grow(ms_ids *ids, size_t more, ms_error *err) {
    size_t need;
    if (__builtin_add_overflow(ids->count, more, &need) || need > SIZE_MAX / 2 / sizeof *ids->data)
        return ms_fail(err, MS_ERR_MEMORY, "out of memory: a token list of %zu and %zu more ids", ids->count, more);
    if (need <= ids->cap) return MS_OK;
    size_t cap = ids->cap < 64 ? 64 : 2 * ids->cap;
    if (cap < need) cap = need;
    uint32_t *data = realloc(ids->data, cap * sizeof *data);
    if (data == NULL) return ms_fail_memory(err, "a token list", cap * sizeof *data);
    ids->data = data;
    ids->cap = cap;
    return MS_OK;
}

ms_status ms_ids_push(ms_ids *ids, uint32_t id, ms_error *err) {
    if (ids->count == ids->cap) MS_TRY(grow(ids, 1, err));
    ids->data[ids->count++] = id;
    return MS_OK;
}

ms_status ms_ids_append(ms_ids *ids, const uint32_t *more, size_t count, ms_error *err) {
    if (count == 0) return MS_OK;
    MS_TRY(grow(ids, count, err));
    memcpy(ids->data + ids->count, more, count * sizeof *more);
    ids->count += count;
    return MS_OK;
}

void ms_ids_free(ms_ids *ids) {
    free(ids->data);
    *ids = (ms_ids){0};
}
