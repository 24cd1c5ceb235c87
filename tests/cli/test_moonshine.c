/* The program `moonshine`: exit codes, texts, JSON, files that appear whole or not at all, outputs that are closed. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/json.h"
#include "cli_run.h"
#include "io/file.h"

enum { VOCAB = 4096, MAX_FILE = 64 << 20 };
#define ARGS(...) ((const char *const[]){__VA_ARGS__, NULL})

static bool has(const ms_text *t, const char *part) { return t->data && strstr(t->data, part) != NULL; }

/* Runs and wants this exit code and these words on the two outputs ("": none asked for; NULL: nothing at all was written). */
static void expect(int code, const char *out, const char *err, const char *const *args, const char *input) {
    cli c;
    int got = cli_run(&c, "moonshine", args, input);
    if (got != code) fail_msg("%s %s: exit %d instead of %d: %s", args[0], args[0] ? args[1] : "", got, code, c.err_text.data);
    if (out ? !has(&c.out_text, out) : c.out_text.len > 0) fail_msg("expected \"%s\", found: %s", out ? out : "", c.out_text.data);
    if (err ? !has(&c.err_text, err) : c.err_text.len > 0) fail_msg("expected \"%s\", found: %s", err ? err : "", c.err_text.data);
    cli_free(&c);
}

/* A shell line with $M (the program) and $D (a folder); both outputs in *out.  For what only a shell does: limits, closed
 * streams, environment. */
static int shell(const char *folder, const char *line, ms_text *out) {
    const char *bin = getenv("MOONSHINE_BIN");
    char program[4096], piece[4096];
    (void)snprintf(program, sizeof program, "%s/moonshine", bin && *bin ? bin : "build");
    assert_int_equal(setenv("M", program, 1), 0);
    assert_int_equal(setenv("D", folder, 1), 0);
    *out = (ms_text){0};
    FILE *f = popen(line, "r");
    assert_non_null(f);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;) ms_text_append(out, piece, n);
    ms_text_append(out, "", 0);
    int how = pclose(f);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -WTERMSIG(how);
}

static ms_json_doc *json_of(const ms_text *t) {
    ms_json_doc *doc = NULL;
    ms_error err;
    size_t len = t->len;
    while (len && (t->data[len - 1] == '\n' || t->data[len - 1] == '\0')) len--;
    assert_null(memchr(t->data, '\n', len)); /* one line */
    if (ms_json_parse(&doc, t->data, len, "output", NULL, &err) != MS_OK) fail_msg("%s", err.message);
    return doc;
}

static uint64_t number(const ms_json *obj, const char *key) {
    uint64_t v = 0;
    const ms_json *x = ms_json_get(obj, key);
    if (!x || !ms_json_u64(x, &v)) fail_msg("no number %s", key);
    return v;
}

static int entries(const char *folder) {
    int n = 0;
    DIR *d = opendir(folder);
    assert_non_null(d);
    for (struct dirent *e; (e = readdir(d));) n += strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0;
    (void)closedir(d);
    return n;
}

/* ------------------------------------------------------------------ usage */

static void usage(void **state) {
    (void)state;
    static const char *const commands[] = {"plan", "verify", "logits", "text", "synth"};
    expect(0, "usage: moonshine COMMAND", NULL, ARGS("--help"), "");
    expect(0, "usage: moonshine COMMAND", NULL, ARGS("help"), "");
    expect(0, "moonshine 0.", NULL, ARGS("--version"), "");
    expect(2, NULL, "usage: moonshine COMMAND", ARGS(NULL), "");
    expect(2, NULL, "unknown command 'frobnicate'", ARGS("frobnicate"), "");
    for (size_t i = 0; i < sizeof commands / sizeof *commands; i++) {
        expect(0, commands[i], NULL, ARGS(commands[i], "--help"), "");
        expect(2, NULL, "unknown option --frobnicate", ARGS(commands[i], "--frobnicate"), "");
    }
    expect(2, NULL, "no model", ARGS("plan"), "");
    expect(2, NULL, "no model", ARGS("verify"), "");
    expect(2, NULL, "no model", ARGS("logits", "--ids", "1"), "");
    expect(2, NULL, "superfluous", ARGS("plan", CLI_MODEL, "again"), "");
    expect(2, NULL, "experts 33", ARGS("plan", CLI_MODEL, "--experts", "33"), "");
    expect(2, NULL, "--context", ARGS("plan", CLI_MODEL, "--context", "0"), "");
    expect(2, NULL, "--expert-dirs: nosuch: expected a folder", ARGS("plan", CLI_MODEL, "--expert-dirs", "nosuch"), "");
    expect(2, NULL, "--expert-dirs: README.md: expected a folder",
           ARGS("plan", CLI_MODEL, "--expert-dirs", "/tmp,README.md"), "");
    expect(2, NULL, "--expert-dirs: expected", ARGS("plan", CLI_MODEL, "--expert-dirs", "/tmp,,/tmp"), "");
    static const char *const named[] = {"--store", "--expert-dirs", "--kernels", "--backend"};
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        expect(2, NULL, named[i], ARGS("plan", CLI_MODEL, named[i], ""), "");
    expect(1, NULL, "/nonexistent/config.json", ARGS("plan", "/nonexistent"), "");
    expect(1, NULL, "/nonexistent/config.json", ARGS("verify", "/nonexistent"), "");
    expect(1, NULL, "/nonexistent/config.json", ARGS("logits", "/nonexistent", "--ids", "1"), "");
}

