/* state_file.c: export and import of the causal state, file format version 1 (docs/formats.md, "Causal-state file").
 *
 * Every header field has exactly one acceptable value for a given session and position: import builds the header that
 * the session itself would write at the file's position and compares.
 *
 * A state image (state_image.h) is the same bytes in memory.
 *
 * Import reads through one descriptor, twice.  The first pass checks the payload CRC and keeps the token ids; nothing
 * of the session is touched.  The second loads fixed parts into the copies in progress and rows into place, and
 * computes the CRC of what was loaded: a file that changed in between is noticed.  If rows had been overwritten by then
 * the session is reset.
 *
 * Owns: descriptor and buffers of one call.  Threads: the inference thread.
 * Errors: MS_ERR_FORMAT (damage), MS_ERR_UNSUPPORTED (another version, model, precision, context ...), MS_ERR_IO,
 *   MS_ERR_MEMORY, the backend's.  Messages name the file.
 */
#include "session/session_internal.h"
#include "session/state_image.h"

#include "base/bytes.h"
#include "base/crc64.h"
#include "io/file.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    HEADER_BYTES = 256,
    FILE_VERSION = 1,
    MAX_SEGMENTS = 8,
    KIND_BYTES = 8,
    LANE_BYTES = 32,
    PIECE_BYTES = 1 << 20,
    TOKEN_BYTES = 4,
    /* offsets of the header's fields */
    AT_VERSION = 8,
    AT_ENDIAN = 12,
    AT_LENGTH = 16,
    AT_PRECISION = 20,
    AT_STATIC = 24,
    AT_VOCAB = 28,
    AT_LANE = 32,
    AT_CONTEXT = 64,
    AT_POSITION = 72,
    AT_LAYOUT = 80,
    AT_IDENTITY = 88,
    AT_PARTS = 96,
    AT_SEGMENTS = 100,
    AT_SEGMENT = 104,
    AT_PAYLOAD = 232,
    AT_PAYLOAD_CRC = 240,
    AT_HEADER_CRC = 248
};
#define ENDIAN_MARK UINT32_C(0x01020304)

static const char file_magic[AT_VERSION] = "MSSTATE";

typedef struct state_segment {
    char kind[KIND_BYTES];
    uint64_t bytes;
} state_segment;

typedef struct state_header {
    char lane[LANE_BYTES];
    uint32_t precision, static_format, vocab, parts, segments;
    uint64_t context, position, layout, identity;
    state_segment segment[MAX_SEGMENTS];
    uint64_t payload_bytes, payload_crc;
} state_header;

/* ------------------------------------------------------------------ header */

/* 0 is no value of these fields: a zeroed block must not look like one. */
static uint32_t precision_code(const ms_engine_options *o) {
    return (o->precision == MS_PRECISION_REFERENCE ? 2u : 1u) + (o->range_blas ? 2u : 0u);
}
static uint32_t static_code(ms_static_format f) { return f == MS_STATIC_BF16 ? 2 : 1; }
static const char *precision_word(uint32_t code) {
    static const char *const words[] = {"unknown", "fast", "reference", "fast with range backend blas",
                                        "reference with range backend blas"};
    return words[code < sizeof words / sizeof *words ? code : 0];
}
static const char *static_word(uint32_t code) { return code == 1 ? "q8" : code == 2 ? "bf16" : "unknown"; }

/* The header of session `s` as it would be at `position`, payload CRC 0. */
static ms_status describe(const ms_session *s, uint64_t position, state_header *h, ms_error *err) {
    const ms_engine *e = s->engine;
    memset(h, 0, sizeof *h);
    size_t name = strlen(e->model.lane->name);
    if (name >= sizeof h->lane) return ms_fail(err, MS_ERR_INTERNAL, "lane name %s is too long", e->model.lane->name);
    memcpy(h->lane, e->model.lane->name, name);
    h->precision = precision_code(&e->options);
    h->static_format = static_code(e->options.static_format);
    h->vocab = e->model.info.vocab;
    h->context = s->state.context;
    h->position = position;
    h->layout = ms_checkpoint_layout_digest(e->model.checkpoint);
    h->identity = ms_session_identity(s);
    h->parts = s->state.part_count;
    bool fits = ms_mul_u64(position, TOKEN_BYTES, &h->payload_bytes);
    for (uint32_t i = 0; i < h->parts && fits; i++) {
        const ms_state_part *p = &s->state.parts[i];
        if (i == 0 || strcmp(p->kind, s->state.parts[i - 1].kind) != 0) {
            if (h->segments == MAX_SEGMENTS || strlen(p->kind) >= KIND_BYTES) {
                return ms_fail(err, MS_ERR_INTERNAL, "state kind %s does not fit a state file", p->kind);
            }
            memcpy(h->segment[h->segments++].kind, p->kind, strlen(p->kind));
        }
        uint64_t bytes, *sum = &h->segment[h->segments - 1].bytes;
        fits = !p->row_bytes || ms_mul_u64(p->row_bytes, position, &bytes);
        bytes = fits ? ms_state_bytes_at(p, position) : 0;
        fits = fits && ms_add_u64(*sum, bytes, sum) && ms_add_u64(h->payload_bytes, bytes, &h->payload_bytes);
    }
    if (!fits || h->payload_bytes > INT64_MAX - HEADER_BYTES) {
        return ms_fail(err, MS_ERR_UNSUPPORTED, "the state at position %" PRIu64 " is too large for a file", position);
    }
    return MS_OK;
}

