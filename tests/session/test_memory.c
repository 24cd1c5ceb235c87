/* The plan tells the truth: a process that runs a model never holds more than the ledger's total, and not much less, since
 * everything is there from the start. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/wait.h>

#include "engine_util.h"

enum { PROMPT = 300, STEPS = 20 };
#define SLACK_BYTES ((uint64_t)16 << 20)
#define GROWTH_BYTES ((uint64_t)2 << 20) /* code and stacks that the first pass touches */

typedef struct variant {
    const char *label;
    uint64_t context;
    uint32_t experts, range, threads;
    ms_static_format format;
    ms_precision precision;
    bool no_uring;
} variant;

typedef struct outcome {
    uint64_t plan, loaded, created, peak; /* bytes; resident when the engine is open, when the session is, and the highest */
} outcome;

static uint64_t status_bytes(const char *key) {
    char line[256];
    uint64_t value = 0;
    FILE *f = fopen("/proc/self/status", "r");
    if (!f) return 0;
    while (fgets(line, sizeof line, f))
        if (!strncmp(line, key, strlen(key))) value = strtoull(line + strlen(key) + 1, NULL, 10) * 1024;
    (void)fclose(f);
    return value;
}

static void say(void *arg, const char *line) {
    (void)arg;
    (void)fprintf(stderr, "note: %s\n", line);
}

static ms_status use(const variant *v, outcome *out, ms_error *err) {
    ms_engine_options o;
    ms_engine *e = NULL;
    ms_session *s = NULL;
    ms_engine_options_default(&o, NANO);
    o.context = v->context;
    o.experts = v->experts;
    o.range_rows = v->range;
    o.threads = v->threads;
    o.static_format = v->format;
    o.precision = v->precision;
    o.no_uring = v->no_uring;
    o.log = say;
    MS_TRY(ms_engine_open(&e, &o, err));
    out->plan = ms_engine_plan(e)->total_bytes;
    out->loaded = status_bytes("VmRSS:");
    MS_TRY(ms_session_create(&s, e, err));
    out->created = status_bytes("VmRSS:");
    uint32_t ids[PROMPT], id;
    some_ids(ids, PROMPT, MAX_VOCAB);
    MS_TRY(ms_session_forward(s, ids, PROMPT, NULL, err));
    ms_sampler greedy;
    ms_sampler_greedy(&greedy);
    for (int i = 0; i < STEPS; i++) {
        MS_TRY(ms_sampler_pick(&greedy, ms_session_logits(s), MAX_VOCAB, &id, err));
        MS_TRY(ms_session_forward(s, &id, 1, NULL, err));
    }
    out->peak = status_bytes("VmHWM:");
    ms_session_destroy(s);
    ms_engine_close(e);
    return MS_OK;
}

/* In a child: a process has one peak. */
static void measure(const variant *v, outcome *out) {
    int ends[2], how = 0;
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        ms_error err;
        ms_status st = use(v, out, &err);
        if (st != MS_OK) (void)fprintf(stderr, "%s: %s\n", v->label, err.message);
        _exit(st == MS_OK && write(ends[1], out, sizeof *out) == sizeof *out ? 0 : 1);
    }
    (void)close(ends[1]);
    ssize_t n = read(ends[0], out, sizeof *out);
    (void)close(ends[0]);
    assert_int_equal(waitpid(pid, &how, 0), pid);
    assert_true(n == sizeof *out && WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

static const variant variants[] = {
    {.label = "defaults", .experts = MS_DEFAULT_EXPERTS},
    {.label = "context 131072", .context = 131072, .experts = MS_DEFAULT_EXPERTS},
    {.label = "four slots", .experts = 4},
    {.label = "no slots, pread, three threads", .experts = 0, .no_uring = true, .threads = 3},
    {.label = "range 64", .experts = MS_DEFAULT_EXPERTS, .range = 64},
    {.label = "range 8192", .experts = MS_DEFAULT_EXPERTS, .range = 8192},
    {.label = "range 1, context 512, no slots", .context = 512, .range = 1},
    {.label = "bf16", .experts = MS_DEFAULT_EXPERTS, .format = MS_STATIC_BF16},
    {.label = "reference", .experts = MS_DEFAULT_EXPERTS, .format = MS_STATIC_BF16, .precision = MS_PRECISION_REFERENCE},
};

static void plan_is_the_peak(void **state) {
    (void)state;
    if (SANITIZED) {
        print_message("not measured: a sanitizer's memory is not the program's\n");
        return;
    }
    bool good = true;
    for (size_t i = 0; i < sizeof variants / sizeof *variants; i++) {
        outcome o = {0};
        measure(&variants[i], &o);
        uint64_t slack = o.plan / 10 > SLACK_BYTES ? o.plan / 10 : SLACK_BYTES;
        bool right = o.peak <= o.plan && o.peak + slack >= o.plan && o.peak <= o.created + GROWTH_BYTES;
        print_message("%-32s plan %8.2f MB, open %8.2f, session %8.2f, peak %8.2f%s\n", variants[i].label,
                      (double)o.plan / 1e6, (double)o.loaded / 1e6, (double)o.created / 1e6, (double)o.peak / 1e6,
                      right ? "" : "  <- wrong");
        good &= right;
    }
    assert_true(good);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(plan_is_the_peak)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