static void model_from_environment(void **state) {
    (void)state;
    ms_text out;
    assert_int_equal(shell("", "MOONSHINE_MODEL=" CLI_MODEL " $M verify 2>&1", &out), 0);
    assert_true(has(&out, "layout is complete"));
    ms_text_free(&out);
    assert_int_equal(shell("", "MOONSHINE_MODEL=/nonexistent $M verify " CLI_MODEL " 2>&1", &out), 0); /* the argument wins */
    ms_text_free(&out);
    assert_int_equal(shell("", "MOONSHINE_MODEL= $M verify 2>&1", &out), 2);
    assert_true(has(&out, "set MOONSHINE_MODEL"));
    ms_text_free(&out);
    assert_int_equal(shell("", "echo '{\"text\":\"a\"}' | MOONSHINE_MODEL=" CLI_MODEL " $M text encode 2>&1", &out), 0);
    assert_true(has(&out, "{\"ids\":["));
    ms_text_free(&out);
}

/* ------------------------------------------------------------------ plan, verify */

static void plan(void **state) {
    (void)state;
    expect(0, "fits", NULL, ARGS("plan", CLI_MODEL), "");
    expect(0, "  available  memory now ", NULL, ARGS("plan", CLI_MODEL), "");
    expect(0, "  available  as --memory says                 966367641600 ", NULL,
           ARGS("plan", CLI_MODEL, "--memory", "900G"), "");
    expect(3, "DOES NOT FIT", NULL, ARGS("plan", CLI_MODEL, "--reserve", "1000000G"), "");
    expect(3, "DOES NOT FIT", NULL, ARGS("plan", CLI_MODEL, "--memory", "20M"), "");
    expect(0, "borrow the last", NULL,
           ARGS("plan", CLI_MODEL, "--memory", "130M", "--reserve", "0", "--range", "auto", "--experts", "24"), "");
    cli c;
    assert_int_equal(cli_run(&c, "moonshine", ARGS("plan", CLI_MODEL, "--json", "--context", "1000", "--snapshots", "2"), ""), 0);
    ms_json_doc *doc = json_of(&c.out_text);
    const ms_json *root = ms_json_root(doc);
    uint64_t sum = 0, snapshots = 0, pass = 0;
    for (const ms_json *i = ms_json_get(root, "items")->child; i; i = i->next) {
        uint64_t bytes = number(i, "bytes");
        sum += bytes;
        if (ms_json_is_string(ms_json_get(i, "name"), "snapshots")) snapshots = bytes;
        if (ms_json_is_string(ms_json_get(i, "name"), "pass in progress")) pass = bytes;
    }
    assert_true(pass > 0);
    assert_int_equal(snapshots, 2 * pass);
    assert_int_equal(number(root, "total_bytes"), sum);
    assert_int_equal(number(root, "context"), 1000);
    assert_int_equal(number(root, "experts"), 32);
    bool fits = false;
    assert_true(ms_json_bool(ms_json_get(root, "fits"), &fits) && fits);
    ms_json_free(doc);
    cli_free(&c);

    assert_int_equal(cli_run(&c, "moonshine", ARGS("plan", CLI_MODEL, "--json", "--reserve", "1000000G"), ""), 3);
    doc = json_of(&c.out_text);
    assert_true(ms_json_bool(ms_json_get(ms_json_root(doc), "fits"), &fits) && !fits);
    ms_json_free(doc);
    cli_free(&c);
    expect(3, NULL, "does not fit: needs", ARGS("logits", CLI_MODEL, "--ids", "1", "--reserve", "1000000G"), "");
}

