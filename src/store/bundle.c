/* bundle.c: bundle.json, and the check of a whole bundle. */
#include "store/bundle.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "io/file.h"
#include "store/bundle_internal.h"

enum { MAX_JSON = 64 << 20 };
const char ms_bundle_store_name[] = "mzg2";

/* ------------------------------------------------------------------ bundle.json */

void bundle_files_free(bundle_files *f) {
    free(f->list);
    *f = (bundle_files){0};
}

ms_status bundle_files_add(bundle_files *f, const bundle_file *one, ms_error *err) {
    if (f->count == f->cap) {
        size_t cap = f->cap ? 2 * f->cap : 64;
        bundle_file *list = realloc(f->list, cap * sizeof *list);
        if (!list) return ms_fail_memory(err, "the file list", cap * sizeof *list);
        f->list = list;
        f->cap = cap;
    }
    f->list[f->count++] = *one;
    return MS_OK;
}

/* A name inside the bundle: plain, or below the store or its cold folder. */
static bool good_name(const ms_json *v) {
    if (!v || v->type != MS_JSON_STRING || v->str_len == 0 || v->str_len >= BUNDLE_NAME || strlen(v->str) != v->str_len)
        return false;
    return v->str[0] != '/' && v->str[0] != '.' && !strstr(v->str, "/.") && !strstr(v->str, "//");
}

static ms_status parse_files(bundle_files *out, const ms_json *root, const char *path, ms_error *err) {
    const ms_json *files = ms_json_get(root, "files");
    if (!files || files->type != MS_JSON_ARRAY) return ms_fail(err, MS_ERR_FORMAT, "%s: files: expected a list", path);
    for (const ms_json *v = files->child; v; v = v->next) {
        bundle_file f = {.bytes = 0};
        const ms_json *name = ms_json_get(v, "file");
        if (!good_name(name)) return ms_fail(err, MS_ERR_FORMAT, "%s: files: expected names inside the bundle", path);
        memcpy(f.name, name->str, name->str_len);
        MS_TRY(ms_mzg2_json_u64(&f.bytes, v, "bytes", INT64_MAX, path, err));
        MS_TRY(ms_mzg2_json_sha(f.sha, v, "sha256", path, err));
        MS_TRY(bundle_files_add(out, &f, err));
    }
    return MS_OK;
}

static ms_status parse(ms_bundle *out, bundle_files *files, const char *text, size_t length, const char *path,
                       uint8_t *sha, ms_error *err) {
    ms_json_doc *doc = NULL;
    const ms_json_limits limits = {.max_depth = 6, .reject_duplicates = true};
    MS_TRY(ms_json_parse(&doc, text, length, path, &limits, err));
    const ms_json *root = ms_json_root(doc), *layout = ms_json_get(root, "layout");
    uint64_t version = 0;
    ms_status st = MS_OK;
    if (!ms_json_is_string(ms_json_get(root, "format"), bundle_format))
        st = ms_fail(err, MS_ERR_FORMAT, "%s: format: expected \"%s\"", path, bundle_format);
    if (st == MS_OK) st = ms_mzg2_json_u64(&version, root, "version", UINT32_MAX, path, err);
    if (st == MS_OK && version != BUNDLE_VERSION)
        st = ms_fail(err, MS_ERR_UNSUPPORTED, "%s: version: expected %d, found %llu", path, BUNDLE_VERSION,
                     (unsigned long long)version);
    if (st == MS_OK) st = ms_mzg2_check_sealed(sha, text, length, bundle_seal, path, err);
    char *end = NULL;
    if (layout && layout->type == MS_JSON_STRING && layout->str_len == 16)
        out->layout_digest = strtoull(layout->str, &end, 16);
    if (st == MS_OK && (!end || *end)) st = ms_fail(err, MS_ERR_FORMAT, "%s: layout: expected 16 hex digits", path);
    if (st == MS_OK) st = ms_mzg2_json_sha(out->store_sha, root, "store", path, err);
    if (st == MS_OK && files) st = parse_files(files, root, path, err);
    ms_json_free(doc);
    return st;
}

ms_status bundle_read_json(ms_bundle *out, bundle_files *files, const char *dir, bool *found,
                           uint8_t sha[MS_SHA256_BYTES], ms_error *err) {
    char path[MZG2_PATH], *text = NULL;
    size_t length = 0;
    struct stat st;
    *out = (ms_bundle){0};
    *found = false;
    MS_TRY(mzg2_path(path, dir, bundle_json, err));
    if (lstat(path, &st) != 0 && (errno == ENOENT || errno == ENOTDIR)) return MS_OK;
    *found = true;
    MS_TRY(ms_file_read_all(path, MAX_JSON, &text, &length, err));
    ms_status status = parse(out, files, text, length, path, sha, err);
    free(text);
    return status;
}

