/* expert_table.c: where each routed expert lies: one contiguous extent of six tensors.
 *
 * Owns: the arrays of a table.  Threads: a built table is immutable.
 * Invariants: every extent was checked part by part: name, dtype, shape, and no gap.
 * Errors: MS_ERR_FORMAT naming layer, expert, tensor, expected and found offset.
 */
#include "base/bytes.h"
#include "store/checkpoint.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_SIZE = 256 };

static ms_status expert_size(uint64_t *out, const ms_expert_naming *naming, ms_error *err) {
    uint64_t total = 0;
    for (int i = 0; i < MS_EXPERT_PARTS; i++) {
        uint64_t part;
        if (!ms_mul_u64(naming->shape[i][0], naming->shape[i][1], &part) || !ms_add_u64(total, part, &total))
            return ms_fail(err, MS_ERR_FORMAT, "experts: expected parts below 2^64 bytes");
    }
    if (total > UINT32_MAX)
        return ms_fail(err, MS_ERR_FORMAT, "experts: expected less than 2^32 bytes each, found %llu", (unsigned long long)total);
    *out = total;
    return MS_OK;
}

/* The tensor behind `previous` in the sorted directory is the next part as a rule; saves most searches. */
static const ms_tensor *find_part(const ms_checkpoint *c, const char *name, const ms_tensor *previous) {
    if (previous) {
        const ms_tensor *end = ms_checkpoint_tensor(c, 0) + ms_checkpoint_tensor_count(c);
        if (previous + 1 < end && strcmp(previous[1].name, name) == 0) return previous + 1;
    }
    return ms_checkpoint_find(c, name);
}

#if defined(__GNUC__)
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wformat-nonliteral"
#endif
/* The format is a constant of the lane. */
static size_t put_prefix(char name[NAME_SIZE], const ms_expert_naming *naming, uint32_t layer, uint32_t expert) {
    int n = snprintf(name, NAME_SIZE, naming->prefix_format, (unsigned)layer, (unsigned)expert);
    return n < 0 ? 0 : n < NAME_SIZE ? (size_t)n : NAME_SIZE - 1;
}
#if defined(__GNUC__)
#pragma GCC diagnostic pop
#endif

static ms_status locate_expert(ms_expert_extent *out, const ms_checkpoint *c, const ms_expert_naming *naming,
                               uint32_t layer, uint32_t expert, uint64_t bytes, const ms_tensor **last, ms_error *err) {
    char name[NAME_SIZE];
    size_t prefix = put_prefix(name, naming, layer, expert);
    uint64_t next = 0;
    for (int i = 0; i < MS_EXPERT_PARTS; i++) {
        (void)snprintf(name + prefix, sizeof name - prefix, "%s", naming->suffix[i]);
        const ms_tensor *t = find_part(c, name, *last);
        bool good = t && t->dtype == MS_DTYPE_U8 && t->dims == 2 && t->shape[0] == naming->shape[i][0] &&
                    t->shape[1] == naming->shape[i][1];
        if (!good) {
            (void)ms_checkpoint_expect(c, name, MS_DTYPE_U8, 2, naming->shape[i], NULL, err);
            return ms_error_context(err, "layer %u, expert %u", (unsigned)layer, (unsigned)expert);
        }
        if (i == 0) {
            out->offset = t->offset;
            out->shard = t->shard;
            out->bytes = (uint32_t)bytes;
        } else if (t->shard != out->shard) {
            return ms_fail(err, MS_ERR_FORMAT,
                           "layer %u, expert %u: tensor \"%s\": expected in %s like the expert's first, found in %s",
                           (unsigned)layer, (unsigned)expert, name, ms_checkpoint_shard_path(c, out->shard),
                           ms_checkpoint_shard_path(c, t->shard));
        } else if (t->offset != next) {
            return ms_fail(
                err, MS_ERR_FORMAT,
                "layer %u, expert %u: tensor \"%s\": offset: expected %llu (parts without a gap), found %llu",
                (unsigned)layer, (unsigned)expert, name, (unsigned long long)next, (unsigned long long)t->offset);
        }
        next = t->offset + t->bytes;
        *last = t;
    }
    return MS_OK;
}

ms_status ms_expert_table_build(ms_expert_table *out, const ms_checkpoint *c, const ms_expert_naming *naming,
                                const uint32_t *layers, uint32_t layer_count, uint32_t expert_count, ms_error *err) {
    ms_error local = {0};
    if (!err) err = &local; /* context is added to messages below */
    ms_expert_table t = {.layer_count = layer_count, .expert_count = expert_count};
    MS_TRY(expert_size(&t.expert_bytes, naming, err));
    t.read_bytes = t.expert_bytes;
    size_t total = (size_t)layer_count * expert_count;
    t.layers = calloc(layer_count ? layer_count : 1, sizeof *t.layers);
    t.extents = calloc(total ? total : 1, sizeof *t.extents);
    ms_status status = MS_OK;
    if (!t.layers || !t.extents) status = ms_fail_memory(err, "the expert table", total * sizeof *t.extents);
    const ms_tensor *last = NULL;
    for (uint32_t i = 0; status == MS_OK && i < layer_count; i++) {
        t.layers[i] = layers[i];
        for (uint32_t e = 0; status == MS_OK && !ms_checkpoint_bundle(c) && e < expert_count; e++)
            status = locate_expert(&t.extents[(size_t)i * expert_count + e], c, naming, layers[i], e, t.expert_bytes,
                                   &last, err);
    }
    if (status == MS_OK) *out = t;
    else ms_expert_table_free(&t);
    return status;
}

void ms_expert_table_free(ms_expert_table *t) {
    free(t->layers);
    free(t->extents);
    *t = (ms_expert_table){0};
}