static void verify(void **state) {
    (void)state;
    cli c;
    assert_int_equal(cli_run(&c, "moonshine", ARGS("verify", CLI_MODEL), ""), 0);
    assert_true(has(&c.out_text, CLI_MODEL ": k3 layout is complete"));
    assert_true(has(&c.out_text, "10 in the index, 10 opened, 0 never opened"));
    assert_true(has(&c.out_text, "8 layers of 32, 26112 bytes each, contiguous"));
    assert_int_equal(c.err_text.len, 0);
    cli_free(&c);
    char folder[64];
    cli_make_folder(folder);
    expect(1, NULL, folder, ARGS("verify", folder), "");
    cli_write_file(cli_path(folder, "config.json"), "{\"model_type\": \"llama\"}");
    expect(1, NULL, "model_type: expected kimi_k3 or mimo_v2, found \"llama\"", ARGS("verify", folder), "");
    cli_remove_folder(folder);
}

/* ------------------------------------------------------------------ logits */

static void check_row(const ms_json *top, const float *row) {
    uint32_t n = 0, last_id = 0;
    float last = 0;
    for (const ms_json *pair = top->child; pair; pair = pair->next, n++) {
        uint64_t id = VOCAB;
        double value = 0;
        assert_true(ms_json_u64(ms_json_at(pair, 0), &id));
        assert_true(ms_json_double(ms_json_at(pair, 1), &value));
        assert_true(id < VOCAB);
        assert_true((float)value == row[id]); /* nine digits are the float itself */
        if (n > 0) assert_true(row[id] < last || (row[id] == last && id > last_id));
        last = row[id];
        last_id = (uint32_t)id;
    }
    assert_int_equal(n, 8);
    uint32_t above = 0;
    for (uint32_t id = 0; id < VOCAB; id++) above += row[id] > last;
    assert_true(above <= 7);
}

static void logits_json_and_file(void **state) {
    (void)state;
    enum { PROMPT = 5, GREEDY = 3 };
    char folder[64], *data;
    size_t len;
    ms_error err;
    cli_make_folder(folder);
    const char *file = cli_path(folder, "rows");
    cli c;
    assert_int_equal(cli_run(&c, "moonshine", ARGS("logits", CLI_MODEL, "--ids", "3843, 264 280,269,[333]", "--greedy", "3",
                                                   "--json", "--out", file), ""), 0);
    ms_json_doc *doc = json_of(&c.out_text);
    const ms_json *root = ms_json_root(doc), *top = ms_json_get(root, "top8"), *more = ms_json_get(root, "greedy_top8");
    assert_int_equal(ms_file_read_all(file, MAX_FILE, &data, &len, &err), MS_OK);
    assert_int_equal(len, (PROMPT + GREEDY) * VOCAB * sizeof(float));
    struct stat st;
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    const float *rows = (const float *)(const void *)data;
    assert_int_equal(top->count, PROMPT);
    assert_int_equal(more->count, GREEDY);
    for (size_t i = 0; i < PROMPT; i++) check_row(ms_json_at(top, i), rows + i * VOCAB);
    for (size_t i = 0; i < GREEDY; i++) {
        uint64_t best = 0, id = 1;
        check_row(ms_json_at(more, i), rows + (PROMPT + i) * VOCAB);
        assert_true(ms_json_u64(ms_json_at(ms_json_at(ms_json_at(more, i), 0), 0), &best));
        assert_true(ms_json_u64(ms_json_at(ms_json_get(root, "greedy"), i), &id));
        assert_int_equal(id, best);
    }
    assert_memory_equal(rows + (PROMPT - 1) * VOCAB, rows + PROMPT * VOCAB, VOCAB * sizeof *rows);
    assert_int_equal(number(ms_json_get(root, "digest"), "position"), PROMPT + GREEDY - 1);
    const ms_json *experts = ms_json_get(root, "experts");
    assert_int_equal(experts->count, 8);
    for (const ms_json *l = experts->child; l; l = l->next) assert_int_equal(l->count, PROMPT + GREEDY - 1);
    free(data);
    ms_json_free(doc);
    cli_free(&c);

    expect(1, NULL, "file exists", ARGS("logits", CLI_MODEL, "--ids", "7", "--out", file), "");
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_size, (PROMPT + GREEDY) * VOCAB * sizeof(float));
    expect(0, "position 1", NULL, ARGS("logits", CLI_MODEL, "--ids-file", "-", "--out", file, "--force"), "[7]\n");
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_size, VOCAB * sizeof(float));
    assert_int_equal(entries(folder), 1);
    cli_remove_folder(folder);
}

