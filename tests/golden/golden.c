/* golden: runs every set of expected outputs that it finds below a folder.
 *
 *     golden ROOT [BACKEND]
 *
 * A set is known by its files: a checkpoint with golden/NAME.json, or golden.json and chat_cases.json, beside its
 * config.json; encode, decode, render and parse case files beside the rank file they name; expert store samples,
 * golden.json beside *.mzg2.  Prints one line a case and closes with "N passed, N failed".
 * Exit code 0 when nothing failed and something passed.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "k3_cases.h"
#include "mimo_cases.h"
#include "mzg2_cases.h"
#include "text_encode_cases.h"
#include "text_parse_cases.h"
#include "text_render_cases.h"

typedef struct totals {
    unsigned passed, failed;
    const char *where, *backend;
} totals;

static void count(void *arg, const char *name, bool ok, const char *detail) {
    totals *t = arg;
    if (ok) t->passed++;
    else t->failed++;
    printf("%s %s%s%s%s%s\n", ok ? "ok  " : "FAIL", t->where, *t->where ? ": " : "", name, detail && *detail ? " - " : "",
           detail ? detail : "");
}

static bool exists(const char *dir, const char *file, char path[4096]) {
    struct stat st;
    int n = snprintf(path, 4096, "%s/%s", dir, file);
    return n > 0 && n < 4096 && stat(path, &st) == 0 && S_ISREG(st.st_mode);
}

/* Rendering and parsing cases carry ids of one rank file, `tok4096.tiktoken`; without it only texts are compared. */
static void run_text_dir(const char *dir, totals *t) {
    static const char *const encode[] = {"encode.json", "stress.json", "encode-cl100k.json", "official-ids.json"};
    char path[4096], ranks[4096];
    ms_tokenizer *tok = NULL;
    ms_error err;
    if (exists(dir, "tok4096.tiktoken", ranks) && ms_tokenizer_open(&tok, ranks, &err) != MS_OK)
        count(t, ranks, false, err.message);
    for (size_t i = 0; i < sizeof encode / sizeof encode[0]; i++)
        if (exists(dir, encode[i], path)) {
            t->where = encode[i];
            (void)golden_encode_file(path, NULL, count, t);
        }
    t->where = "decode.json";
    if (exists(dir, "decode.json", path)) (void)golden_decode_file(path, NULL, count, t);
    t->where = "render.json";
    if (exists(dir, "render.json", path)) (void)golden_render_file(path, tok, count, t);
    t->where = "parse.json";
    if (exists(dir, "parse.json", path)) (void)golden_parse_file(path, tok, count, t);
    t->where = "";
    ms_tokenizer_close(tok);
}

static int by_name(const struct dirent **a, const struct dirent **b) { return strcmp((*a)->d_name, (*b)->d_name); }
static int visible(const struct dirent *d) { return d->d_name[0] != '.'; }

static void walk(const char *dir, unsigned depth, totals *t) {
    char path[4096];
    if (exists(dir, "config.json", path) &&
        (golden_k3_dir(dir, t->backend, count, t) || golden_mimo_dir(dir, t->backend, count, t)))
        return;
    if (exists(dir, "golden.json", path) && golden_mzg2_dir(dir, count, t)) return;
    if (exists(dir, "render.json", path) || exists(dir, "encode.json", path) || exists(dir, "parse.json", path))
        run_text_dir(dir, t);
    struct dirent **entries = NULL;
    int n = depth < 6 ? scandir(dir, &entries, visible, by_name) : 0;
    for (int i = 0; i < n; i++) {
        struct stat st;
        int len = snprintf(path, sizeof path, "%s/%s", dir, entries[i]->d_name);
        if (len > 0 && (size_t)len < sizeof path && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) walk(path, depth + 1, t);
        free(entries[i]);
    }
    free(entries);
}

int main(int argc, char **argv) {
    if (argc != 2 && argc != 3) {
        fputs("usage: golden ROOT [BACKEND]\n", stderr);
        return 2;
    }
    totals t = {.where = "", .backend = argc == 3 ? argv[2] : NULL};
    walk(argv[1], 0, &t);
    printf("%u passed, %u failed\n", t.passed, t.failed);
    return t.failed == 0 && t.passed > 0 ? 0 : 1;
}
