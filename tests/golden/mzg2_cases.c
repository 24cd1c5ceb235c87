/* mzg2_cases.c: every layer file of the folder is decoded by every decoder this CPU has and compared with what
 * golden.json says of the source with the same SHA-256; the same source is then coded anew. */
#include "mzg2_cases.h"

#include <dirent.h>

#include "base/bytes.h"
#include "case_file.h"
#include "io/file.h"
#include "store/mzg2_encode.h"
#include "store/mzg2_signs.h"
#include "store/sha256.h"

enum { MAX_FILE = 1 << 30 };

typedef struct set {
    const char *dir;
    const ms_json *json;
    golden_report *report;
    void *arg;
} set;

typedef struct sample {
    const set *in;
    const char *file; /* the layer file */
    bool first;       /* of the folder: the one whose first tile is traced */
    uint8_t *data;
    size_t length;
    ms_mzg2_layer layer;
    ms_mzg2_tables *tables;
    size_t expert_bytes;
    uint8_t *slot, *source; /* of all experts */
    const ms_json *entry;   /* the source's in golden.json */
} sample;

static void say(const set *s, const char *file, const char *what, bool ok, const char *detail) {
    char name[1024];
    (void)snprintf(name, sizeof name, "%s/%s %s", s->dir, file, what);
    s->report(s->arg, name, ok, ok ? "" : detail);
}

static bool read_file(const set *s, const char *name, uint8_t **data, size_t *length) {
    char path[4096];
    ms_error err;
    (void)snprintf(path, sizeof path, "%s/%s", s->dir, name);
    return ms_file_read_all(path, MAX_FILE, (char **)data, length, &err) == MS_OK;
}

static bool is_sha(const ms_json *hex, const void *data, size_t length) {
    uint8_t got[MS_SHA256_BYTES];
    char text[MS_SHA256_HEX];
    ms_sha256 *s;
    if (!hex || ms_sha256_begin(&s, NULL) != MS_OK) return false;
    ms_sha256_add(s, data, length);
    ms_sha256_end(s, got);
    ms_sha256_hex(text, got);
    return ms_json_is_string(hex, text);
}

/* The member of golden.json that describes source bytes with the header's digest. */
static const ms_json *find_source(const sample *p) {
    char text[MS_SHA256_HEX];
    ms_sha256_hex(text, p->layer.source_sha);
    for (const ms_json *v = p->in->json->child; v; v = v->next)
        if (ms_json_is_string(ms_json_get(v, "sha256"), text)) return v;
    return NULL;
}

static bool decode(sample *p, const char *decoder, ms_error *err) {
    const ms_mzg2_codec *c = ms_mzg2_codec_find(decoder);
    memset(p->slot, 0, p->layer.experts * p->expert_bytes);
    for (uint32_t e = 0; e < p->layer.experts; e++) {
        const ms_mzg2_entry *x = &p->layer.index[e];
        ms_mzg2_block b;
        uint8_t *slot = p->slot + e * p->expert_bytes;
        if (ms_mzg2_block_open(&b, p->data + x->offset, x->stored_bytes, e, p->layer.shape, err) != MS_OK) return false;
        if (ms_mzg2_decode(c, slot, &b, p->tables, err) != MS_OK) return false;
        ms_expert_extract(p->source + e * p->expert_bytes, slot, p->layer.shape);
    }
    return true;
}

static void check_decoders(sample *p) {
    static const char *const decoders[] = {"scalar", "avx2", "avx512"};
    const size_t all = p->layer.experts * p->expert_bytes;
    for (int i = 0; i < 3; i++) {
        if (!ms_mzg2_codec_find(decoders[i])) continue; /* another CPU's */
        ms_error err = {0};
        char what[64];
        bool ok = decode(p, decoders[i], &err);
        (void)snprintf(what, sizeof what, "decoded by %s", decoders[i]);
        if (ok) {
            ok = is_sha(ms_json_get(p->entry, "sha256_negzero_cleared"), p->source, all);
            (void)ms_fail(&err, MS_ERR_FORMAT, "canonical bytes have another SHA-256");
        }
        const ms_json *slot = ms_json_get(p->entry, "sha256_slot");
        if (ok && slot) {
            ok = is_sha(slot, p->slot, all);
            (void)ms_fail(&err, MS_ERR_FORMAT, "the slot image has another SHA-256");
        }
        say(p->in, p->file, what, ok, err.message);
    }
}

