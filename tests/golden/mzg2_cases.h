/* mzg2_cases.h: runs a set of expert store samples: layer files beside the source bytes, slot images and signs they
 * stand for. */
#ifndef TESTS_GOLDEN_MZG2_CASES_H
#define TESTS_GOLDEN_MZG2_CASES_H

#include "report.h"

/* A folder with golden.json and at least one *.mzg2 file.  False: it is no such set. */
bool golden_mzg2_dir(const char *dir, golden_report *report, void *arg);

#endif