static uint64_t header_crc(const uint8_t *raw) {
    const uint8_t zero[HEADER_BYTES - AT_HEADER_CRC] = {0};
    return ms_crc64(ms_crc64(0, raw, AT_HEADER_CRC), zero, sizeof zero);
}

static void encode(const state_header *h, uint8_t *raw) {
    memset(raw, 0, HEADER_BYTES);
    memcpy(raw, file_magic, sizeof file_magic);
    ms_put_le32(raw + AT_VERSION, FILE_VERSION);
    ms_put_le32(raw + AT_ENDIAN, ENDIAN_MARK);
    ms_put_le32(raw + AT_LENGTH, HEADER_BYTES);
    ms_put_le32(raw + AT_PRECISION, h->precision);
    ms_put_le32(raw + AT_STATIC, h->static_format);
    ms_put_le32(raw + AT_VOCAB, h->vocab);
    memcpy(raw + AT_LANE, h->lane, LANE_BYTES);
    ms_put_le64(raw + AT_CONTEXT, h->context);
    ms_put_le64(raw + AT_POSITION, h->position);
    ms_put_le64(raw + AT_LAYOUT, h->layout);
    ms_put_le64(raw + AT_IDENTITY, h->identity);
    ms_put_le32(raw + AT_PARTS, h->parts);
    ms_put_le32(raw + AT_SEGMENTS, h->segments);
    for (uint32_t i = 0; i < MAX_SEGMENTS; i++) {
        uint8_t *to = raw + AT_SEGMENT + i * (KIND_BYTES + 8);
        memcpy(to, h->segment[i].kind, KIND_BYTES);
        ms_put_le64(to + KIND_BYTES, h->segment[i].bytes);
    }
    ms_put_le64(raw + AT_PAYLOAD, h->payload_bytes);
    ms_put_le64(raw + AT_PAYLOAD_CRC, h->payload_crc);
    ms_put_le64(raw + AT_HEADER_CRC, header_crc(raw));
}

static void decode(const uint8_t *raw, state_header *h) {
    h->precision = ms_le32(raw + AT_PRECISION);
    h->static_format = ms_le32(raw + AT_STATIC);
    h->vocab = ms_le32(raw + AT_VOCAB);
    memcpy(h->lane, raw + AT_LANE, LANE_BYTES);
    h->context = ms_le64(raw + AT_CONTEXT);
    h->position = ms_le64(raw + AT_POSITION);
    h->layout = ms_le64(raw + AT_LAYOUT);
    h->identity = ms_le64(raw + AT_IDENTITY);
    h->parts = ms_le32(raw + AT_PARTS);
    h->segments = ms_le32(raw + AT_SEGMENTS);
    for (uint32_t i = 0; i < MAX_SEGMENTS; i++) {
        const uint8_t *from = raw + AT_SEGMENT + i * (KIND_BYTES + 8);
        memcpy(h->segment[i].kind, from, KIND_BYTES);
        h->segment[i].bytes = ms_le64(from + KIND_BYTES);
    }
    h->payload_bytes = ms_le64(raw + AT_PAYLOAD);
    h->payload_crc = ms_le64(raw + AT_PAYLOAD_CRC);
}

