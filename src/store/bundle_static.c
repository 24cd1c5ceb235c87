/* bundle_static.c: all tensors of a checkpoint that are no routed experts, in one SafeTensors file. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/bytes.h"
#include "io/file.h"
#include "store/bundle_internal.h"

enum { PIECE = 8 << 20, MAX_INDEX = 512 << 20, MAX_NODES = 1 << 23 };

static int by_place(const void *a, const void *b) {
    const ms_expert_extent *x = a, *y = b;
    if (x->shard != y->shard) return x->shard < y->shard ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Whether a tensor lies in one of the sorted extents. */
static bool is_expert(const ms_tensor *t, const ms_expert_extent *sorted, size_t count) {
    size_t low = 0, high = count;
    while (low < high) { /* the last extent that begins at or before the tensor */
        size_t middle = low + (high - low) / 2;
        const ms_expert_extent *x = &sorted[middle];
        if (x->shard < t->shard || (x->shard == t->shard && x->offset <= t->offset))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == 0) return false;
    const ms_expert_extent *x = &sorted[low - 1];
    return x->shard == t->shard && t->offset < x->offset + x->bytes;
}

static int by_type_and_name(const void *a, const void *b) {
    const ms_tensor *x = *(const ms_tensor *const *)a, *y = *(const ms_tensor *const *)b;
    if (x->dtype != y->dtype) return x->dtype < y->dtype ? -1 : 1;
    return strcmp(x->name, y->name);
}

static void write_header(bundle_statics *b) {
    uint64_t at = 0;
    ms_text *h = &b->header;
    ms_text_append(h, "\0\0\0\0\0\0\0\0", 8);
    for (size_t i = 0; i < b->count; i++) {
        const ms_tensor *t = b->tensors[i];
        ms_text_puts(h, i ? "," : "{");
        ms_json_write_string(h, t->name, strlen(t->name));
        ms_text_printf(h, ":{\"dtype\":\"%s\",\"shape\":[", ms_dtype_name((ms_dtype)t->dtype));
        for (unsigned d = 0; d < t->dims; d++)
            ms_text_printf(h, "%s%llu", d ? "," : "", (unsigned long long)t->shape[d]);
        ms_text_printf(h, "],\"data_offsets\":[%llu,%llu]}", (unsigned long long)at,
                       (unsigned long long)(at + t->bytes));
        at += t->bytes;
    }
    ms_text_puts(h, b->count ? "}" : "{}");
    while (!h->failed && h->len % 8 != 0) ms_text_puts(h, " ");
    if (!h->failed) ms_put_le64(h->data, h->len - 8);
    b->bytes = h->len + at;
}

ms_status bundle_statics_list(bundle_statics *out, const ms_mzg2_source *s, ms_error *err) {
    size_t count = ms_checkpoint_tensor_count(s->checkpoint),
           experts = (size_t)s->experts->layer_count * s->experts->expert_count;
    *out = (bundle_statics){.tensors = calloc(count + 1, sizeof *out->tensors)};
    ms_expert_extent *sorted = malloc((experts + 1) * sizeof *sorted);
    if (!out->tensors || !sorted) {
        free(sorted);
        bundle_statics_free(out);
        return ms_fail_memory(err, "the list of static tensors", count * sizeof *out->tensors);
    }
    memcpy(sorted, s->experts->extents, experts * sizeof *sorted);
    qsort(sorted, experts, sizeof *sorted, by_place);
    for (size_t i = 0; i < count; i++) {
        const ms_tensor *t = ms_checkpoint_tensor(s->checkpoint, i);
        if (!is_expert(t, sorted, experts)) out->tensors[out->count++] = t;
    }
    free(sorted);
    qsort(out->tensors, out->count, sizeof *out->tensors, by_type_and_name);
    write_header(out);
    if (!out->header.failed) return MS_OK;
    bundle_statics_free(out);
    return ms_fail_memory(err, "a header", 0);
}

void bundle_statics_free(bundle_statics *b) {
    free(b->tensors);
    ms_text_free(&b->header);
    *b = (bundle_statics){0};
}

static ms_status copy_tensor(mzg2_output *o, const ms_checkpoint *c, const ms_tensor *t, uint8_t *piece,
                             ms_error *err) {
    for (uint64_t at = 0; at < t->bytes; at += PIECE) {
        size_t n = t->bytes - at < PIECE ? (size_t)(t->bytes - at) : PIECE;
        MS_TRY(ms_checkpoint_read(c, t, at, piece, n, err));
        MS_TRY(mzg2_output_write(o, piece, n, err));
    }
    return MS_OK;
}

ms_status bundle_statics_write(const bundle_statics *b, const ms_checkpoint *c, const char *path,
                               uint8_t sha[MS_SHA256_BYTES], ms_error *err) {
    mzg2_output o;
    uint8_t *piece = malloc(PIECE);
    if (!piece) return ms_fail_memory(err, path, PIECE);
    ms_status st = mzg2_output_open(&o, path, err);
    if (st == MS_OK) st = mzg2_output_write(&o, b->header.data, b->header.len, err);
    for (size_t i = 0; st == MS_OK && i < b->count; i++) st = copy_tensor(&o, c, b->tensors[i], piece, err);
    if (st == MS_OK) st = mzg2_output_finish(&o, true, sha, err);
    mzg2_output_drop(&o);
    free(piece);
    return st;
}

/* The metadata of the checkpoint's index as its text has it. */
static ms_status put_metadata(ms_text *out, const bundle_statics *b, const ms_checkpoint *c, ms_error *err) {
    char path[MZG2_PATH], *text = NULL;
    size_t length = 0;
    struct stat st;
    MS_TRY(mzg2_path(path, ms_checkpoint_dir(c), bundle_index, err));
    if (lstat(path, &st) != 0 && errno == ENOENT) {
        ms_text_printf(out, "{\"total_size\":%llu}", (unsigned long long)(b->bytes - b->header.len));
        return MS_OK;
    }
    MS_TRY(ms_file_read_all(path, MAX_INDEX, &text, &length, err));
    ms_json_doc *doc = NULL;
    const ms_json_limits limits = {.max_depth = 8, .max_nodes = MAX_NODES};
    ms_status status = ms_json_parse(&doc, text, length, path, &limits, err);
    if (status == MS_OK) {
        const ms_json *m = ms_json_get(ms_json_root(doc), "metadata");
        if (m)
            ms_text_append(out, m->raw, m->raw_len);
        else
            ms_text_puts(out, "{}");
    }
    ms_json_free(doc);
    free(text);
    return status;
}

ms_status bundle_statics_index(const bundle_statics *b, const ms_checkpoint *c, ms_text *out, ms_error *err) {
    ms_text_puts(out, "{\"metadata\":");
    MS_TRY(put_metadata(out, b, c, err));
    ms_text_puts(out, ",\n\"weight_map\":{");
    for (size_t i = 0; i < b->count; i++) {
        ms_text_puts(out, i ? ",\n" : "\n");
        ms_json_write_string(out, b->tensors[i]->name, strlen(b->tensors[i]->name));
        ms_text_printf(out, ":\"%s\"", bundle_static);
    }
    ms_text_puts(out, "}}\n");
    return out->failed ? ms_fail_memory(err, "an index", out->cap) : MS_OK;
}
