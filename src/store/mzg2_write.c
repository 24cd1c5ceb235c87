/* mzg2_write.c: one layer file: a pass over a sample of its experts to fit the tables, a pass to code all.  Each block
 * is decoded again and compared before the next is read. */
#include <lzma.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "io/file.h"
#include "store/mzg2_signs.h"
#include "store/mzg2_work.h"

enum { OFFSET_BYTES = 8, CRC_BYTES = 4, PIECE = 1 << 20 };

typedef struct writing {
    mzg2_worker *w;
    const ms_mzg2_source *s;
    const ms_mzg2_parameters *p;
    uint32_t moe_layer;
    ms_mzg2_layer layer;
    ms_mzg2_encoder *encoder;
    mzg2_output blocks, signs;
    bool with_signs;
    uint8_t *offsets; /* of the file of signs */
    ms_sha256 *source_sha, *canonical_sha;
    mzg2_outcome *outcome;
} writing;

/* ------------------------------------------------------------------ fitting */

static ms_status stopped(mzg2_outcome *o, ms_error *err) {
    return mzg2_outcome_good(o) ? MS_OK : ms_fail(err, MS_ERR_CANCELLED, "cancelled");
}

static ms_status fit(writing *t, ms_error *err) {
    uint32_t experts = t->s->experts->expert_count, step = (experts + t->p->sample - 1) / t->p->sample;
    ms_mzg2_fit_options o = {.tables = t->p->tables, .column_classes = t->p->column_classes};
    ms_mzg2_fit_destroy(t->w->fit);
    t->w->fit = NULL;
    MS_TRY(ms_mzg2_fit_create(&t->w->fit, t->s->shape, &o, err));
    for (uint32_t e = 0; e < experts; e += step) {
        MS_TRY(stopped(t->outcome, err));
        MS_TRY(mzg2_read_source(t->w->source, t->s, t->moe_layer, e, err));
        ms_mzg2_clear_zeros(t->w->source, t->s->shape);
        ms_mzg2_fit_add(t->w->fit, t->w->source);
    }
    return ms_mzg2_fit_sets(t->w->fit, t->layer.set, err);
}

/* ------------------------------------------------------------------ experts */

/* What the decoder gives must be the canonical bytes in slot layout. */
static ms_status check_block(writing *t, uint32_t expert, uint32_t stored, ms_error *err) {
    mzg2_worker *w = t->w;
    ms_mzg2_block b;
    MS_TRY(ms_expert_install(w->image, w->canonical, t->s->shape, err));
    MS_TRY(ms_mzg2_block_open(&b, w->block, stored, expert, t->s->shape, err));
    MS_TRY(ms_mzg2_decode(ms_mzg2_codec_find(NULL), w->slot, &b, w->tables, err));
    if (memcmp(w->slot, w->image, ms_expert_bytes(t->s->shape)) == 0) return MS_OK;
    return ms_fail(err, MS_ERR_INTERNAL, "the block decodes to other bytes");
}

static ms_status write_signs(writing *t, uint32_t expert, ms_error *err) {
    if (!t->with_signs) return MS_OK;
    size_t n = ms_mzg2_signs_take(t->w->signs, t->w->source, t->s->shape);
    ms_put_le64(t->offsets + (size_t)expert * OFFSET_BYTES, t->signs.at);
    return mzg2_output_write(&t->signs, t->w->signs, n, err);
}

static ms_status write_expert(writing *t, uint32_t expert, ms_error *err) {
    mzg2_worker *w = t->w;
    size_t bytes = ms_expert_bytes(t->s->shape);
    MS_TRY(mzg2_read_source(w->source, t->s, t->moe_layer, expert, err));
    ms_sha256_add(t->source_sha, w->source, bytes);
    MS_TRY(write_signs(t, expert, err));
    memcpy(w->canonical, w->source, bytes);
    ms_mzg2_clear_zeros(w->canonical, t->s->shape);
    ms_sha256_add(t->canonical_sha, w->canonical, bytes);
    ms_mzg2_entry *e = &t->layer.index[expert];
    ms_mzg2_encode(t->encoder, w->block, w->canonical, expert, &e->payload_bytes, &e->stored_bytes);
    if (check_block(t, expert, e->stored_bytes, err) != MS_OK)
        return ms_error_context(err, "layer %u, expert %u", (unsigned)t->layer.layer, (unsigned)expert);
    e->offset = t->blocks.at;
    e->crc = lzma_crc32(w->block, e->payload_bytes, 0);
    MS_TRY(mzg2_output_write(&t->blocks, w->block, e->stored_bytes, err));
    mzg2_outcome_progress(t->outcome, bytes);
    return MS_OK;
}

/* ------------------------------------------------------------------ files */

