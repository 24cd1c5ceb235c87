/* safetensors.c: parses and checks the header of one SafeTensors file.
 *
 * Owns: the entries of a parsed header.  Threads: any.
 * Invariants: entries of a successful parse are in payload order, end where the next begins, and end at the file's end.
 * Errors: MS_ERR_FORMAT naming file, tensor and field.
 */
#include "store/safetensors.h"

#include "base/bytes.h"
#include "io/file.h"

#include <stdlib.h>
#include <string.h>

static const struct {
    const char *name;
    unsigned bytes;
} dtypes[] = {
    [MS_DTYPE_F32] = {"F32", 4}, [MS_DTYPE_F16] = {"F16", 2},         [MS_DTYPE_BF16] = {"BF16", 2},
    [MS_DTYPE_F64] = {"F64", 8}, [MS_DTYPE_F8_E4M3] = {"F8_E4M3", 1}, [MS_DTYPE_U8] = {"U8", 1},
    [MS_DTYPE_I8] = {"I8", 1},   [MS_DTYPE_I16] = {"I16", 2},         [MS_DTYPE_I32] = {"I32", 4},
    [MS_DTYPE_I64] = {"I64", 8}, [MS_DTYPE_BOOL] = {"BOOL", 1},
};

enum { DTYPES = sizeof dtypes / sizeof dtypes[0] };

const char *ms_dtype_name(ms_dtype t) { return (unsigned)t < DTYPES ? dtypes[t].name : "unknown"; }
unsigned ms_dtype_bytes(ms_dtype t) { return (unsigned)t < DTYPES ? dtypes[t].bytes : 0; }

/* Where an error is: file and tensor. */
typedef struct spot {
    const char *file, *tensor;
} spot;

static ms_status fail_field(spot at, const char *field, const char *expected, const ms_json *found, ms_error *err) {
    const int most = 60;
    int n = !found ? 0 : found->raw_len < (size_t)most ? (int)found->raw_len : most;
    return ms_fail(err, MS_ERR_FORMAT, "%s: tensor \"%.200s\": %s: expected %s, found %.*s", at.file, at.tensor, field,
                   expected, found ? n : 7, found ? found->raw : "nothing");
}

static ms_status read_dtype(ms_safetensors_entry *e, const ms_json *v, spot at, ms_error *err) {
    for (unsigned i = 0; v && i < DTYPES; i++) {
        if (!ms_json_is_string(v, dtypes[i].name)) continue;
        e->dtype = (uint8_t)i;
        return MS_OK;
    }
    return fail_field(at, "dtype", "F32, F16, BF16, F8_E4M3, U8, I8, I16, I32, I64, F64 or BOOL", v, err);
}

/* *bytes: shape times element size. */
static ms_status read_shape(ms_safetensors_entry *e, uint64_t *bytes, const ms_json *v, spot at, ms_error *err) {
    if (!v || v->type != MS_JSON_ARRAY || v->count > MS_TENSOR_MAX_DIMS)
        return fail_field(at, "shape", "an array of at most 6 integers", v, err);
    uint64_t product = ms_dtype_bytes(e->dtype);
    for (const ms_json *d = v->child; d; d = d->next) {
        uint64_t n;
        if (!ms_json_u64(d, &n)) return fail_field(at, "shape", "an array of at most 6 integers", v, err);
        if (!ms_mul_u64(product, n, &product)) return fail_field(at, "shape", "a size below 2^64 bytes", v, err);
        e->shape[e->dims++] = n;
    }
    *bytes = product;
    return MS_OK;
}

