/* report.h: how the drivers of golden case files tell what they found. */
#ifndef MS_TESTS_GOLDEN_REPORT_H
#define MS_TESTS_GOLDEN_REPORT_H

#include <stdbool.h>

/* Called once a case.  `detail` says what differs, or, when ok, is NULL, "" or a remark (why a file was skipped). */
typedef void golden_report(void *arg, const char *case_name, bool ok, const char *detail);

#endif
