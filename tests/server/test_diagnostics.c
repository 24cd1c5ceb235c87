/* Captures of decoding with the small model: rules of the files, choices made again from the tap, equal replies. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bytes.h"
#include "base/fmath.h"
#include "http_client.h"
#include "nano_fixture.h"
#include "session/engine.h"

enum { TOP_K = 4, EXPERTS = 32, LAYERS = 8, COLUMNS = 19 };

static char folder[64], prefix[96];

static int make_folder(void **state) {
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/moonshine-diagnostics-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    (void)snprintf(prefix, sizeof prefix, "%s/run", folder);
    return 0;
}

static int remove_folder(void **state) {
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf -- '%s'", folder);
    return system(command);
}

static FILE *open_file(const char *suffix) {
    char path[128];
    struct stat st;
    (void)snprintf(path, sizeof path, "%s%s", prefix, suffix);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_int_equal(fstat(fileno(f), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    return f;
}

/* Numbers of a line, from behind `skip` fields; returns how many. */
static size_t numbers(char *line, double *out, size_t most) {
    size_t n = 0;
    for (char *save, *field = strtok_r(line, ",", &save); field && n < most; field = strtok_r(NULL, ",", &save)) {
        if (strcmp(field, "summary") == 0 || strcmp(field, "layer") == 0)
            out[n++] = field[0] == 's';
        else
            out[n++] = strtod(field, NULL);
    }
    return n;
}

#define BODY "{\"model\":\"moonshine\",\"max_tokens\":%d,\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}]%s}"
#define TOOLS                                                                                                          \
    ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"type\":\"object\"}}}],"         \
    "\"tool_choice\":\"required\""

static void say(served *s, int limit, const char *text, const char *more, http_response *r) {
    char body[512];
    (void)snprintf(body, sizeof body, BODY, limit, text, more);
    served_post(s, "/v1/chat/completions", body, r);
}

/* ------------------------------------------------------------------ files */

/* The router's choice by its definition. */
static void choose(const float *logits, const float *bias, uint32_t *out) {
    bool taken[EXPERTS] = {0};
    for (size_t k = 0; k < TOP_K; k++) {
        int best = -1;
        float most = 0;
        for (int e = 0; e < EXPERTS; e++) {
            float v = ms_sigmoid(logits[e]) + bias[e];
            if (taken[e] || (best >= 0 && v <= most)) continue;
            best = e;
            most = v;
        }
        taken[best] = true;
    }
    for (uint32_t e = 0, n = 0; e < EXPERTS; e++)
        if (taken[e]) out[n++] = e;
}

static void read_bias(uint32_t layer, float *bias) {
    ms_model m;
    ms_error err;
    char name[160];
    if (ms_model_open(&m, NANO_MODEL, &err) != MS_OK) fail_msg("%s", err.message);
    (void)snprintf(name, sizeof name, "language_model.model.layers.%u.block_sparse_moe.gate.e_score_correction_bias",
                   layer);
    const ms_tensor *t = ms_checkpoint_find(m.checkpoint, name);
    assert_non_null(t);
    assert_int_equal(t->bytes, EXPERTS * sizeof(float));
    assert_int_equal(ms_checkpoint_read(m.checkpoint, t, 0, bias, EXPERTS * sizeof(float), NULL), MS_OK);
    ms_model_close(&m);
}