static void logits_refuses(void **state) {
    (void)state;
    char folder[64];
    cli_make_folder(folder);
    const char *file = cli_path(folder, "rows"), *none = cli_path(folder, "no/such"), *ids = cli_path(folder, "ids");
    static const char *const bad[][2] = {
        {"", "no token ids"},
        {"[ ]", "no token ids"},
        {"1,,2", "found ',2'"},
        {",1", "found ',1'"},
        {"1, ", "found the end"},
        {"[1,]", "found the end"},
        {"1,x", "found 'x'"},
        {"-1", "found '-1'"},
        {"1;2", "found '1;2'"},
        {"4294967296", "found '4294967296'"},
        {"99999999999999999999", "found"},
        {"4096", "id 4096 is outside the vocabulary of 4096"},
        {"1 2 4294967295", "token 2"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        expect(2, NULL, bad[i][1], ARGS("logits", CLI_MODEL, "--ids", bad[i][0], "--out", file, "--json"), "");
    expect(2, NULL, "either --ids or --ids-file", ARGS("logits", CLI_MODEL, "--out", file), "");
    expect(2, NULL, "either --ids or --ids-file", ARGS("logits", CLI_MODEL, "--ids", "1", "--ids-file", "-"), "");
    expect(1, NULL, ids, ARGS("logits", CLI_MODEL, "--ids-file", ids), "");
    expect(1, NULL, "no/such", ARGS("logits", CLI_MODEL, "--ids", "1", "--out", none), "");
    expect(1, NULL, "do not fit into a context of 2", ARGS("logits", CLI_MODEL, "--ids", "1,2,3", "--context", "2", "--out", file), "");
    /* the rows of two tokens are written before the context is full */
    expect(1, NULL, "do not fit into a context of 2", ARGS("logits", CLI_MODEL, "--ids", "1,2", "--context", "2", "--greedy", "5", "--out", file), "");
    assert_int_equal(entries(folder), 0);
    cli_remove_folder(folder);
}

/* A limit on the file size is a disk that is full. */
static void full_disk(void **state) {
    (void)state;
    char folder[64];
    struct stat st;
    ms_text out;
#ifdef __SANITIZE_THREAD__
    print_message("not checked: the race detector's runtime itself writes a file at start\n");
    return;
#endif
    cli_make_folder(folder);
    const char *file = cli_path(folder, "rows");
    assert_int_equal(shell(folder, "ulimit -f 20; $M logits " CLI_MODEL " --ids 1,2,3 --out $D/rows 2>&1", &out), 1);
    assert_true(has(&out, "File too large"));
    ms_text_free(&out);
    assert_int_equal(entries(folder), 0);
    cli_write_file(file, "mine");
    assert_int_equal(shell(folder, "ulimit -f 20; $M logits " CLI_MODEL " --ids 1,2,3 --out $D/rows --force 2>&1", &out), 1);
    ms_text_free(&out);
    assert_int_equal(entries(folder), 1);
    assert_int_equal(stat(file, &st), 0);
    assert_int_equal(st.st_size, 4);
    assert_int_equal(shell(folder, "ulimit -f 0; $M plan " CLI_MODEL " 2>&1 >$D/plan", &out), 1);
    assert_true(has(&out, "standard output: File too large"));
    ms_text_free(&out);
    assert_int_equal(shell(folder, "$M plan " CLI_MODEL " 2>&1 >/dev/full", &out), 1);
    assert_true(has(&out, "standard output: No space left"));
    ms_text_free(&out);
    assert_int_equal(shell(folder, "ulimit -f 20; $M synth $D/model 2>&1", &out), 1);
    assert_true(has(&out, "File too large"));
    ms_text_free(&out);
    assert_int_not_equal(access(cli_path(folder, "model"), F_OK), 0);
    cli_remove_folder(folder);
}

/* ------------------------------------------------------------------ text */

static void text_modes(void **state) {
    (void)state;
    expect(0, "{\"ids\":[351]}\n", NULL, ARGS("text", "encode", CLI_MODEL), "{\"text\":\"hi\"}\n");
    expect(0, "{\"text\":\"hi\"}\n", NULL, ARGS("text", "decode", CLI_MODEL), "{\"ids\":[351]}\n");
    expect(0, "{\"ids\":[3842]}\n", NULL, ARGS("text", "encode", CLI_MODEL), "\r\n{\"text\":\"<|end_of_msg|>\",\"special\":true}");
    expect(0, "{\"text\":\"<|end_of_msg|>\"}", NULL, ARGS("text", "decode", CLI_MODEL), "{\"ids\":[3842],\"names\":true}");
    expect(0, "[\"text\",\"hi\"]", NULL, ARGS("text", "render", CLI_MODEL), "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}");
    expect(0, "\"status\":\"truncated\"", NULL, ARGS("text", "parse", CLI_MODEL), "{\"ids\":[351],\"channel\":\"response\"}");
    expect(0, "\"content\":\"hi\"", NULL, ARGS("text", "parse", CLI_MODEL), "{\"ids\":[351],\"channel\":\"response\"}");
    expect(0, NULL, NULL, ARGS("text", "encode", CLI_MODEL), "");
    expect(2, NULL, "found 'sing'", ARGS("text", "sing", CLI_MODEL), "");
    expect(2, NULL, "expected encode", ARGS("text"), "");
    expect(1, NULL, "/nonexistent", ARGS("text", "encode", "/nonexistent"), "");
}

static void text_error_lines(void **state) {
    (void)state;
    static const char *const bad[][2] = {
        {"encode", "{"}, {"encode", "[]"}, {"encode", "{\"text\":1}"}, {"encode", "{\"text\":\"a\",\"special\":1}"},
        {"decode", "{\"ids\":[-1]}"}, {"decode", "{\"ids\":[4096]}"}, {"decode", "{\"ids\":7}"}, {"decode", "{\"ids\":[1.5]}"},
        {"render", "{}"}, {"render", "{\"messages\":[{\"role\":\"robot\"}]}"}, {"parse", "{\"ids\":[1],\"channel\":\"x\"}"},
        {"encode", "{\"text\":\"\xff\"}"},
    };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const char *good = !strcmp(bad[i][0], "encode")   ? "{\"text\":\"hi\"}"
                           : !strcmp(bad[i][0], "render") ? "{\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]}"
                                                          : "{\"ids\":[351]}";
        char input[512];
        (void)snprintf(input, sizeof input, "%s\n%s\n%s\n", good, bad[i][1], good);
        cli c;
        assert_int_equal(cli_run(&c, "moonshine", ARGS("text", bad[i][0], CLI_MODEL), input), 1);
        const char *first = c.out_text.data, *second = strchr(first, '\n') + 1, *third = strchr(second, '\n') + 1;
        if (strncmp(second, "{\"error\":\"", 10) != 0) fail_msg("%s: %s", bad[i][1], second);
        assert_int_equal(second - first, strlen(third)); /* the lines around it are answered alike */
        assert_memory_equal(first, third, (size_t)(second - first));
        ms_text line = {0};
        ms_text_append(&line, second, (size_t)(third - second));
        ms_json_free(json_of(&line));
        ms_text_free(&line);
        assert_int_equal(c.err_text.len, 0);
        cli_free(&c);
    }
}

/* An asker may wait for each answer before it goes on. */
static void text_answers_at_once(void **state) {
    (void)state;
    cli c;
    cli_start(&c, "moonshine", ARGS("text", "encode", CLI_MODEL));
    cli_send(&c, "{\"text\":\"hi\"}\n");
    assert_true(cli_wait_for(&c, &c.out_text, 0, "[351]}\n"));
    size_t from = c.out_text.len;
    cli_send(&c, "{\"text\":\"hi\"}\n");
    assert_true(cli_wait_for(&c, &c.out_text, from, "[351]}\n"));
    assert_int_equal(cli_finish(&c), 0);
    cli_free(&c);
}

/* ------------------------------------------------------------------ synth */

static void synth(void **state) {
    (void)state;
    char folder[64], dir[80];
    cli_make_folder(folder);
    (void)snprintf(dir, sizeof dir, "%s/model", folder);
    expect(2, NULL, "expected the folder", ARGS("synth"), "");
    expect(0, "bytes of weights", "", ARGS("synth", dir, "--seed", "5"), "");
    expect(0, "layout is complete", NULL, ARGS("verify", dir), "");
    expect(0, "position 3", NULL, ARGS("logits", dir, "--ids", "1,2,3", "--greedy", "1"), "");
    expect(2, NULL, dir, ARGS("synth", dir), ""); /* not empty any more */
    expect(0, "layout is complete", NULL, ARGS("verify", dir), "");
    const char *odd = cli_path(folder, "odd");
    static const char *const bad[][3] = {
        {"--inner", "33", "--inner: expected a multiple of 32"}, {"--latent", "40", "--latent: expected a multiple"},
        {"--layers", "257", "--layers"}, {"--top-k", "65", "--top-k"}, {"--top-k", "17", "--top-k: expected at most the 16"},
        {"--first-dense", "6", "--first-dense: expected at most the 5"},
    };
    expect(2, NULL, "KDA width", ARGS("synth", odd, "--kda-heads", "65536", "--kda-dim", "16777216"), "");
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        expect(2, NULL, bad[i][2], ARGS("synth", odd, bad[i][0], bad[i][1]), "");
        assert_int_not_equal(access(odd, F_OK), 0);
    }
    cli_remove_folder(dir);
    cli_remove_folder(folder);
}