static void check_payload(const sample *p) {
    uint64_t want = 0, sum = 0;
    for (uint32_t e = 0; e < p->layer.experts; e++) sum += p->layer.index[e].payload_bytes;
    (void)ms_json_u64(ms_json_get(p->entry, "payload_bytes"), &want);
    say(p->in, p->file, "payload bytes", want == sum, "the index has another sum");
}

/* All 32 states and the words used after the first steps of the first tile. */
static void check_trace(const sample *p) {
    const ms_json *trace = ms_json_get(p->in->json, "first_tile_trace");
    ms_mzg2_block b;
    if (!trace || ms_mzg2_block_open(&b, p->data + p->layer.index[0].offset, p->layer.index[0].stored_bytes, 0,
                                     p->layer.shape, NULL) != MS_OK)
        return;
    bool ok = trace->count > 0;
    unsigned pairs = 0;
    for (const ms_json *step = trace->child; step; step = step->next, pairs++) {
        uint32_t states[MS_MZG2_LANES], words;
        uint64_t want = UINT64_MAX;
        ms_mzg2_trace(states, &words, &b, p->tables, 0, pairs);
        ok = ok && ms_json_u64(ms_json_get(step, "words_used"), &want) && want == words;
        for (size_t l = 0; l < MS_MZG2_LANES; l++)
            ok = ok && ms_json_u64(ms_json_at(ms_json_get(step, "state"), l), &want) && want == states[l];
    }
    say(p->in, p->file, "first tile's trace", ok, "states or words differ");
}

static void check_signs(const sample *p, const uint8_t *source, const char *source_name) {
    char name[512];
    const char *dot = strrchr(source_name, '.');
    uint8_t *want = NULL;
    size_t length = 0;
    (void)snprintf(name, sizeof name, "%.*s.nz", (int)(dot ? dot - source_name : 0), source_name);
    if (p->layer.experts != 1 || !read_file(p->in, name, &want, &length)) return;
    uint8_t *bits = malloc(ms_mzg2_signs_max_bytes(p->layer.shape)), *back = malloc(p->expert_bytes);
    if (bits && back) {
        bool ok = ms_mzg2_signs_take(bits, source, p->layer.shape) == length && memcmp(bits, want, length) == 0;
        say(p->in, name, "taken from the source", ok, "other bits");
        memcpy(back, p->source, p->expert_bytes);
        ok = ms_mzg2_signs_put(back, p->layer.shape, want, length) && memcmp(back, source, p->expert_bytes) == 0;
        say(p->in, name, "put back", ok, "other source bytes");
    }
    free(bits);
    free(back);
    free(want);
}

/* Codes the source (canonical, in p->source) with tables of its own; gives the payload, 0 when it did not come back. */
static uint64_t code_again(sample *p, ms_error *err) {
    ms_expert_shape s = p->layer.shape;
    ms_mzg2_fit *fit = NULL;
    ms_mzg2_encoder *enc = NULL;
    ms_mzg2_layer own = {.experts = p->layer.experts, .shape = s};
    uint8_t *block = malloc(ms_mzg2_block_max_bytes(s)), *back = malloc(p->expert_bytes);
    uint64_t sum = 0;
    bool ok = block && back && ms_mzg2_fit_create(&fit, s, NULL, err) == MS_OK;
    for (uint32_t e = 0; ok && e < own.experts; e++) ms_mzg2_fit_add(fit, p->source + e * p->expert_bytes);
    ok =
        ok && ms_mzg2_fit_sets(fit, own.set, err) == MS_OK && ms_mzg2_encoder_create(&enc, s, own.set, 0, err) == MS_OK;
    if (ok) ms_mzg2_tables_expand(p->tables, &own);
    for (uint32_t e = 0; ok && e < own.experts; e++) {
        uint32_t payload, stored;
        ms_mzg2_block b;
        ms_mzg2_encode(enc, block, p->source + e * p->expert_bytes, e, &payload, &stored);
        ok = ms_mzg2_block_open(&b, block, stored, e, s, err) == MS_OK &&
             ms_mzg2_decode(ms_mzg2_codec_find(NULL), p->slot, &b, p->tables, err) == MS_OK;
        if (!ok) break;
        ms_expert_extract(back, p->slot, s);
        ok = memcmp(back, p->source + e * p->expert_bytes, p->expert_bytes) == 0;
        sum += payload;
    }
    ms_mzg2_encoder_destroy(enc);
    ms_mzg2_fit_destroy(fit);
    free(block);
    free(back);
    return ok ? sum : 0;
}