ms_status ms_bundle_read(ms_bundle *out, const char *dir, bool *found, ms_error *err) {
    uint8_t sha[MS_SHA256_BYTES];
    return bundle_read_json(out, NULL, dir, found, sha, err);
}

/* ------------------------------------------------------------------ verify */

static ms_status check_files(const char *dir, const bundle_files *files, ms_bundle_report *report,
                             const ms_mzg2_job_options *o, ms_error *err) {
    uint64_t total = 0, done = 0;
    for (size_t i = 0; i < files->count; i++) total += files->list[i].bytes;
    for (size_t i = 0; i < files->count; i++) {
        const bundle_file *f = &files->list[i];
        char path[MZG2_PATH];
        uint8_t sha[MS_SHA256_BYTES];
        uint64_t bytes = 0;
        MS_TRY(mzg2_path(path, dir, f->name, err));
        MS_TRY(ms_sha256_file(sha, path, &bytes, err));
        if (bytes != f->bytes)
            return ms_fail(err, MS_ERR_FORMAT, "%s: length: expected %llu, found %llu", path,
                           (unsigned long long)f->bytes, (unsigned long long)bytes);
        if (memcmp(sha, f->sha, sizeof sha) != 0) {
            char a[MS_SHA256_HEX], b[MS_SHA256_HEX];
            ms_sha256_hex(a, f->sha);
            ms_sha256_hex(b, sha);
            return ms_fail(err, MS_ERR_FORMAT, "%s: SHA-256: expected %s, found %s", path, a, b);
        }
        done += bytes;
        report->files++;
        report->bytes += bytes;
        if (!strcmp(f->name, bundle_static)) report->static_bytes = bytes;
        if (o->progress && !o->progress(o->progress_arg, done, total))
            return ms_fail(err, MS_ERR_CANCELLED, "cancelled");
    }
    return MS_OK;
}

static bool is_listed(const bundle_files *files, const char *name) {
    for (size_t i = 0; i < files->count; i++)
        if (!strcmp(files->list[i].name, name)) return true;
    return !strcmp(name, bundle_json);
}

static ms_status nothing_more_below(const char *dir, const char *below, const bundle_files *files, ms_error *err) {
    char path[MZG2_PATH];
    MS_TRY(mzg2_path(path, dir, below, err));
    DIR *d = opendir(path);
    if (!d) return ms_fail_errno(err, MS_ERR_IO, errno, "%s: open", path);
    ms_status st = MS_OK;
    for (struct dirent *e; st == MS_OK && (e = readdir(d));) {
        char name[MZG2_PATH + 256];
        struct stat s;
        if (!strcmp(e->d_name, ".") || !strcmp(e->d_name, "..")) continue;
        (void)snprintf(name, sizeof name, "%s%s%s", below, *below ? "/" : "", e->d_name);
        char full[2 * MZG2_PATH];
        (void)snprintf(full, sizeof full, "%s/%s", path, e->d_name);
        if (lstat(full, &s) == 0 && S_ISDIR(s.st_mode))
            st = nothing_more_below(dir, name, files, err);
        else if (!is_listed(files, name))
            st =
                ms_fail(err, MS_ERR_FORMAT, "%s: expected only files that %s names, found this one", full, bundle_json);
    }
    (void)closedir(d);
    return st;
}

ms_status bundle_nothing_more(const char *dir, const bundle_files *files, ms_error *err) {
    return nothing_more_below(dir, "", files, err);
}

ms_status ms_bundle_verify(const char *dir, const ms_mzg2_job_options *o, ms_bundle_report *report, ms_error *err) {
    ms_bundle b;
    bundle_files files = {0};
    bool found = false;
    char store[MZG2_PATH];
    *report = (ms_bundle_report){0};
    ms_status st = bundle_read_json(&b, &files, dir, &found, report->sha, err);
    if (st == MS_OK && !found)
        st = ms_fail(err, MS_ERR_FORMAT, "%s: expected a bundle with %s, found none", dir, bundle_json);
    if (st == MS_OK) st = check_files(dir, &files, report, o, err);
    if (st == MS_OK) st = bundle_nothing_more(dir, &files, err);
    bundle_files_free(&files);
    MS_TRY(st);
    MS_TRY(mzg2_path(store, dir, ms_bundle_store_name, err));
    ms_mzg2_job_options inner = *o;
    if (o->fast) return MS_OK; /* its files have been hashed */
    MS_TRY(ms_mzg2_verify(store, NULL, &inner, &report->store, err));
    if (memcmp(report->store.manifest_sha, b.store_sha, sizeof b.store_sha) == 0) return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT, "%s: manifest.json: SHA-256: expected the one that %s names, found another",
                   store, bundle_json);
}