/* Another lane's layout; its numbers are not this one's. */
static void synth_mimo(void **state) {
    (void)state;
    char folder[64], dir[128];
    cli_make_folder(folder);
    (void)snprintf(dir, sizeof dir, "%s/model", folder);
    expect(2, NULL, "--kda-heads: lane mimo26 has no such number", ARGS("synth", dir, "--lane", "mimo26", "--kda-heads", "2"), "");
    expect(2, NULL, "--window: lane k3 has no such number", ARGS("synth", dir, "--window", "2"), "");
    expect(2, NULL, "heads", ARGS("synth", dir, "--lane", "mimo26", "--heads", "7"), "");
    expect(2, NULL, "metadata.tp_size", ARGS("synth", dir, "--lane", "mimo26", "--chunks", "3"), "");
    assert_int_not_equal(access(dir, F_OK), 0);
    expect(0, "bytes of weights", "", ARGS("synth", dir, "--lane", "mimo26", "--layers", "3", "--experts", "5", "--vision"), "");
    expect(0, "mimo26 layout is complete", NULL, ARGS("verify", dir), "");
    expect(0, "scale grid", NULL, ARGS("verify", dir, "--weights"), "");
    expect(0, "window", NULL, ARGS("plan", dir, "--context", "100"), "");
    cli_remove_folder(dir);
    cli_remove_folder(folder);
}