static ms_status finish_signs(writing *t, ms_mzg2_layer_record *record, bool replace, ms_error *err) {
    if (!t->with_signs) return MS_OK;
    uint64_t end = t->signs.at;
    uint32_t crc = 0;
    uint8_t *piece = malloc(PIECE), last[CRC_BYTES];
    if (!piece) return ms_fail_memory(err, "a file of signs", PIECE);
    ms_status st = mzg2_output_patch(&t->signs, 0, t->offsets, (size_t)t->layer.experts * OFFSET_BYTES, err);
    for (uint64_t at = 0; st == MS_OK && at < end; at += PIECE) {
        size_t n = end - at < PIECE ? (size_t)(end - at) : PIECE;
        st = ms_file_pread_exact(t->signs.fd, t->signs.temporary, piece, n, at, err);
        if (st == MS_OK) crc = lzma_crc32(piece, n, crc);
    }
    free(piece);
    MS_TRY(st);
    ms_put_le32(last, crc);
    MS_TRY(mzg2_output_write(&t->signs, last, sizeof last, err));
    record->signs_bytes = t->signs.at;
    return mzg2_output_finish(&t->signs, replace, record->signs_sha, err);
}

static ms_status finish_blocks(writing *t, ms_mzg2_layer_record *record, bool replace, ms_error *err) {
    ms_mzg2_layer *l = &t->layer;
    l->file_bytes = t->blocks.at;
    ms_sha256_end(t->source_sha, l->source_sha);
    ms_sha256_end(t->canonical_sha, l->canonical_sha);
    t->source_sha = t->canonical_sha = NULL;
    uint8_t *front = malloc((size_t)l->first_block);
    if (!front) return ms_fail_memory(err, "the front of a layer file", (size_t)l->first_block);
    ms_mzg2_layer_write(front, l);
    ms_status st = mzg2_output_patch(&t->blocks, 0, front, (size_t)l->first_block, err);
    free(front);
    MS_TRY(st);
    record->layer = l->layer;
    record->bytes = l->file_bytes;
    for (uint32_t e = 0; e < l->experts; e++) record->payload_bytes += l->index[e].payload_bytes;
    memcpy(record->source_sha, l->source_sha, sizeof l->source_sha);
    memcpy(record->canonical_sha, l->canonical_sha, sizeof l->canonical_sha);
    return mzg2_output_finish(&t->blocks, replace, record->sha, err);
}

static ms_status write_all(writing *t, const char *path, const char *signs_path, bool replace,
                           ms_mzg2_layer_record *record, ms_error *err) {
    ms_mzg2_layer *l = &t->layer;
    l->index = calloc(l->experts, sizeof *l->index);
    t->offsets = calloc(l->experts, OFFSET_BYTES);
    if (!l->index || !t->offsets) return ms_fail_memory(err, "an index", l->experts * sizeof *l->index);
    MS_TRY(mzg2_output_open(&t->blocks, path, err));
    if (signs_path) {
        MS_TRY(mzg2_output_open(&t->signs, signs_path, err));
        t->with_signs = true;
        t->signs.at = (uint64_t)l->experts * OFFSET_BYTES;
    }
    MS_TRY(fit(t, err));
    ms_mzg2_tables_expand(t->w->tables, l);
    l->first_block = t->blocks.at = ms_mzg2_layer_front_bytes(l->set, l->experts);
    MS_TRY(ms_mzg2_encoder_create(&t->encoder, l->shape, l->set, t->p->column_classes, err));
    MS_TRY(ms_sha256_begin(&t->source_sha, err));
    MS_TRY(ms_sha256_begin(&t->canonical_sha, err));
    for (uint32_t e = 0; e < l->experts; e++) {
        MS_TRY(stopped(t->outcome, err));
        MS_TRY(write_expert(t, e, err));
    }
    MS_TRY(finish_signs(t, record, replace, err));
    return finish_blocks(t, record, replace, err);
}

ms_status mzg2_write_layer(mzg2_worker *w, const ms_mzg2_source *s, uint32_t moe_layer, const ms_mzg2_parameters *p,
                           const char *path, const char *signs_path, bool replace, mzg2_outcome *outcome,
                           ms_mzg2_layer_record *record, ms_error *err) {
    writing t = {.w = w, .s = s, .p = p, .moe_layer = moe_layer, .outcome = outcome, .blocks.fd = -1, .signs.fd = -1};
    t.layer =
        (ms_mzg2_layer){.layer = s->experts->layers[moe_layer], .experts = s->experts->expert_count, .shape = s->shape};
    *record = (ms_mzg2_layer_record){0};
    ms_status st = write_all(&t, path, signs_path, replace, record, err);
    mzg2_output_drop(&t.blocks);
    mzg2_output_drop(&t.signs);
    ms_sha256_drop(t.source_sha);
    ms_sha256_drop(t.canonical_sha);
    ms_mzg2_encoder_destroy(t.encoder);
    ms_mzg2_layer_free(&t.layer);
    free(t.offsets);
    return st;
}