/* Whether this is an undamaged version 1 header at all. */
static ms_status check_envelope(const char *path, const uint8_t *raw, ms_error *err) {
    if (memcmp(raw, file_magic, sizeof file_magic) != 0) {
        return ms_fail(err, MS_ERR_FORMAT, "%s: magic: expected \"%s\"; not a causal-state file", path, file_magic);
    }
    uint32_t version = ms_le32(raw + AT_VERSION), endian = ms_le32(raw + AT_ENDIAN), length = ms_le32(raw + AT_LENGTH);
    if (version != FILE_VERSION) {
        return ms_fail(err, MS_ERR_UNSUPPORTED, "%s: version: expected %d, found %" PRIu32, path, FILE_VERSION,
                       version);
    }
    if (endian != ENDIAN_MARK) {
        return ms_fail(err, MS_ERR_FORMAT, "%s: byte order mark: expected 0x%08" PRIx32 ", found 0x%08" PRIx32, path,
                       ENDIAN_MARK, endian);
    }
    if (length != HEADER_BYTES) {
        return ms_fail(err, MS_ERR_FORMAT, "%s: header length: expected %d, found %" PRIu32, path, HEADER_BYTES,
                       length);
    }
    uint64_t want = header_crc(raw), found = ms_le64(raw + AT_HEADER_CRC);
    if (want != found) {
        return ms_fail(err, MS_ERR_FORMAT,
                       "%s: header CRC: expected %016" PRIx64 ", found %016" PRIx64 "; the header is damaged", path,
                       want, found);
    }
    return MS_OK;
}

/* One text of all differences, so that the user sees them together. */
typedef struct difference_list {
    char text[640];
    size_t length;
} difference_list;

static void MS_PRINTF(2, 3) differ(difference_list *d, const char *fmt, ...) {
    size_t room = sizeof d->text - d->length;
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(d->text + d->length, room, fmt, ap);
    va_end(ap);
    if (n > 0) d->length += (size_t)n < room ? (size_t)n : room - 1;
}

/* Whether the file was written by a session like this one. */
static ms_status check_origin(const char *path, const state_header *want, const state_header *found, ms_error *err) {
    difference_list d = {.length = 0};
    d.text[0] = '\0';
    if (memcmp(want->lane, found->lane, LANE_BYTES) != 0) {
        differ(&d, "; lane: expected %.31s, found %.31s", want->lane, found->lane);
    }
    if (want->precision != found->precision) {
        differ(&d, "; precision: expected %s, found %s", precision_word(want->precision),
               precision_word(found->precision));
    }
    if (want->static_format != found->static_format) {
        differ(&d, "; static format: expected %s, found %s", static_word(want->static_format),
               static_word(found->static_format));
    }
    if (want->context != found->context) {
        differ(&d, "; context: expected %" PRIu64 ", found %" PRIu64, want->context, found->context);
    }
    if (want->vocab != found->vocab) {
        differ(&d, "; vocabulary: expected %" PRIu32 ", found %" PRIu32, want->vocab, found->vocab);
    }
    if (want->layout != found->layout) {
        differ(&d, "; checkpoint layout: expected %016" PRIx64 ", found %016" PRIx64, want->layout, found->layout);
    }
    /* The identity covers fields above: alone it says that the state's own layout is another. */
    if (d.length == 0 && want->identity != found->identity) {
        differ(&d, "; state layout: expected %016" PRIx64 ", found %016" PRIx64, want->identity, found->identity);
    }
    if (d.length == 0) return MS_OK;
    return ms_fail(err, MS_ERR_UNSUPPORTED, "%s: the state is from another setup: %s", path, d.text + 2);
}

/* Whether sizes are those of the file's position. */
static ms_status check_sizes(const char *path, const state_header *want, const state_header *found, ms_error *err) {
    if (want->parts != found->parts) {
        return ms_fail(err, MS_ERR_FORMAT, "%s: part count: expected %" PRIu32 ", found %" PRIu32, path, want->parts,
                       found->parts);
    }
    if (want->segments != found->segments) {
        return ms_fail(err, MS_ERR_FORMAT, "%s: segment count: expected %" PRIu32 ", found %" PRIu32, path,
                       want->segments, found->segments);
    }
    for (uint32_t i = 0; i < MAX_SEGMENTS; i++) {
        const state_segment *w = &want->segment[i], *f = &found->segment[i];
        if (memcmp(w->kind, f->kind, KIND_BYTES) != 0 || w->bytes != f->bytes) {
            return ms_fail(err, MS_ERR_FORMAT,
                           "%s: segment %" PRIu32 ": expected \"%s\" of %" PRIu64 " bytes, found \"%.7s\" of %" PRIu64,
                           path, i, w->kind, w->bytes, f->kind, f->bytes);
        }
    }
    if (want->payload_bytes != found->payload_bytes) {
        return ms_fail(err, MS_ERR_FORMAT, "%s: payload length: expected %" PRIu64 ", found %" PRIu64, path,
                       want->payload_bytes, found->payload_bytes);
    }
    return MS_OK;
}