static void synth_leftover(void **state) {
    (void)state;
    char folder[64];
    cli_make_folder(folder);
    cli_write_file(cli_path(folder, "forgotten"), "x");
    expect(2, NULL, "found \"forgotten\" in it", ARGS("synth", folder), "");
    assert_int_equal(entries(folder), 1);
    cli_remove_folder(folder);
}

/* ------------------------------------------------------------------ signals */

static const int signals[] = {SIGINT, SIGTERM, SIGHUP};

/* Waits until the program has made something in the folder. */
static void wait_for_entry(const char *folder) {
    for (int i = 0; entries(folder) == 0; i++) {
        assert_true(i < 10000);
        (void)usleep(1000);
    }
}

static void synth_interrupted(void **state) {
    (void)state;
    char folder[64], dir[80];
    cli_make_folder(folder);
    (void)snprintf(dir, sizeof dir, "%s/model", folder);
    for (size_t i = 0; i < 3; i++) {
        bool there = i == 1; /* a folder that was there before is emptied, not removed */
        if (there) assert_int_equal(mkdir(dir, 0700), 0);
        cli c;
        cli_start(&c, "moonshine", ARGS("synth", dir, "--preset", "mid", "--threads", "1"));
        wait_for_entry(there ? dir : folder);
        cli_signal(&c, signals[i]);
        assert_int_equal(cli_finish(&c), 128 + signals[i]);
        assert_true(has(&c.err_text, there ? "model emptied" : "model removed"));
        assert_int_equal(access(dir, F_OK), there ? 0 : -1);
        if (there) assert_int_equal(entries(dir), 0);
        if (there) assert_int_equal(rmdir(dir), 0);
        cli_free(&c);
    }
    assert_int_equal(entries(folder), 0);
    cli_remove_folder(folder);
}

