/* checkpoint.c: opens a checkpoint directory: index, shard headers, one sorted directory of the needed tensors.
 *
 * Owns: names (one pool), tensors, shard paths and descriptors.
 * Threads: immutable after open.
 * Invariants: tensors are sorted by name, each lies inside its shard, and index and headers agree on each.
 *   The index text and its tree are gone before the first header is read: they are the peak of memory use.
 * Errors: MS_ERR_FORMAT naming shard, tensor, expected, found; MS_ERR_IO for files that cannot be read.
 */
#include "store/checkpoint.h"

#include "base/bytes.h"
#include "io/file.h"
#include "store/bundle.h"
#include "store/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char index_name[] = "model.safetensors.index.json";
static const char single_name[] = "model.safetensors";

enum {
    MAX_CONFIG_BYTES = 1000000,
    MAX_INDEX_BYTES = 512 << 20,
    MAX_INDEX_NODES = 1 << 23,
    MAX_SHARDS = 4096,
    MAX_SHARD_NAME = 255,
    MAX_TENSOR_NAME = 1024,
    MAX_METADATA = 16,
    MAX_METADATA_NAME = 32
};

typedef struct shard {
    char *path;
    const char *base; /* in path */
    uint64_t file_bytes;
    int fd;
} shard;

/* A member of the index's metadata. */
typedef struct metadata_number {
    char name[MAX_METADATA_NAME];
    bool whole; /* its value is a whole number */
    uint64_t value;
} metadata_number;

struct ms_checkpoint {
    char *dir;
    char *names; /* all tensor names, NUL-terminated */
    ms_tensor *tensors;
    size_t tensor_count;
    shard *shards;
    size_t shard_count;
    ms_checkpoint_totals totals;
    metadata_number metadata[MAX_METADATA];
    size_t metadata_count;
    ms_bundle bundle;
    bool is_bundle;
};

/* ------------------------------------------------------------------ files */

static char *join_path(const char *dir, const char *name, ms_error *err) {
    size_t a = strlen(dir), b = strlen(name);
    char *path = malloc(a + b + 2);
    if (!path) {
        (void)ms_fail_memory(err, "a path", a + b + 2);
        return NULL;
    }
    (void)snprintf(path, a + b + 2, "%s%s%s", dir, a && dir[a - 1] == '/' ? "" : "/", name);
    return path;
}

ms_status ms_checkpoint_read_config(const char *dir, ms_json_doc **doc, char **text, ms_error *err) {
    char *path = join_path(dir, "config.json", err);
    if (!path) return MS_ERR_MEMORY;
    char *data = NULL;
    size_t len = 0;
    ms_status status = ms_file_read_all(path, MAX_CONFIG_BYTES, &data, &len, err);
    if (status == MS_OK) {
        const ms_json_limits limits = {.reject_duplicates = true};
        status = ms_json_parse(doc, data, len, path, &limits, err);
    }
    free(path);
    if (status == MS_OK) *text = data;
    else free(data);
    return status;
}