static ms_status read_offsets(ms_safetensors_entry *e, uint64_t bytes, uint64_t payload_bytes, const ms_json *v,
                              spot at, ms_error *err) {
    if (!v || v->type != MS_JSON_ARRAY || v->count != 2 || !ms_json_u64(v->child, &e->begin) ||
        !ms_json_u64(v->child->next, &e->end))
        return fail_field(at, "data_offsets", "two integers", v, err);
    if (e->begin > e->end) return fail_field(at, "data_offsets", "begin <= end", v, err);
    if (e->end > payload_bytes)
        return ms_fail(
            err, MS_ERR_FORMAT,
            "%s: tensor \"%.200s\": data_offsets: expected an end within the file's %llu payload bytes, found %llu",
            at.file, at.tensor, (unsigned long long)payload_bytes, (unsigned long long)e->end);
    if (e->end - e->begin != bytes)
        return ms_fail(err, MS_ERR_FORMAT,
                       "%s: tensor \"%.200s\": data_offsets: expected %llu bytes (shape times %s), found %llu", at.file,
                       at.tensor, (unsigned long long)bytes, ms_dtype_name(e->dtype),
                       (unsigned long long)(e->end - e->begin));
    return MS_OK;
}

static ms_status read_entry(ms_safetensors_entry *e, const ms_json *v, uint64_t payload_bytes, const char *file,
                            ms_error *err) {
    spot at = {file, v->key};
    if (v->key_len == 0 || memchr(v->key, 0, v->key_len))
        return ms_fail(err, MS_ERR_FORMAT, "%s: tensor \"%.200s\": expected a name without U+0000, found %zu bytes",
                       file, v->key, v->key_len);
    if (v->type != MS_JSON_OBJECT) return fail_field(at, "entry", "an object", v, err);
    *e = (ms_safetensors_entry){.name = v->key, .name_len = v->key_len};
    if (v->count != 3) return fail_field(at, "entry", "exactly dtype, shape and data_offsets", v, err);
    uint64_t bytes = 0;
    MS_TRY(read_dtype(e, ms_json_get(v, "dtype"), at, err));
    MS_TRY(read_shape(e, &bytes, ms_json_get(v, "shape"), at, err));
    return read_offsets(e, bytes, payload_bytes, ms_json_get(v, "data_offsets"), at, err);
}

static ms_status check_metadata(const ms_json *v, const char *file, ms_error *err) {
    spot at = {file, "__metadata__"};
    if (v->type != MS_JSON_OBJECT) return fail_field(at, "entry", "an object of strings", v, err);
    for (const ms_json *m = v->child; m; m = m->next) {
        if (m->type != MS_JSON_STRING) return fail_field(at, "entry", "an object of strings", m, err);
    }
    return MS_OK;
}