static void logits_interrupted(void **state) {
    (void)state;
    char folder[64];
    cli_make_folder(folder);
    const char *file = cli_path(folder, "rows");
    for (size_t i = 0; i < 3; i++) {
        cli c;
        /* --force has a named temporary, which tells that the handlers are there, and which must go */
        cli_start(&c, "moonshine", ARGS("logits", CLI_MODEL, "--ids", "1,2,3", "--greedy", "60000", "--context", "65536",
                                        "--out", file, "--force"));
        wait_for_entry(folder);
        (void)usleep((useconds_t)i * 300000); /* while it loads, and when it computes */
        cli_signal(&c, signals[i]);
        assert_int_equal(cli_finish(&c), 128 + signals[i]);
        assert_int_equal(c.out_text.len, 0);
        assert_int_equal(entries(folder), 0);
        cli_free(&c);
    }
    cli_remove_folder(folder);
}

/* ------------------------------------------------------------------ odd inputs */

static void nul_in_ids(void **state) {
    (void)state;
    char folder[64];
    ms_text out;
    cli_make_folder(folder);
    assert_int_equal(shell(folder, "printf '1,2\\0,3' | $M logits " CLI_MODEL " --ids-file - 2>&1", &out), 2);
    assert_true(has(&out, "NUL byte at offset 3"));
    ms_text_free(&out);
    assert_int_equal(shell(folder, "printf '1\\0' >$D/ids; $M logits " CLI_MODEL " --ids-file $D/ids 2>&1", &out), 2);
    assert_true(has(&out, "ids: expected token ids separated by commas or spaces, found a NUL byte at offset 1"));
    ms_text_free(&out);
    cli_remove_folder(folder);
}

/* Special files in a model folder are refused, not waited for. */
static void special_files(void **state) {
    (void)state;
    char folder[64];
    ms_text out;
    cli_make_folder(folder);
    const char *line = "cp " CLI_MODEL "/*.json " CLI_MODEL "/*.safetensors " CLI_MODEL "/*.model $D && echo copied";
    assert_int_equal(shell(folder, line, &out), 0);
    ms_text_free(&out);
    const char *config = cli_path(folder, "tokenizer_config.json"), *ranks = cli_path(folder, "tiktoken.model");
    expect(0, NULL, NULL, ARGS("text", "encode", folder), "");
    assert_int_equal(unlink(config), 0);
    expect(0, NULL, NULL, ARGS("text", "encode", folder), ""); /* it is optional */
    assert_int_equal(symlink("nowhere", config), 0);
    expect(1, NULL, "tokenizer_config.json", ARGS("text", "encode", folder), "");
    assert_int_equal(unlink(config), 0);
    assert_int_equal(mkfifo(config, 0600), 0);
    expect(1, NULL, "tokenizer_config.json: expected a regular file, found a FIFO", ARGS("text", "encode", folder), "");
    assert_int_equal(unlink(config), 0);
    assert_int_equal(unlink(ranks), 0);
    assert_int_equal(mkfifo(ranks, 0600), 0);
    expect(1, NULL, "tiktoken.model: expected a regular file, found a FIFO", ARGS("text", "encode", folder), "");
    assert_int_equal(shell(folder, "sed -i 's/\"hidden_size\": /&-/' $D/config.json; $M text encode $D 2>&1 </dev/null", &out), 1);
    assert_true(has(&out, cli_path(folder, "config.json: text_config")));
    ms_text_free(&out);
    cli_remove_folder(folder);
}