/* ------------------------------------------------------------------ export */

/* Where a state goes: a file, or memory of the whole length. */
typedef struct state_output {
    ms_file_writer *file; /* NULL: memory */
    uint8_t *memory;
    uint64_t used;  /* of memory */
    uint8_t *piece; /* PIECE_BYTES of scratch */
    state_header *header;
} state_output;

static ms_status write_piece(state_output *o, const void *data, size_t n, ms_error *err) {
    o->header->payload_crc = ms_crc64(o->header->payload_crc, data, n);
    if (o->file) return ms_file_writer_write(o->file, data, n, err);
    memcpy(o->memory + o->used, data, n);
    o->used += n;
    return MS_OK;
}

static ms_status write_part(state_output *o, const ms_state *state, const ms_state_part *p, ms_error *err) {
    ms_backend *be = state->backend;
    uint64_t bytes = ms_state_part_bytes(state, p);
    for (uint64_t at = 0; at < bytes;) {
        size_t n = bytes - at < PIECE_BYTES ? (size_t)(bytes - at) : PIECE_BYTES;
        const uint8_t *from = ms_state_span(p, state->position, at, &n);
        be->download(be, o->piece, from, n);
        MS_TRY(be->sync(be, err));
        MS_TRY(write_piece(o, o->piece, n, err));
        at += n;
    }
    return MS_OK;
}

static ms_status write_tokens(state_output *o, const uint32_t *tokens, ms_error *err) {
    const size_t most = PIECE_BYTES / TOKEN_BYTES;
    for (uint64_t at = 0; at < o->header->position; at += most) {
        size_t n = o->header->position - at < most ? (size_t)(o->header->position - at) : most;
        for (size_t i = 0; i < n; i++) ms_put_le32(o->piece + i * TOKEN_BYTES, tokens[at + i]);
        MS_TRY(write_piece(o, o->piece, n * TOKEN_BYTES, err));
    }
    return MS_OK;
}

/* The payload; the header is complete afterwards. */
static ms_status write_payload(state_output *o, const ms_session *s, ms_error *err) {
    o->piece = malloc(PIECE_BYTES);
    if (!o->piece) return ms_fail_memory(err, "export buffer", PIECE_BYTES);
    ms_status status = MS_OK;
    for (uint32_t i = 0; i < s->state.part_count && status == MS_OK; i++) {
        status = write_part(o, &s->state, &s->state.parts[i], err);
    }
    if (status == MS_OK) status = write_tokens(o, s->tokens, err);
    free(o->piece);
    return status;
}

/* The header goes first as zeros and is patched in when the payload's CRC is known. */
static ms_status write_file(ms_file_writer *w, const ms_session *s, state_header *h, ms_error *err) {
    uint8_t raw[HEADER_BYTES] = {0};
    state_output o = {.file = w, .header = h};
    MS_TRY(ms_file_writer_write(w, raw, HEADER_BYTES, err));
    MS_TRY(write_payload(&o, s, err));
    encode(h, raw);
    return ms_file_writer_patch(w, 0, raw, HEADER_BYTES, err);
}

ms_status ms_session_export(ms_session *s, const char *path, bool replace, ms_error *err) {
    return ms_state_export_at(s, -1, path, replace, err);
}

ms_status ms_state_export_at(ms_session *s, int folder, const char *path, bool replace, ms_error *err) {
    state_header h;
    MS_TRY(describe(s, s->state.position, &h, err));
    ms_file_writer *w;
    MS_TRY(ms_file_writer_open_at(&w, folder, path, replace, err));
    ms_status status = write_file(w, s, &h, err);
    if (status != MS_OK) {
        ms_file_writer_abort(w);
        return status;
    }
    return ms_file_writer_commit(w, err);
}

ms_status ms_state_image_size(const ms_session *s, uint64_t position, uint64_t *bytes, ms_error *err) {
    state_header h;
    MS_TRY(describe(s, position, &h, err));
    *bytes = HEADER_BYTES + h.payload_bytes;
    return MS_OK;
}

