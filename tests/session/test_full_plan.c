/* The ledger of the official model at full size, to the byte, and that an engine refuses it here without allocating it.  The
 * checkpoint is real in its headers and a hole in its weights. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <ftw.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "engine_util.h"
#include "lane/k3/k3_synth.h"

static char dir[PATH_BYTES];

/* In a child, so that the writer's memory does not count against the reader's. */
static int write_checkpoint(void **state) {
    (void)state;
    (void)snprintf(dir, sizeof dir, "/tmp/ms-full-XXXXXX");
    if (!mkdtemp(dir)) return -1;
    pid_t child = fork();
    if (child == 0) {
        k3_config c;
        ms_error err;
        k3_config_official(&c);
        ms_synth_options o = {.sparse = true, .vision = true};
        ms_status st = k3_synth_write(dir, &c, &o, &err);
        if (st != MS_OK) (void)fprintf(stderr, "%s\n", err.message);
        _exit(st == MS_OK ? 0 : 1);
    }
    int how = 0;
    return child > 0 && waitpid(child, &how, 0) == child && WIFEXITED(how) && WEXITSTATUS(how) == 0 ? 0 : -1;
}

static int remove_entry(const char *path, const struct stat *st, int type, struct FTW *ftw) {
    (void)st, (void)type, (void)ftw;
    return remove(path);
}

static int remove_checkpoint(void **state) {
    (void)state;
    return nftw(dir, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}

static uint64_t item(const ms_plan *p, const char *group, const char *name) {
    for (size_t i = 0; i < p->item_count; i++)
        if (!strcmp(p->items[i].group, group) && !strcmp(p->items[i].name, name)) return p->items[i].bytes;
    fail_msg("the ledger has no line %s: %s", group, name);
    return 0;
}

static void ledger(void **state) {
    (void)state;
    ms_engine_options o;
    ms_plan *p = NULL, *longer = NULL;
    ms_error err;
    ms_engine_options_default(&o, dir);
    ok(ms_plan_create(&p, &o, &err), &err);
    assert_string_equal(p->lane, "k3");
    assert_int_equal(p->context, 8192);
    assert_int_equal(p->experts, 32);
    assert_int_equal(p->experts_all, 896);
    assert_int_equal(p->moe_layers, 92);
    assert_int_equal(p->expert_bytes, 17547264);
    assert_int_equal(ms_plan_group_bytes(p, "static"), UINT64_C(59345729536));
    assert_int_equal(item(p, "cache", "expert slots"), UINT64_C(51659145216)); /* 48.111 GiB */
    assert_int_equal(item(p, "state", "kda"), 434110464);
    assert_int_equal(item(p, "state", "conv"), 15261696);
    assert_int_equal(p->state_bytes_per_token, 27648);
    assert_int_equal(item(p, "state", "mla"), 27648 * 8192);
    uint64_t sum = 0;
    for (size_t i = 0; i < p->item_count; i++) sum += p->items[i].bytes;
    assert_int_equal(sum, p->total_bytes);

    o.context = 1000000;
    o.experts = 0;
    o.precision = MS_PRECISION_REFERENCE;
    ok(ms_plan_create(&longer, &o, &err), &err);
    assert_int_equal(longer->state_bytes_per_token, 2 * 27648);
    assert_int_equal(item(longer, "state", "mla"), UINT64_C(55296000000));
    assert_int_equal(item(longer, "state", "conv"), 2 * 15261696);
    assert_int_equal(ms_plan_group_bytes(longer, "cache"), 0);
    ms_plan_destroy(longer);
    ms_plan_destroy(p);
}

/* A reserve that no machine has makes the refusal certain where there is memory enough. */
static void refused_unallocated(void **state) {
    (void)state;
    ms_engine_options o;
    ms_engine *e = NULL;
    ms_error err;
    ms_engine_options_default(&o, dir);
    o.reserve_bytes = UINT64_C(1) << 50;
    REFUSED(ms_engine_open(&e, &o, &err), &err, MS_ERR_NO_FIT, "static 55.270", "cache 48.111", "available");
    assert_null(e);
    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    print_message("peak memory %ld KiB\n", usage.ru_maxrss);
    if (SANITIZED) print_message("not checked: a sanitizer's memory is not the program's\n");
    else assert_true(usage.ru_maxrss < 400L * 1000 * 1000 / 1024);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(ledger), cmocka_unit_test(refused_unallocated)};
    return cmocka_run_group_tests(tests, write_checkpoint, remove_checkpoint);
}