/* A line may follow the help text. */
static void help_ends_its_line(void **state) {
    (void)state;
    static const char *const asked[][3] = {{"plan", "--help"}, {"text", "--help"}, {"logits", "--help"}, {"synth", "--help"},
                                           {"verify", "--help"}, {"bench", "decode", "--help"}};
    for (size_t i = 0; i < sizeof asked / sizeof *asked; i++) {
        cli c;
        assert_int_equal(cli_run(&c, "moonshine", ARGS(asked[i][0], asked[i][1], asked[i][2]), ""), 0);
        const char *end = strchr(c.out_text.data, '\0');
        assert_true(end > c.out_text.data && end[-1] == '\n');
        cli_free(&c);
    }
}

/* ------------------------------------------------------------------ closed outputs */

static void closed(const char *const *args, const char *input) {
    cli c;
    cli_start_deaf(&c, "moonshine", args);
    cli_send(&c, input);
    int code = cli_finish(&c);
    if (code != 141 || c.err_text.len) fail_msg("%s: exit %d, %s", args[0], code, c.err_text.data);
    cli_free(&c);
}

static void closed_pipe(void **state) {
    (void)state;
    char folder[64];
    cli_make_folder(folder);
    closed(ARGS("--help"), "");
    closed(ARGS("--version"), "");
    closed(ARGS("plan", "--help"), "");
    closed(ARGS("plan", CLI_MODEL), "");
    closed(ARGS("plan", CLI_MODEL, "--json"), "");
    closed(ARGS("verify", CLI_MODEL), "");
    closed(ARGS("text", "encode", CLI_MODEL), "{\"text\":\"hi\"}\n");
    /* more than a buffer of JSON, and a file beside it that is not left half */
    closed(ARGS("logits", CLI_MODEL, "--ids", "1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20", "--json", "--out",
                cli_path(folder, "rows")), "");
    struct stat st;
    assert_int_equal(entries(folder), 1);
    assert_int_equal(stat(cli_path(folder, "rows"), &st), 0);
    assert_int_equal(st.st_size, 20 * VOCAB * sizeof(float));

    cli c; /* the reader leaves while questions go on */
    cli_start(&c, "moonshine", ARGS("text", "encode", CLI_MODEL));
    cli_send(&c, "{\"text\":\"hi\"}\n");
    assert_true(cli_wait_for(&c, &c.out_text, 0, "[351]}\n"));
    (void)close(c.out);
    c.out = -1;
    cli_send(&c, "{\"text\":\"hi\"}\n");
    int in = c.in; /* stays open: the program must not wait for its end */
    c.in = -1;
    assert_int_equal(cli_finish(&c), 141);
    (void)close(in);
    cli_free(&c);
    cli_remove_folder(folder);
}

/* Without a standard output at all the output file must not take its place. */
static void no_output(void **state) {
    (void)state;
    char folder[64];
    struct stat st;
    ms_text out;
    cli_make_folder(folder);
    assert_int_equal(shell(folder, "$M logits " CLI_MODEL " --ids 1,2,3 --json --out $D/rows 2>&1 >&-", &out), 1);
    assert_true(has(&out, "standard output: Bad file descriptor"));
    ms_text_free(&out);
    assert_int_equal(stat(cli_path(folder, "rows"), &st), 0);
    assert_int_equal(st.st_size, 3 * VOCAB * sizeof(float));
    assert_int_equal(shell(folder, "$M logits " CLI_MODEL " --ids 1,2,4096 --out $D/other 2>&- >&- <&-", &out), 2);
    ms_text_free(&out);
    assert_int_equal(entries(folder), 1);
    cli_remove_folder(folder);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(usage),      cmocka_unit_test(model_from_environment), cmocka_unit_test(plan),
        cmocka_unit_test(verify),     cmocka_unit_test(logits_json_and_file),   cmocka_unit_test(logits_refuses),
        cmocka_unit_test(full_disk),  cmocka_unit_test(text_modes),             cmocka_unit_test(text_error_lines),
        cmocka_unit_test(text_answers_at_once), cmocka_unit_test(synth),        cmocka_unit_test(closed_pipe),
        cmocka_unit_test(no_output),  cmocka_unit_test(synth_leftover),   cmocka_unit_test(synth_mimo),         cmocka_unit_test(synth_interrupted),
        cmocka_unit_test(logits_interrupted),   cmocka_unit_test(nul_in_ids),   cmocka_unit_test(special_files),
        cmocka_unit_test(help_ends_its_line)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
