/* k3_cases.h: checks a Kimi K3 checkpoint with expected outputs (a folder with config.json and golden/NAME.json).
 *
 * Each case file gives a prompt, logits of every position, a greedy continuation, chosen experts and state norms, computed in
 * double precision; the engine runs it in `reference` precision, whole, token by token and in odd pieces.
 */
#ifndef MS_TESTS_GOLDEN_K3_CASES_H
#define MS_TESTS_GOLDEN_K3_CASES_H

#include "report.h"

/* Runs every golden/NAME.json below `dir` on a backend (NULL: the CPU); false when there is none or the folder is not a K3 checkpoint. */
bool golden_k3_dir(const char *dir, const char *backend, golden_report *report, void *arg);

#endif