ms_status ms_state_image_capture(ms_session *s, ms_state_image *out, ms_error *err) {
    *out = (ms_state_image){0};
    state_header h;
    MS_TRY(describe(s, s->state.position, &h, err));
    size_t bytes = (size_t)(HEADER_BYTES + h.payload_bytes);
    uint8_t *data = malloc(bytes);
    if (!data) return ms_fail_memory(err, "a state image", bytes);
    state_output o = {.memory = data, .used = HEADER_BYTES, .header = &h};
    ms_status status = write_payload(&o, s, err);
    if (status != MS_OK) {
        free(data);
        return status;
    }
    encode(&h, data);
    *out = (ms_state_image){.data = data, .bytes = bytes, .position = h.position};
    return MS_OK;
}

void ms_state_image_free(ms_state_image *image) {
    free(image->data);
    *image = (ms_state_image){0};
}

/* ------------------------------------------------------------------ import */

typedef struct import_job {
    ms_session *session;
    const char *path; /* of an image: what messages call it */
    int fd;
    const ms_state_image *image; /* NULL: fd */
    state_header header;         /* the file's, accepted */
    uint64_t state_bytes;        /* of the payload, before the tokens */
    uint8_t *piece;
    uint8_t *tokens; /* [position * TOKEN_BYTES] as in the file */
    bool rows_written;
} import_job;

static ms_status read_at(const import_job *j, void *to, size_t n, uint64_t offset, ms_error *err) {
    if (!j->image) return ms_file_pread_exact(j->fd, j->path, to, n, offset, err);
    memcpy(to, j->image->data + offset, n); /* sizes were checked against the header */
    return MS_OK;
}

