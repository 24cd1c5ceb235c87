/* 100 builds of the expert store killed at random moments, with one job and with several. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../store/mzg2_kill.h"

static void one_job(void **state) {
    (void)state;
    kill_many(50, 1, 11);
}

static void several_jobs(void **state) {
    (void)state;
    kill_many(50, 4, 12);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(one_job), cmocka_unit_test(several_jobs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