static uint64_t check_routes(const uint64_t *steps, size_t captures) {
    char line[4096];
    static float bias[LAYERS + 1][EXPERTS];
    uint8_t head[32], record[16 + 4 * EXPERTS];
    uint64_t rows = 0, hits = 0;
    FILE *f = open_file(".routes.csv"), *tap = open_file(".logits.bin");
    for (uint32_t i = 1; i <= LAYERS; i++) read_bias(i, bias[i]);
    assert_int_equal(fread(head, 1, sizeof head, tap), sizeof head);
    assert_memory_equal(head, "MSRLTAP1", 8);
    assert_int_equal(ms_le32(head + 12), LAYERS);
    assert_int_equal(ms_le32(head + 16), EXPERTS);
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, "capture,step,position,layer,observed_hit_mask,expert_0,expert_1,expert_2,expert_3\n");
    for (size_t c = 0; c < captures; c++) {
        for (uint64_t i = 0; i < steps[c] * LAYERS; i++, rows++) {
            double v[5 + TOP_K + 1];
            float logits[EXPERTS];
            uint32_t chosen[TOP_K];
            assert_non_null(fgets(line, sizeof line, f));
            assert_int_equal(numbers(line, v, 5 + TOP_K + 1), 5 + TOP_K);
            assert_int_equal((uint64_t)v[1], i / LAYERS);
            assert_int_equal((uint64_t)v[3], i % LAYERS + 1);
            assert_true(v[4] < 1 << TOP_K);
            for (int k = 0; k < TOP_K; k++) hits += (uint64_t)v[4] >> k & 1;
            assert_int_equal(fread(record, 1, sizeof record, tap), sizeof record);
            assert_int_equal(ms_le32(record), (uint32_t)v[0]);
            assert_int_equal(ms_le32(record + 4), (uint32_t)v[1]);
            assert_int_equal(ms_le32(record + 8), (uint32_t)v[2]);
            assert_int_equal(record[12] | record[13] << 8, (uint32_t)v[3]);
            for (size_t e = 0; e < EXPERTS; e++) logits[e] = ms_f32_from_bits(ms_le32(record + 16 + 4 * e));
            choose(logits, bias[(uint32_t)v[3]], chosen);
            for (size_t k = 0; k < TOP_K; k++) assert_int_equal(chosen[k], (uint32_t)v[5 + k]);
        }
    }
    assert_null(fgets(line, sizeof line, f));
    assert_int_equal(fread(record, 1, 1, tap), 0);
    (void)fclose(f);
    (void)fclose(tap);
    return hits;
}

static void check_ledger(const uint64_t *captures, const uint64_t *steps, size_t count, uint64_t hits) {
    char line[4096];
    double summary[COLUMNS], v[COLUMNS + 1];
    uint64_t all_hits = 0;
    FILE *f = open_file(".ledger.csv");
    assert_non_null(fgets(line, sizeof line, f));
    for (size_t c = 0; c < count; c++) {
        assert_non_null(fgets(line, sizeof line, f));
        assert_int_equal(numbers(line, summary, COLUMNS), COLUMNS);
        assert_true(summary[1] == 1 && summary[2] == 0);
        assert_int_equal((uint64_t)summary[0], captures[c]);
        assert_int_equal((uint64_t)summary[3], steps[c]);
        assert_int_equal((uint64_t)summary[4], steps[c] * LAYERS * TOP_K);
        assert_int_equal((uint64_t)summary[5] + (uint64_t)summary[6], (uint64_t)summary[4]);
        assert_true(summary[7] >= summary[6] && summary[9] >= summary[8] && summary[11] == summary[6]);
        all_hits += (uint64_t)summary[5];
        double sums[COLUMNS] = {0};
        for (uint32_t i = 0; i < LAYERS; i++) {
            assert_non_null(fgets(line, sizeof line, f));
            assert_int_equal(numbers(line, v, COLUMNS + 1), COLUMNS);
            assert_true(v[1] == 0 && v[2] == i + 1 && v[3] == summary[3]);
            for (size_t k = 4; k < COLUMNS; k++)
                sums[k] = k == 12 && sums[k] > v[k] ? sums[k] : v[k] + (k == 12 ? 0 : sums[k]);
        }
        for (size_t k = 4; k < 13; k++) assert_true(sums[k] == summary[k]);
        for (size_t k = 13; k < COLUMNS; k++) assert_true(fabs(sums[k] - summary[k]) < 1e-6);
    }
    assert_null(fgets(line, sizeof line, f));
    assert_int_equal(all_hits, hits);
    (void)fclose(f);
}

/* Ranks of the cache's rows count up within a layer, six experts at most. */
static void check_cache(void) {
    char line[256];
    double v[5], last[4] = {0};
    size_t rows = 0;
    FILE *f = open_file(".cache.csv");
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, "capture,layer,lru_rank,expert_id\n");
    for (; fgets(line, sizeof line, f); rows++) {
        assert_int_equal(numbers(line, v, 5), 4);
        bool same = rows && v[0] == last[0] && v[1] == last[1];
        assert_true(v[2] == (same ? last[2] + 1 : 0) && v[2] < 6 && v[3] < EXPERTS);
        memcpy(last, v, sizeof last);
    }
    assert_true(rows > LAYERS);
    (void)fclose(f);
}