/* Takes over `path`.  Only a regular file (or a link to one) is a shard; O_NONBLOCK keeps a pipe from blocking. */
static ms_status open_shard(shard *s, char *path, const char *named_by, ms_error *err) {
    *s = (shard){.path = path, .base = strrchr(path, '/') + 1, .fd = -1};
    s->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (s->fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s (named by %s)", path, named_by);
    struct stat st;
    if (fstat(s->fd, &st) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s", path);
    if (!S_ISREG(st.st_mode)) return ms_fail_not_regular(err, path, st.st_mode);
    s->file_bytes = (uint64_t)st.st_size;
    return MS_OK;
}

/* ------------------------------------------------------------------ tensor directory */

static int by_name(const void *a, const void *b) {
    return strcmp(((const ms_tensor *)a)->name, ((const ms_tensor *)b)->name);
}

static void sort_tensors(ms_checkpoint *c) {
    bool sorted = true;
    for (size_t i = 1; sorted && i < c->tensor_count; i++) sorted = by_name(&c->tensors[i - 1], &c->tensors[i]) < 0;
    if (!sorted) qsort(c->tensors, c->tensor_count, sizeof *c->tensors, by_name);
}

const ms_tensor *ms_checkpoint_find(const ms_checkpoint *c, const char *name) {
    const ms_tensor key = {.name = name};
    if (c->tensor_count == 0) return NULL;
    return bsearch(&key, c->tensors, c->tensor_count, sizeof *c->tensors, by_name);
}

static void fill_tensor(ms_tensor *t, const ms_safetensors_entry *e, uint64_t data_offset) {
    t->offset = data_offset + e->begin;
    t->bytes = e->end - e->begin;
    t->dims = e->dims;
    t->dtype = e->dtype;
    memcpy(t->shape, e->shape, sizeof t->shape);
}

/* Makes room for `count` tensors whose names take `name_bytes` with their NULs. */
static ms_status reserve(ms_checkpoint *c, size_t count, size_t name_bytes, ms_error *err) {
    c->tensors = calloc(count ? count : 1, sizeof *c->tensors);
    if (!c->tensors) return ms_fail_memory(err, "the tensor directory", count * sizeof *c->tensors);
    c->names = malloc(name_bytes ? name_bytes : 1);
    if (!c->names) return ms_fail_memory(err, "tensor names", name_bytes);
    return MS_OK;
}

static ms_tensor *add_tensor(ms_checkpoint *c, char **pool, const char *name, size_t len, size_t shard_id) {
    ms_tensor *t = &c->tensors[c->tensor_count++];
    memcpy(*pool, name, len + 1);
    t->name = *pool;
    t->shard = (uint16_t)shard_id;
    *pool += len + 1;
    return t;
}

/* ------------------------------------------------------------------ a directory without an index */

static ms_status add_all(ms_checkpoint *c, const ms_safetensors *s, ms_tensor_needed_fn *needed, void *arg,
                         ms_error *err) {
    size_t count = 0, name_bytes = 0;
    for (size_t i = 0; i < s->count; i++) {
        if (!needed(arg, s->entries[i].name, s->entries[i].name_len)) continue;
        count++;
        name_bytes += s->entries[i].name_len + 1;
    }
    MS_TRY(reserve(c, count, name_bytes, err));
    char *pool = c->names;
    for (size_t i = 0; i < s->count; i++) {
        const ms_safetensors_entry *e = &s->entries[i];
        if (needed(arg, e->name, e->name_len))
            fill_tensor(add_tensor(c, &pool, e->name, e->name_len, 0), e, s->data_offset);
    }
    sort_tensors(c);
    return MS_OK;
}

static ms_status open_single(ms_checkpoint *c, ms_tensor_needed_fn *needed, void *arg, ms_error *err) {
    char *path = join_path(c->dir, single_name, err);
    if (!path) return MS_ERR_MEMORY;
    c->shards = calloc(1, sizeof *c->shards);
    if (!c->shards) {
        free(path);
        return ms_fail_memory(err, "the shard list", sizeof *c->shards);
    }
    c->shard_count = 1;
    shard *only = &c->shards[0];
    ms_status status = open_shard(only, path, "the lack of an index", err);
    if (status != MS_OK && only->fd < 0)
        return ms_fail(err, MS_ERR_IO, "%s: expected %s or %s, found neither", c->dir, index_name, single_name);
    MS_TRY(status);
    ms_safetensors s = {0};
    char *text = NULL;
    MS_TRY(ms_safetensors_read(&s, &text, only->fd, only->file_bytes, only->path, err));
    c->totals.indexed_tensors = s.count;
    c->totals.indexed_shards = 1;
    c->totals.header_bytes = s.data_offset;
    status = add_all(c, &s, needed, arg, err);
    ms_safetensors_free(&s);
    free(text);
    return status;
}

/* ------------------------------------------------------------------ the index */

/* Names of all shards of the index, sorted; the strings are copies. */
typedef struct shard_names {
    char **list;
    size_t count;
} shard_names;

static void free_shard_names(shard_names *s) {
    for (size_t i = 0; i < s->count; i++) free(s->list[i]);
    free(s->list);
}

/* Only a plain name may come from a file: no folder, no hidden file, no way up. */
static bool plain_shard_name(const ms_json *v) {
    static const char suffix[] = ".safetensors";
    const size_t n = sizeof suffix - 1;
    if (v->type != MS_JSON_STRING || v->str_len <= n || v->str_len > MAX_SHARD_NAME) return false;
    if (memchr(v->str, 0, v->str_len) || memchr(v->str, '/', v->str_len)) return false;
    return v->str[0] != '.' && !strstr(v->str, "..") && strcmp(v->str + v->str_len - n, suffix) == 0;
}

static ms_status check_member(const ms_json *v, const char *path, ms_error *err) {
    if (v->key_len == 0 || v->key_len > MAX_TENSOR_NAME || memchr(v->key, 0, v->key_len))
        return ms_fail(err, MS_ERR_FORMAT,
                       "%s: weight_map: expected tensor names of 1 to %d bytes without U+0000, found \"%.80s\" (%zu)",
                       path, MAX_TENSOR_NAME, v->key, v->key_len);
    if (!plain_shard_name(v))
        return ms_fail(
            err, MS_ERR_FORMAT,
            "%s: weight_map: tensor \"%.200s\": expected a plain file name ending in .safetensors, found %.*s", path,
            v->key, v->raw_len < 100 ? (int)v->raw_len : 100, v->raw);
    return MS_OK;
}

static int by_text(const void *a, const void *b) { return strcmp(*(char *const *)a, *(char *const *)b); }

/* Distinct shard names.  Neighbours mostly share a shard, so few candidates are sorted. */
static ms_status collect_shards(shard_names *out, const ms_json *map, const char *path, ms_error *err) {
    const char **seen = malloc((map->count ? map->count : 1) * sizeof *seen);
    if (!seen) return ms_fail_memory(err, "shard names", map->count * sizeof *seen);
    size_t n = 0, unique = 0;
    for (const ms_json *v = map->child; v; v = v->next) {
        ms_status status = check_member(v, path, err);
        if (status != MS_OK) {
            free(seen);
            return status;
        }
        if (n == 0 || strcmp(seen[n - 1], v->str) != 0) seen[n++] = v->str;
    }
    qsort(seen, n, sizeof *seen, by_text);
    for (size_t i = 0; i < n; i++) {
        if (unique == 0 || strcmp(seen[unique - 1], seen[i]) != 0) seen[unique++] = seen[i];
    }
    ms_status status = MS_OK;
    if (unique > MAX_SHARDS)
        status = ms_fail(err, MS_ERR_FORMAT, "%s: weight_map: expected at most %d shards, found %zu", path, MAX_SHARDS,
                         unique);
    out->list = status == MS_OK ? calloc(unique ? unique : 1, sizeof *out->list) : NULL;
    if (status == MS_OK && !out->list) status = ms_fail_memory(err, "shard names", unique * sizeof *out->list);
    for (size_t i = 0; status == MS_OK && i < unique; i++) {
        out->list[i] = strdup(seen[i]);
        if (out->list[i]) out->count++;
        else status = ms_fail_memory(err, "a shard name", strlen(seen[i]) + 1);
    }
    free(seen);
    return status;
}

static size_t shard_id(const shard_names *names, const char *name, size_t guess) {
    if (strcmp(names->list[guess], name) == 0) return guess;
    char **found = bsearch(&name, names->list, names->count, sizeof *names->list, by_text);
    return (size_t)(found - names->list); /* every name was collected */
}

/* Copies what is needed out of the map: tensor names with their shard's number in `names`. */
static ms_status take_map(ms_checkpoint *c, shard_names *names, const ms_json *map, const char *path,
                          ms_tensor_needed_fn *needed, void *arg, ms_error *err) {
    MS_TRY(collect_shards(names, map, path, err));
    size_t count = 0, name_bytes = 0, guess = 0;
    for (const ms_json *v = map->child; v; v = v->next) {
        if (!needed(arg, v->key, v->key_len)) continue;
        count++;
        name_bytes += v->key_len + 1;
    }
    MS_TRY(reserve(c, count, name_bytes, err));
    char *pool = c->names;
    for (const ms_json *v = map->child; v; v = v->next) {
        if (!needed(arg, v->key, v->key_len)) continue;
        guess = shard_id(names, v->str, guess);
        (void)add_tensor(c, &pool, v->key, v->key_len, guess);
    }
    sort_tensors(c);
    c->totals.indexed_tensors = map->count;
    c->totals.indexed_shards = names->count;
    return MS_OK;
}

static void take_metadata(ms_checkpoint *c, const ms_json *metadata) {
    const ms_json *v = metadata && metadata->type == MS_JSON_OBJECT ? metadata->child : NULL;
    for (; v && c->metadata_count < MAX_METADATA; v = v->next) {
        metadata_number *m = &c->metadata[c->metadata_count];
        if (v->key_len >= sizeof m->name) continue;
        m->whole = ms_json_u64(v, &m->value);
        memcpy(m->name, v->key, v->key_len + 1);
        c->metadata_count++;
    }
}

ms_status ms_checkpoint_metadata(const ms_checkpoint *c, const char *key, uint64_t *out, ms_error *err) {
    for (size_t i = 0; i < c->metadata_count; i++) {
        if (strcmp(c->metadata[i].name, key) != 0) continue;
        if (!c->metadata[i].whole)
            return ms_fail(err, MS_ERR_FORMAT,
                           "%s/model.safetensors.index.json: metadata.%s: expected a whole number, found another value",
                           c->dir, key);
        *out = c->metadata[i].value;
        return MS_OK;
    }
    return MS_OK;
}

static ms_status read_index(ms_checkpoint *c, shard_names *names, const char *path, ms_tensor_needed_fn *needed,
                            void *arg, ms_error *err) {
    char *text = NULL;
    size_t len = 0;
    MS_TRY(ms_file_read_all(path, MAX_INDEX_BYTES, &text, &len, err));
    const ms_json_limits limits = {.max_depth = 8, .max_nodes = MAX_INDEX_NODES, .reject_duplicates = true};
    ms_json_doc *doc = NULL;
    ms_status status = ms_json_parse(&doc, text, len, path, &limits, err);
    if (status == MS_OK) {
        take_metadata(c, ms_json_get(ms_json_root(doc), "metadata"));
        const ms_json *map = ms_json_get(ms_json_root(doc), "weight_map");
        if (map && map->type == MS_JSON_OBJECT) status = take_map(c, names, map, path, needed, arg, err);
        else
            status = ms_fail(err, MS_ERR_FORMAT, "%s: weight_map: expected an object, found %s", path,
                             map ? "another value" : "nothing");
    }
    ms_json_free(doc);
    free(text);
    return status;
}

/* ------------------------------------------------------------------ shards against the index */

/* Opens the shards that hold a needed tensor and turns the tensors' shard numbers into positions among those. */
static ms_status open_needed_shards(ms_checkpoint *c, const shard_names *names, ms_error *err) {
    enum { UNUSED = UINT16_MAX };
    uint16_t place[MAX_SHARDS];
    c->shards = calloc(names->count ? names->count : 1, sizeof *c->shards);
    if (!c->shards) return ms_fail_memory(err, "the shard list", names->count * sizeof *c->shards);
    for (size_t i = 0; i < names->count; i++) place[i] = UNUSED;
    for (size_t i = 0; i < c->tensor_count; i++) place[c->tensors[i].shard] = 0;
    for (size_t i = 0; i < names->count; i++) {
        if (place[i] == UNUSED) {
            c->totals.skipped_shards++;
            continue;
        }
        place[i] = (uint16_t)c->shard_count;
        char *path = join_path(c->dir, names->list[i], err);
        if (!path) return MS_ERR_MEMORY;
        MS_TRY(open_shard(&c->shards[c->shard_count++], path, index_name, err));
    }
    for (size_t i = 0; i < c->tensor_count; i++) c->tensors[i].shard = place[c->tensors[i].shard];
    return MS_OK;
}

static ms_status match_header(ms_checkpoint *c, size_t number, const ms_safetensors *s, uint8_t *seen,
                              ms_tensor_needed_fn *needed, void *arg, ms_error *err) {
    const char *path = c->shards[number].path;
    for (size_t i = 0; i < s->count; i++) {
        const ms_safetensors_entry *e = &s->entries[i];
        if (!needed(arg, e->name, e->name_len)) continue;
        const ms_tensor *found = ms_checkpoint_find(c, e->name);
        if (!found)
            return ms_fail(err, MS_ERR_FORMAT,
                           "%s: tensor \"%.200s\": expected every tensor to be in %s, found it only here", path,
                           e->name, index_name);
        if (found->shard != number)
            return ms_fail(err, MS_ERR_FORMAT,
                           "%s: tensor \"%.200s\": expected in %s (by %s), found here: a duplicate name", path, e->name,
                           c->shards[found->shard].base, index_name);
        size_t at = (size_t)(found - c->tensors);
        seen[at] = 1;
        fill_tensor(&c->tensors[at], e, s->data_offset);
    }
    return MS_OK;
}

static ms_status read_headers(ms_checkpoint *c, uint8_t *seen, ms_tensor_needed_fn *needed, void *arg, ms_error *err) {
    for (size_t i = 0; i < c->shard_count; i++) {
        const shard *sh = &c->shards[i];
        ms_safetensors s = {0};
        char *text = NULL;
        MS_TRY(ms_safetensors_read(&s, &text, sh->fd, sh->file_bytes, sh->path, err));
        c->totals.header_bytes += s.data_offset;
        ms_status status = match_header(c, i, &s, seen, needed, arg, err);
        ms_safetensors_free(&s);
        free(text);
        MS_TRY(status);
    }
    for (size_t i = 0; i < c->tensor_count; i++) {
        if (!seen[i])
            return ms_fail(err, MS_ERR_FORMAT, "%s: tensor \"%.200s\": expected in this shard (by %s), found nothing",
                           c->shards[c->tensors[i].shard].path, c->tensors[i].name, index_name);
    }
    return MS_OK;
}

static ms_status open_indexed(ms_checkpoint *c, const char *path, ms_tensor_needed_fn *needed, void *arg,
                              ms_error *err) {
    shard_names names = {0};
    ms_status status = read_index(c, &names, path, needed, arg, err);
    if (status == MS_OK) status = open_needed_shards(c, &names, err);
    free_shard_names(&names);
    MS_TRY(status);
    uint8_t *seen = calloc(c->tensor_count ? c->tensor_count : 1, 1);
    if (!seen) return ms_fail_memory(err, "tensor marks", c->tensor_count);
    status = read_headers(c, seen, needed, arg, err);
    free(seen);
    return status;
}

/* ------------------------------------------------------------------ open, close */

static ms_status open_parts(ms_checkpoint *c, const char *dir, ms_tensor_needed_fn *needed, void *arg, ms_error *err) {
    c->dir = strdup(dir);
    if (!c->dir) return ms_fail_memory(err, "a path", strlen(dir) + 1);
    MS_TRY(ms_bundle_read(&c->bundle, dir, &c->is_bundle, err));
    char *path = join_path(dir, index_name, err);
    if (!path) return MS_ERR_MEMORY;
    struct stat st;
    bool indexed = lstat(path, &st) == 0 || errno != ENOENT;
    ms_status status = indexed ? open_indexed(c, path, needed, arg, err) : open_single(c, needed, arg, err);
    free(path);
    for (size_t i = 0; status == MS_OK && i < c->tensor_count; i++) {
        if (!ms_add_u64(c->totals.payload_bytes, c->tensors[i].bytes, &c->totals.payload_bytes))
            status = ms_fail(err, MS_ERR_FORMAT, "%s: expected less than 2^64 payload bytes", dir);
    }
    return status;
}

ms_status ms_checkpoint_open(ms_checkpoint **out, const char *dir, ms_tensor_needed_fn *needed, void *arg,
                             ms_error *err) {
    ms_checkpoint *c = calloc(1, sizeof *c);
    if (!c) return ms_fail_memory(err, "a checkpoint", sizeof *c);
    ms_status status = open_parts(c, dir, needed, arg, err);
    if (status == MS_OK) *out = c;
    else ms_checkpoint_close(c);
    return status;
}

void ms_checkpoint_close(ms_checkpoint *c) {
    if (!c) return;
    for (size_t i = 0; i < c->shard_count; i++) {
        if (c->shards[i].fd >= 0) (void)close(c->shards[i].fd);
        free(c->shards[i].path);
    }
    free(c->shards);
    free(c->tensors);
    free(c->names);
    free(c->dir);
    free(c);
}

/* ------------------------------------------------------------------ reading */

const char *ms_checkpoint_dir(const ms_checkpoint *c) { return c->dir; }
size_t ms_checkpoint_tensor_count(const ms_checkpoint *c) { return c->tensor_count; }
const ms_tensor *ms_checkpoint_tensor(const ms_checkpoint *c, size_t index) { return &c->tensors[index]; }
size_t ms_checkpoint_shard_count(const ms_checkpoint *c) { return c->shard_count; }
const char *ms_checkpoint_shard_path(const ms_checkpoint *c, size_t number) { return c->shards[number].path; }
void ms_checkpoint_get_totals(const ms_checkpoint *c, ms_checkpoint_totals *out) { *out = c->totals; }

static uint64_t digest_u64(uint64_t h, uint64_t v) {
    uint8_t bytes[8];
    ms_put_le64(bytes, v);
    return ms_fnv1a64(h, bytes, sizeof bytes);
}

const ms_bundle *ms_checkpoint_bundle(const ms_checkpoint *c) { return c->is_bundle ? &c->bundle : NULL; }

uint64_t ms_checkpoint_layout_digest(const ms_checkpoint *c) {
    if (c->is_bundle) return c->bundle.layout_digest;
    uint64_t h = MS_FNV1A64_INIT;
    for (size_t i = 0; i < c->shard_count; i++) h = ms_fnv1a64(h, c->shards[i].base, strlen(c->shards[i].base) + 1);
    for (size_t i = 0; i < c->tensor_count; i++) {
        const ms_tensor *t = &c->tensors[i];
        h = ms_fnv1a64(h, t->name, strlen(t->name) + 1);
        h = digest_u64(h, (uint64_t)t->dtype | (uint64_t)t->dims << 8 | (uint64_t)t->shard << 16);
        for (unsigned d = 0; d < t->dims; d++) h = digest_u64(h, t->shape[d]);
        h = digest_u64(h, t->offset);
    }
    return h;
}

ms_status ms_checkpoint_read(const ms_checkpoint *c, const ms_tensor *t, uint64_t at, void *to, size_t length,
                             ms_error *err) {
    if (at > t->bytes || length > t->bytes - at)
        return ms_fail(err, MS_ERR_USAGE,
                       "tensor \"%.200s\": expected a read within %llu bytes, found %zu bytes at %llu", t->name,
                       (unsigned long long)t->bytes, length, (unsigned long long)at);
    if (length == 0) return MS_OK;
    const shard *s = &c->shards[t->shard];
    return ms_file_pread_exact(s->fd, s->path, to, length, t->offset + at, err);
}

ms_status ms_checkpoint_read_shard(const ms_checkpoint *c, size_t number, uint64_t offset, void *to, size_t length,
                                   ms_error *err) {
    return ms_file_pread_exact(c->shards[number].fd, c->shards[number].path, to, length, offset, err);
}

/* "[3072, 1792]" */
static void put_shape(char *out, size_t size, unsigned dims, const uint64_t *shape) {
    size_t n = 0;
    for (unsigned i = 0; i < dims && n < size; i++)
        n += (size_t)snprintf(out + n, size - n, "%s%llu", i ? ", " : "[", (unsigned long long)shape[i]);
    if (n < size) (void)snprintf(out + n, size - n, dims ? "]" : "[]");
}

ms_status ms_checkpoint_expect(const ms_checkpoint *c, const char *name, ms_dtype dtype, unsigned dims,
                               const uint64_t *shape, const ms_tensor **out, ms_error *err) {
    const ms_tensor *t = ms_checkpoint_find(c, name);
    if (!t) return ms_fail(err, MS_ERR_FORMAT, "missing tensor \"%.200s\"", name);
    if (t->dtype != (uint8_t)dtype)
        return ms_fail(err, MS_ERR_FORMAT, "tensor \"%.200s\": dtype: expected %s, found %s", name,
                       ms_dtype_name(dtype), ms_dtype_name((ms_dtype)t->dtype));
    if (t->dims != dims || memcmp(t->shape, shape, dims * sizeof *shape) != 0) {
        char expected[100], found[100];
        put_shape(expected, sizeof expected, dims, shape);
        put_shape(found, sizeof found, t->dims, t->shape);
        return ms_fail(err, MS_ERR_FORMAT, "tensor \"%.200s\": shape: expected %s, found %s", name, expected, found);
    }
    if (out) *out = t;
    return MS_OK;
}