/* A FIFO must not wait for a writer, a link must not lead elsewhere. */
static ms_status open_file(import_job *j, int folder, uint64_t *size, ms_error *err) {
    const char *slash = folder >= 0 ? strrchr(j->path, '/') : NULL;
    j->fd = openat(folder >= 0 ? folder : AT_FDCWD, slash ? slash + 1 : j->path,
                   O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY);
    if (j->fd < 0 && errno == ELOOP) {
        return ms_fail(err, MS_ERR_IO, "%s: is a symbolic link; refused as a state file", j->path);
    }
    if (j->fd < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: open", j->path);
    struct stat st;
    if (fstat(j->fd, &st) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: stat", j->path);
    if (!S_ISREG(st.st_mode)) return ms_fail_not_regular(err, j->path, st.st_mode);
    *size = (uint64_t)st.st_size;
    return MS_OK;
}

static ms_status check_header(import_job *j, uint64_t size, ms_error *err) {
    uint8_t raw[HEADER_BYTES];
    if (size < HEADER_BYTES) {
        return ms_fail(err, MS_ERR_FORMAT, "%s: file size: expected at least %d bytes, found %" PRIu64, j->path,
                       HEADER_BYTES, size);
    }
    MS_TRY(read_at(j, raw, sizeof raw, 0, err));
    MS_TRY(check_envelope(j->path, raw, err));
    decode(raw, &j->header);
    const ms_session *s = j->session;
    state_header want;
    MS_TRY(describe(s, 0, &want, err));
    MS_TRY(check_origin(j->path, &want, &j->header, err));
    if (j->header.position > s->state.context) {
        return ms_fail(err, MS_ERR_FORMAT, "%s: position: expected at most the context of %" PRIu64 ", found %" PRIu64,
                       j->path, s->state.context, j->header.position);
    }
    MS_TRY(describe(s, j->header.position, &want, err));
    MS_TRY(check_sizes(j->path, &want, &j->header, err));
    uint64_t whole = HEADER_BYTES + want.payload_bytes;
    if (size != whole) {
        return ms_fail(err, MS_ERR_FORMAT, "%s: file size: expected %" PRIu64 " bytes, found %" PRIu64, j->path, whole,
                       size);
    }
    j->state_bytes = want.payload_bytes - want.position * TOKEN_BYTES;
    return MS_OK;
}

static ms_status check_payload(import_job *j, ms_error *err) {
    uint64_t crc = 0;
    for (uint64_t at = 0; at < j->state_bytes; at += PIECE_BYTES) {
        size_t n = j->state_bytes - at < PIECE_BYTES ? (size_t)(j->state_bytes - at) : PIECE_BYTES;
        MS_TRY(read_at(j, j->piece, n, HEADER_BYTES + at, err));
        crc = ms_crc64(crc, j->piece, n);
    }
    size_t token_bytes = (size_t)j->header.position * TOKEN_BYTES;
    MS_TRY(read_at(j, j->tokens, token_bytes, HEADER_BYTES + j->state_bytes, err));
    crc = ms_crc64(crc, j->tokens, token_bytes);
    if (crc != j->header.payload_crc) {
        return ms_fail(err, MS_ERR_FORMAT,
                       "%s: payload CRC: expected %016" PRIx64 ", found %016" PRIx64 "; the payload is damaged",
                       j->path, j->header.payload_crc, crc);
    }
    for (uint64_t i = 0; i < j->header.position; i++) {
        uint32_t id = ms_le32(j->tokens + i * TOKEN_BYTES);
        if (id >= j->header.vocab) {
            return ms_fail(err, MS_ERR_FORMAT,
                           "%s: token %" PRIu64 ": expected an id below %" PRIu32 ", found %" PRIu32, j->path, i,
                           j->header.vocab, id);
        }
    }
    return MS_OK;
}

/* Fixed parts go to the copies in progress; rows have one place only. */
static ms_status load_payload(import_job *j, ms_error *err) {
    const ms_state *state = &j->session->state;
    ms_backend *be = state->backend;
    uint64_t crc = 0, offset = HEADER_BYTES;
    for (uint32_t i = 0; i < state->part_count; i++) {
        const ms_state_part *p = &state->parts[i];
        uint64_t bytes = ms_state_bytes_at(p, j->header.position);
        for (uint64_t at = 0; at < bytes;) {
            size_t n = bytes - at < PIECE_BYTES ? (size_t)(bytes - at) : PIECE_BYTES;
            uint8_t *to = p->row_bytes ? ms_state_span(p, j->header.position, at, &n) : p->next + at;
            MS_TRY(read_at(j, j->piece, n, offset + at, err));
            crc = ms_crc64(crc, j->piece, n);
            if (p->row_bytes) j->rows_written = true;
            be->upload(be, to, j->piece, n);
            MS_TRY(be->sync(be, err)); /* before the piece is used again */
            at += n;
        }
        offset += bytes;
    }
    crc = ms_crc64(crc, j->tokens, (size_t)j->header.position * TOKEN_BYTES);
    if (crc == j->header.payload_crc) return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT,
                   "%s: payload CRC: expected %016" PRIx64 ", found %016" PRIx64 "; the file changed while it was read",
                   j->path, j->header.payload_crc, crc);
}

static void adopt(import_job *j) {
    ms_session *s = j->session;
    ms_state_commit(&s->state, 0);
    ms_state_adopt(&s->state, j->header.position);
    for (uint64_t i = 0; i < j->header.position; i++) s->tokens[i] = ms_le32(j->tokens + i * TOKEN_BYTES);
    s->timeline++;
    s->has_logits = false;
}

static ms_status import_checked(import_job *j, ms_error *err) {
    ms_session *s = j->session;
    size_t token_bytes = (size_t)j->header.position * TOKEN_BYTES;
    j->piece = malloc(PIECE_BYTES);
    j->tokens = malloc(token_bytes + 1); /* position 0 is fine, malloc(0) may be NULL */
    if (!j->piece || !j->tokens) return ms_fail_memory(err, "import buffers", PIECE_BYTES + token_bytes);
    MS_TRY(check_payload(j, err));
    ms_status status = load_payload(j, err);
    if (status == MS_OK) {
        adopt(j);
    } else if (j->rows_written && s->state.position > 0) {
        ms_session_clear(s);
        (void)ms_error_context(err, "import failed after rows had been loaded, the session was reset to position 0");
    }
    return status;
}

static ms_status import_from(import_job *j, uint64_t size, ms_error *err) {
    ms_status status = check_header(j, size, err);
    if (status == MS_OK) status = import_checked(j, err);
    free(j->piece);
    free(j->tokens);
    return status;
}

ms_status ms_session_import(ms_session *s, const char *path, ms_error *err) {
    return ms_state_import_at(s, -1, path, err);
}

ms_status ms_state_import_at(ms_session *s, int folder, const char *path, ms_error *err) {
    import_job j = {.session = s, .path = path, .fd = -1};
    uint64_t size = 0;
    ms_status status = open_file(&j, folder, &size, err);
    if (status == MS_OK) status = import_from(&j, size, err);
    if (j.fd >= 0) (void)close(j.fd);
    return status;
}

ms_status ms_state_image_restore(ms_session *s, const ms_state_image *image, ms_error *err) {
    import_job j = {.session = s, .path = "state image", .fd = -1, .image = image};
    return import_from(&j, image->bytes, err);
}