static int by_place(const void *a, const void *b) {
    const ms_safetensors_entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* Sorts by place and checks that the tensors tile the payload. */
static ms_status check_cover(ms_safetensors *s, uint64_t payload_bytes, const char *file, ms_error *err) {
    bool sorted = true;
    for (size_t i = 1; sorted && i < s->count; i++) sorted = by_place(&s->entries[i - 1], &s->entries[i]) <= 0;
    if (!sorted) qsort(s->entries, s->count, sizeof *s->entries, by_place);
    uint64_t at = 0;
    for (size_t i = 0; i < s->count; i++) {
        const ms_safetensors_entry *e = &s->entries[i];
        if (e->begin != at)
            return ms_fail(
                err, MS_ERR_FORMAT,
                "%s: tensor \"%.200s\": data_offsets: expected to begin at %llu (%s \"%.200s\"), found %llu: %s", file,
                e->name, (unsigned long long)at, i ? "the end of" : "the payload's start, first is",
                i ? s->entries[i - 1].name : e->name, (unsigned long long)e->begin,
                e->begin < at ? "tensors overlap" : "a hole, which the format forbids");
        at = e->end;
    }
    if (at != payload_bytes)
        return ms_fail(err, MS_ERR_FORMAT,
                       "%s: expected %llu payload bytes after the header (the end of the last tensor), found %llu",
                       file, (unsigned long long)at, (unsigned long long)payload_bytes);
    return MS_OK;
}

ms_status ms_safetensors_check_length(uint64_t header_bytes, uint64_t file_bytes, const char *file, ms_error *err) {
    if (header_bytes > MS_SAFETENSORS_MAX_HEADER_BYTES)
        return ms_fail(err, MS_ERR_FORMAT, "%s: header length: expected at most %llu bytes, found %llu", file,
                       (unsigned long long)MS_SAFETENSORS_MAX_HEADER_BYTES, (unsigned long long)header_bytes);
    if (file_bytes < MS_SAFETENSORS_PREFIX_BYTES || header_bytes > file_bytes - MS_SAFETENSORS_PREFIX_BYTES)
        return ms_fail(err, MS_ERR_FORMAT,
                       "%s: header length: expected a header inside the file of %llu bytes, found %llu", file,
                       (unsigned long long)file_bytes, (unsigned long long)header_bytes);
    return MS_OK;
}

static ms_status parse_entries(ms_safetensors *s, const char *header, size_t header_bytes, uint64_t payload_bytes,
                               const char *file, ms_error *err) {
    /* Eight values a tensor with two dimensions; the text is bounded, so the tree is. */
    const ms_json_limits limits = {.max_depth = 3, .max_nodes = (size_t)1 << 23, .reject_duplicates = true};
    MS_TRY(ms_json_parse(&s->doc, header, header_bytes, file, &limits, err));
    const ms_json *root = ms_json_root(s->doc);
    if (root->type != MS_JSON_OBJECT) return ms_fail(err, MS_ERR_FORMAT, "%s: header: expected a JSON object", file);
    s->entries = calloc(root->count ? root->count : 1, sizeof *s->entries);
    if (!s->entries) return ms_fail_memory(err, "tensor entries", root->count * sizeof *s->entries);
    for (const ms_json *v = root->child; v; v = v->next) {
        if (v->key_len == 12 && memcmp(v->key, "__metadata__", 12) == 0) MS_TRY(check_metadata(v, file, err));
        else MS_TRY(read_entry(&s->entries[s->count++], v, payload_bytes, file, err));
    }
    return check_cover(s, payload_bytes, file, err);
}

ms_status ms_safetensors_parse(ms_safetensors *out, const char *header, size_t header_bytes, uint64_t file_bytes,
                               const char *file, ms_error *err) {
    MS_TRY(ms_safetensors_check_length(header_bytes, file_bytes, file, err));
    ms_safetensors s = {.data_offset = MS_SAFETENSORS_PREFIX_BYTES + header_bytes};
    ms_status status = parse_entries(&s, header, header_bytes, file_bytes - s.data_offset, file, err);
    if (status == MS_OK) *out = s;
    else ms_safetensors_free(&s);
    return status;
}

void ms_safetensors_free(ms_safetensors *s) {
    ms_json_free(s->doc);
    free(s->entries);
    *s = (ms_safetensors){0};
}

ms_status ms_safetensors_read(ms_safetensors *out, char **text, int fd, uint64_t file_bytes, const char *file,
                              ms_error *err) {
    uint8_t prefix[MS_SAFETENSORS_PREFIX_BYTES];
    if (file_bytes < sizeof prefix)
        return ms_fail(err, MS_ERR_FORMAT, "%s: expected at least 8 bytes (the header length), found %llu", file,
                       (unsigned long long)file_bytes);
    MS_TRY(ms_file_pread_exact(fd, file, prefix, sizeof prefix, 0, err));
    uint64_t header_bytes = ms_le64(prefix);
    MS_TRY(ms_safetensors_check_length(header_bytes, file_bytes, file, err));
    char *header = malloc(header_bytes + 1);
    if (!header) return ms_fail_memory(err, "a shard header", header_bytes + 1);
    ms_status status = ms_file_pread_exact(fd, file, header, header_bytes, sizeof prefix, err);
    if (status == MS_OK) status = ms_safetensors_parse(out, header, header_bytes, file_bytes, file, err);
    if (status == MS_OK) *text = header;
    else free(header);
    return status;
}
