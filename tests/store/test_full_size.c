/* The layout of the official model at full size, with holes for the payload: sizes to the byte, time, memory. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

#include "lane/k3/k3_layout.h"
#include "lane/k3/k3_synth.h"
#include "store_util.h"

/* A sanitizer's own memory would be counted. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
enum { SANITIZED = 1 };
#elif defined(__has_feature)
enum { SANITIZED = __has_feature(address_sanitizer) || __has_feature(thread_sanitizer) };
#else
enum { SANITIZED = 0 };
#endif

static double seconds(void) {
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* In a child, so that the writer's memory does not count against the reader's. */
static void write_in_child(const char *dir) {
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        k3_config c;
        k3_config_official(&c);
        ms_synth_options opt = {.sparse = true, .vision = true};
        ms_error err = {0};
        ms_status status = k3_synth_write(dir, &c, &opt, &err);
        if (status != MS_OK) (void)fprintf(stderr, "%s\n", err.message);
        _exit(status == MS_OK ? 0 : 1);
    }
    int how = 0;
    assert_int_equal(waitpid(child, &how, 0), child);
    assert_true(WIFEXITED(how) && WEXITSTATUS(how) == 0);
}

static uint64_t size_of(const char *dir, const char *name, uint64_t *header) {
    char path[PATH_BYTES];
    struct stat st;
    uint8_t length[8];
    path_in(path, dir, name);
    int fd = open(path, O_RDONLY);
    assert_true(fd >= 0);
    assert_int_equal(fstat(fd, &st), 0);
    assert_int_equal(read(fd, length, sizeof length), 8);
    (void)close(fd);
    if (header) *header = 8 + ms_le64(length);
    return (uint64_t)st.st_size;
}

static void check_files(const char *dir) {
    uint64_t header;
    (void)size_of(dir, "model-00002-of-000096.safetensors", &header); /* layer 1: KDA */
    assert_int_equal(header, 818704);
    (void)size_of(dir, "model-00005-of-000096.safetensors", &header); /* layer 4: KDA */
    assert_int_equal(header, 818704);
    (void)size_of(dir, "model-00093-of-000096.safetensors", &header); /* layer 92: MLA */
    assert_int_equal(header, 823016);
    assert_int_equal(size_of(dir, "model-00095-of-000096.safetensors", NULL), 92289328);
    assert_int_equal(size_of(dir, "model-00096-of-000096.safetensors", NULL), 802448352);
}

static void test_full_size(void **state) {
    (void)state;
    char dir[PATH_BYTES];
    make_dir(dir);
    double start = seconds();
    write_in_child(dir);
    print_message("written in %.2f s\n", seconds() - start);
    check_files(dir);

    start = seconds();
    ms_json_doc *doc = NULL;
    char *text = NULL;
    ms_error err = {0};
    k3_config cfg;
    ms_checkpoint *c = NULL;
    ms_expert_table experts = {0};
    if (ms_checkpoint_read_config(dir, &doc, &text, &err) != MS_OK ||
        k3_config_parse(&cfg, ms_json_root(doc), "config.json", &err) != MS_OK ||
        ms_checkpoint_open(&c, dir, k3_tensor_needed, NULL, &err) != MS_OK)
        fail_msg("%s", err.message);
    print_message("opened in %.2f s\n", seconds() - start);
    if (k3_layout_check(c, &cfg, &experts, &err) != MS_OK) fail_msg("%s", err.message);
    print_message("opened and checked in %.2f s\n", seconds() - start);
    remove_dir(dir); /* before the assertions, so that no failure leaves it */

    ms_checkpoint_totals totals;
    ms_checkpoint_get_totals(c, &totals);
    assert_int_equal(totals.indexed_tensors, 497220);
    assert_int_equal(totals.indexed_shards, 96);
    assert_int_equal(totals.skipped_shards, 2);
    assert_int_equal(ms_checkpoint_tensor_count(c), 497052);
    assert_int_equal(experts.layer_count, 92);
    assert_int_equal(experts.expert_count, 896);
    assert_int_equal(experts.expert_bytes, 17547264);
    /* layers 1 and 4: the first expert starts where the real files have it; string order follows */
    assert_int_equal(experts.extents[0].offset, 1268562960);
    assert_int_equal(experts.extents[3 * 896].offset, 1268562960);
    assert_int_equal(experts.extents[10].offset, 1268562960 + 2 * UINT64_C(17547264)); /* after 0 and 1 */
    ms_expert_table_free(&experts);
    ms_checkpoint_close(c);
    ms_json_free(doc);
    free(text);

    struct rusage usage;
    assert_int_equal(getrusage(RUSAGE_SELF, &usage), 0);
    print_message("peak memory %ld KiB\n", usage.ru_maxrss);
    if (!SANITIZED) assert_true(usage.ru_maxrss < 400L * 1000 * 1000 / 1024);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_full_size)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