/* The same requests with and without a look: texts, usage and digests are equal, and the files keep their rules.  A
 * reply that breaks the policy keeps its capture; one that is cut off leaves none. */
static void captures_keep_their_rules(void **state) {
    (void)state;
    char digest[2][3][64], word[32], code[2][64];
    uint64_t captures[3], steps[3];
    for (int look = 0; look < 2; look++) {
        served s;
        http_response r;
        static char texts[3][4096];
        served_start(&s, &(served_options){.diagnostics = look ? prefix : NULL});
        for (int i = 0; i < 2; i++) {
            say(&s, i ? 12 : 200, i ? "Count to ten." : "Say hello.", "", &r);
            assert_int_equal(r.status, 200);
            const char *text = http_text(&r, "choices.0.message.reasoning_content");
            if (look) assert_string_equal(text, texts[i]);
            (void)snprintf(texts[i], sizeof texts[i], "%s", text);
            served_log(&s, "request.state.digest", "kda=", digest[look][i], sizeof digest[look][i]);
            served_log(&s, "request.complete", "forced_trailer=", word, sizeof word);
            assert_true(strtoul(word, NULL, 10) > 0 || i == 0);
            captures[i] = (uint64_t)i + 1;
            steps[i] = (uint64_t)http_number(&r, "usage.completion_tokens") + strtoul(word, NULL, 10);
            http_free(&r);
        }
        say(&s, 5, "Use a tool.", TOOLS, &r); /* nothing holds it to the rule, and it has no room for a call */
        assert_int_equal(r.status, 500);
        (void)snprintf(code[look], sizeof code[look], "%s", http_text(&r, "error.code"));
        http_free(&r);
        if (look) served_log(&s, "request.failed", "capture=", word, sizeof word);
        captures[2] = 3;
        steps[2] = 4; /* the last token of such a reply is not evaluated */
        if (look) assert_int_equal(strtoul(word, NULL, 10), 3);
        served_log(&s, "request.state.digest", "mla=", digest[look][2], sizeof digest[look][2]);
        served_stop(&s);
    }
    assert_string_equal(code[0], "tool_policy_unsatisfied");
    assert_string_equal(code[1], code[0]);
    for (int i = 0; i < 3; i++) assert_string_equal(digest[0][i], digest[1][i]);
    uint64_t hits = check_routes(steps, 3);
    check_ledger(captures, steps, 3, hits);
    check_cache();
}

/* Nothing is overwritten, and a failed start leaves nothing. */
static void files_are_new(void **state) {
    (void)state;
    ms_error err;
    ms_lane_info info = {.moe_layer_count = LAYERS, .top_k = TOP_K, .experts = EXPERTS};
    ms_diagnostics *d;
    char other[128], path[160];
    (void)snprintf(other, sizeof other, "%s/other", folder);
    (void)snprintf(path, sizeof path, "%s.routes.csv", other);
    assert_int_equal(symlink("/tmp/moonshine-nowhere", path), 0);
    assert_int_equal(ms_diagnostics_create(&d, other, false, &info, &err), MS_ERR_IO);
    assert_non_null(strstr(err.message, "other.routes.csv"));
    (void)snprintf(path, sizeof path, "%s.cache.csv", other);
    assert_int_equal(access(path, F_OK), -1);
    info.top_k = 65;
    assert_int_equal(ms_diagnostics_create(&d, other, false, &info, &err), MS_ERR_UNSUPPORTED);
}

/* A capture that is given up leaves every file as it was; the next one has the next number. */
static uint64_t place(const ms_causal *t) {
    (void)t;
    return 7;
}
static const ms_expert_watch *watching;
static void take_watch(ms_causal *t, const ms_expert_watch *w) {
    (void)t;
    watching = w;
}
static uint32_t one_resident(const ms_causal *t, uint32_t layer, uint32_t *out) {
    (void)t;
    out[0] = layer;
    return 1;
}

