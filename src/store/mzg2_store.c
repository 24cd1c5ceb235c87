#include "store/mzg2_store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct stored_layer {
    char *path;
    ms_mzg2_layer front;
} stored_layer;

struct ms_mzg2_store {
    stored_layer *layers;
    uint32_t count, experts;
    uint64_t memory;
};

static ms_status check_front(const ms_mzg2_layer *f, const ms_mzg2_layer_record *r, const ms_mzg2_identity *id,
                             const char *path, ms_error *err) {
    if (f->layer != r->layer)
        return ms_fail(err, MS_ERR_FORMAT, "%s: layer: expected %u, found %u", path, (unsigned)r->layer,
                       (unsigned)f->layer);
    if (f->experts != id->experts)
        return ms_fail(err, MS_ERR_FORMAT, "%s: experts: expected %u, found %u", path, (unsigned)id->experts,
                       (unsigned)f->experts);
    if (f->shape.hidden != id->shape.hidden || f->shape.inner != id->shape.inner)
        return ms_fail(err, MS_ERR_FORMAT, "%s: widths: expected %u and %u, found %u and %u", path,
                       (unsigned)id->shape.hidden, (unsigned)id->shape.inner, (unsigned)f->shape.hidden,
                       (unsigned)f->shape.inner);
    if (memcmp(f->canonical_sha, r->canonical_sha, sizeof f->canonical_sha) != 0 ||
        memcmp(f->source_sha, r->source_sha, sizeof f->source_sha) != 0)
        return ms_fail(err, MS_ERR_FORMAT, "%s: header SHA-256: expected the manifest's, found another", path);
    return MS_OK;
}

static ms_status open_front(stored_layer *l, const ms_mzg2_layer_record *r, const ms_mzg2_identity *id, ms_error *err) {
    struct stat st;
    int fd = open(l->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "layer %u: %s", (unsigned)r->layer, l->path);
    ms_status status = MS_OK;
    if (fstat(fd, &st) != 0)
        status = ms_fail_errno(err, MS_ERR_IO, errno, "%s: stat", l->path);
    else if (!S_ISREG(st.st_mode))
        status = ms_fail_not_regular(err, l->path, st.st_mode);
    else if ((uint64_t)st.st_size != r->bytes)
        status = ms_fail(err, MS_ERR_FORMAT, "%s: length: expected %llu, found %llu", l->path,
                         (unsigned long long)r->bytes, (unsigned long long)st.st_size);
    if (status == MS_OK) status = ms_mzg2_layer_read(&l->front, fd, l->path, r->bytes, err);
    if (status == MS_OK) status = check_front(&l->front, r, id, l->path, err);
    (void)close(fd);
    return status;
}

/* A bundle names its store by digest; else the weights must be those that are there. */
static ms_status check_identity(const ms_mzg2_manifest *m, const char *dir, const ms_mzg2_source *source,
                                const uint8_t *manifest_sha, ms_error *err) {
    ms_mzg2_identity want;
    if (!manifest_sha) {
        MS_TRY(ms_mzg2_identify(&want, source, err));
    } else {
        if (memcmp(manifest_sha, m->sha, MS_SHA256_BYTES) != 0)
            return ms_fail(err, MS_ERR_FORMAT,
                           "%s/manifest.json: SHA-256: expected the one that the bundle names, found another", dir);
        want = m->identity;
        want.layers = source->experts->layer_count;
        want.experts = source->experts->expert_count;
        want.shape = source->shape;
        (void)snprintf(want.lane, sizeof want.lane, "%s", source->lane);
    }
    MS_TRY(ms_mzg2_same_identity(&want, &m->identity, dir, err));
    for (uint32_t l = 0; l < m->identity.layers; l++)
        if (m->layers[l].layer != source->experts->layers[l])
            return ms_fail(err, MS_ERR_FORMAT, "%s: layers: expected layer %u, found %u", dir,
                           (unsigned)source->experts->layers[l], (unsigned)m->layers[l].layer);
    return MS_OK;
}

static ms_status open_layers(ms_mzg2_store *s, const ms_mzg2_manifest *m, const char *dir, ms_error *err) {
    s->layers = calloc(m->identity.layers + 1, sizeof *s->layers);
    if (!s->layers) return ms_fail_memory(err, dir, m->identity.layers * sizeof *s->layers);
    s->experts = m->identity.experts;
    for (uint32_t l = 0; l < m->identity.layers; l++) {
        char name[MS_MZG2_NAME];
        size_t bytes = strlen(dir) + 1 + sizeof name;
        ms_mzg2_layer_name(name, m->layers[l].layer);
        stored_layer *layer = &s->layers[s->count++];
        layer->path = malloc(bytes);
        if (!layer->path) return ms_fail_memory(err, dir, bytes);
        (void)snprintf(layer->path, bytes, "%s/%s", dir, name);
        MS_TRY(open_front(layer, &m->layers[l], &m->identity, err));
        s->memory += sizeof *layer + bytes + s->experts * sizeof(ms_mzg2_entry);
    }
    return MS_OK;
}

ms_status ms_mzg2_store_open(ms_mzg2_store **out, const char *dir, const ms_mzg2_source *source,
                             const uint8_t *manifest_sha, ms_error *err) {
    ms_mzg2_manifest m;
    ms_mzg2_store *s = calloc(1, sizeof *s);
    if (!s) return ms_fail_memory(err, "a store", sizeof *s);
    ms_status st = ms_mzg2_manifest_read(&m, dir, err);
    if (st == MS_OK) {
        st = check_identity(&m, dir, source, manifest_sha, err);
        if (st == MS_OK) st = open_layers(s, &m, dir, err);
        ms_mzg2_manifest_free(&m);
    }
    if (st == MS_OK)
        *out = s;
    else
        ms_mzg2_store_close(s);
    return st;
}

void ms_mzg2_store_close(ms_mzg2_store *s) {
    if (!s) return;
    for (uint32_t l = 0; l < s->count; l++) {
        free(s->layers[l].path);
        ms_mzg2_layer_free(&s->layers[l].front);
    }
    free(s->layers);
    free(s);
}

const ms_mzg2_layer *ms_mzg2_store_layer(const ms_mzg2_store *s, uint32_t moe_layer) {
    return &s->layers[moe_layer].front;
}
const char *ms_mzg2_store_path(const ms_mzg2_store *s, uint32_t moe_layer) { return s->layers[moe_layer].path; }
uint64_t ms_mzg2_store_memory(const ms_mzg2_store *s) { return s->memory; }

double ms_mzg2_store_saving(const ms_mzg2_store *s) {
    double stored = 0, raw = 0;
    for (uint32_t l = 0; l < s->count; l++) {
        for (uint32_t e = 0; e < s->experts; e++) stored += s->layers[l].front.index[e].stored_bytes;
        raw += (double)s->experts * (double)ms_expert_bytes(s->layers[l].front.shape);
    }
    return raw > 0 ? 1 - stored / raw : 0;
}

void ms_mzg2_store_bind(const ms_mzg2_store *s, ms_expert_table *table) {
    table->store = s;
    table->read_bytes = 0;
    for (uint32_t l = 0; l < s->count; l++)
        for (uint32_t e = 0; e < s->experts; e++) {
            const ms_mzg2_entry *x = &s->layers[l].front.index[e];
            table->extents[(size_t)l * s->experts + e] =
                (ms_expert_extent){.offset = x->offset, .bytes = x->stored_bytes, .shard = (uint16_t)l};
            if (x->stored_bytes > table->read_bytes) table->read_bytes = x->stored_bytes;
        }
}