static void check_encoder(sample *p) {
    ms_error err = {0};
    uint64_t want = 0, sum = code_again(p, &err);
    char detail[256];
    say(p->in, p->file, "coded anew", sum > 0, err.message[0] ? err.message : "other bytes came back");
    /* a limit only where the set states a saving: tiny and random experts do not compress */
    if (!sum || !ms_json_get(p->entry, "payload_saving_percent")) return;
    (void)ms_json_u64(ms_json_get(p->entry, "payload_bytes"), &want);
    (void)snprintf(detail, sizeof detail, "%llu bytes, recorded are %llu", (unsigned long long)sum,
                   (unsigned long long)want);
    say(p->in, p->file, "own payload within 0.5 %", (double)sum <= 1.005 * (double)want, detail);
}

static void check_layer(sample *p) {
    p->entry = find_source(p);
    say(p->in, p->file, "source is described", p->entry != NULL, "golden.json has no entry with the header's SHA-256");
    if (!p->entry) return;
    p->expert_bytes = ms_expert_bytes(p->layer.shape);
    size_t all = p->layer.experts * p->expert_bytes, length = 0;
    p->slot = malloc(all);
    p->source = malloc(all);
    p->tables = calloc(1, sizeof *p->tables);
    uint8_t *source = NULL;
    if (p->slot && p->source && p->tables && read_file(p->in, p->entry->key, &source, &length) && length == all) {
        ms_mzg2_tables_expand(p->tables, &p->layer);
        check_decoders(p);
        check_payload(p);
        if (p->first) check_trace(p);
        check_signs(p, source, p->entry->key);
        check_encoder(p);
    } else {
        say(p->in, p->entry->key, "read", false, "missing, or of another length than the layer file says");
    }
    free(source);
    free(p->slot);
    free(p->source);
    free(p->tables);
}

static void run_layer(const set *s, const char *file, bool first) {
    sample p = {.in = s, .file = file, .first = first};
    ms_error err = {0};
    ms_status st = read_file(s, file, &p.data, &p.length) ? MS_OK : ms_fail(&err, MS_ERR_IO, "cannot be read");
    if (st == MS_OK && p.length < MS_MZG2_ALIGN) st = ms_fail(&err, MS_ERR_FORMAT, "too short");
    if (st == MS_OK) st = ms_mzg2_layer_parse(&p.layer, p.data, p.length, p.length, &err);
    say(s, file, "front", st == MS_OK, err.message);
    if (st == MS_OK) check_layer(&p);
    ms_mzg2_layer_free(&p.layer);
    free(p.data);
}

static void check_files(const set *s) {
    const ms_json *files = ms_json_get(s->json, "files");
    for (const ms_json *f = files ? files->child : NULL; f; f = f->next) {
        uint8_t *data = NULL;
        size_t length = 0;
        bool ok = read_file(s, f->key, &data, &length) && is_sha(ms_json_get(f, "sha256"), data, length);
        say(s, f->key, "SHA-256", ok, "missing or changed");
        free(data);
    }
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }
static int is_layer(const struct dirent *d) {
    size_t n = strlen(d->d_name);
    return n > 5 && !strcmp(d->d_name + n - 5, ".mzg2");
}

bool golden_mzg2_dir(const char *dir, golden_report *report, void *arg) {
    struct dirent **files = NULL;
    int n = scandir(dir, &files, is_layer, by_name);
    if (n <= 0) return false;
    char path[4096], *text = NULL;
    ms_json_doc *doc = NULL;
    ms_error err = {0};
    set s = {.dir = dir, .report = report, .arg = arg};
    (void)snprintf(path, sizeof path, "%s/golden.json", dir);
    bool opened = golden_open(path, &text, &doc, &err);
    if (opened) {
        s.json = ms_json_root(doc);
        check_files(&s);
    } else {
        say(&s, "golden.json", "read", false, err.message);
    }
    for (int i = 0; i < n; i++) {
        if (opened) run_layer(&s, files[i]->d_name, i == 0);
        free(files[i]);
    }
    free(files);
    ms_json_free(doc);
    free(text);
    return true;
}