static void a_capture_is_given_up(void **state) {
    (void)state;
    static const ms_causal_ops ops = {.position = place, .watch = take_watch, .resident = one_resident};
    static const uint32_t routed[] = {3, 5};
    ms_causal t = {.ops = &ops, .routed = routed, .routed_count = 2};
    const ms_lane_info info = {.moe_layer_count = 2, .top_k = 1, .experts = 2};
    const ms_want want = {.expert = 1, .kind = MS_WANT_HIT};
    const ms_expert_account a = {.layer = 3, .wants = &want, .count = 1},
                            b = {.layer = 5, .moe_layer = 1, .wants = &want, .count = 1};
    ms_diagnostics *d;
    uint64_t capture;
    struct stat before, after;
    char given[128], path[160];
    (void)snprintf(given, sizeof given, "%s/given", folder);
    (void)snprintf(path, sizeof path, "%s.routes.csv", given);
    assert_int_equal(ms_diagnostics_create(&d, given, false, &info, NULL), MS_OK);
    assert_int_equal(stat(path, &before), 0);
    ms_diagnostics_begin(d, &t);
    for (int i = 0; i < 1000; i++) { /* more than any buffer holds */
        watching->request(watching->arg, &a);
        watching->request(watching->arg, &b);
    }
    assert_int_equal(stat(path, &after), 0);
    assert_true(after.st_size > before.st_size);
    ms_diagnostics_rollback(d, &t);
    assert_null(watching);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_size, before.st_size);
    ms_diagnostics_begin(d, &t);
    watching->request(watching->arg, &a); /* half a step is no capture */
    assert_int_equal(ms_diagnostics_commit(d, &t, &capture, NULL), MS_ERR_INTERNAL);
    assert_int_equal(capture, 0);
    assert_int_equal(stat(path, &after), 0);
    assert_int_equal(after.st_size, before.st_size);
    ms_diagnostics_begin(d, &t);
    watching->request(watching->arg, &a);
    watching->request(watching->arg, &b);
    assert_int_equal(ms_diagnostics_commit(d, &t, &capture, NULL), MS_OK);
    assert_int_equal(capture, 3);
    ms_diagnostics_destroy(d);
    char line[128];
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_non_null(fgets(line, sizeof line, f));
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, "3,0,7,3,1,1\n");
    assert_non_null(fgets(line, sizeof line, f));
    assert_string_equal(line, "3,0,7,5,1,1\n");
    assert_null(fgets(line, sizeof line, f));
    (void)fclose(f);
}

/* Every request meets an empty cache: the same request reads the same bytes. */
static void experts_are_forgotten(void **state) {
    (void)state;
    served s;
    http_response r;
    char first[32], second[32];
    served_start(&s, &(served_options){.forget_experts = true});
    for (int i = 0; i < 2; i++) {
        say(&s, 4, "Say hello.", "", &r);
        assert_int_equal(r.status, 200);
        assert_int_equal(http_number(&r, "usage.prompt_tokens_details.cached_tokens"), 0);
        served_log(&s, "request.prefill.complete", "read=", i ? second : first, sizeof first);
        http_free(&r);
    }
    assert_string_equal(first, second);
    served_log(&s, "request.prefill.io", "sweeps=", first, sizeof first);
    assert_string_equal(first, "1");
    served_log(&s, "request.prefill.io", "unique_experts_max=", first, sizeof first);
    assert_in_range(strtoul(first, NULL, 10), TOP_K + 1, EXPERTS);
    served_log(&s, "request.prefill.io", "unique_experts_min=", second, sizeof second);
    assert_in_range(strtoul(second, NULL, 10), TOP_K, strtoul(first, NULL, 10));
    served_log(&s, "request.prefill.io", "read=", first, sizeof first);
    assert_true(strtoul(first, NULL, 10) > 0);
    served_stop(&s);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captures_keep_their_rules),
        cmocka_unit_test(files_are_new),
        cmocka_unit_test(a_capture_is_given_up),
        cmocka_unit_test(experts_are_forgotten),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
