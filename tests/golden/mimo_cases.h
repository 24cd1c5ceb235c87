/* mimo_cases.h: checks a MiMo V2.6 checkpoint with expected outputs: golden.json and chat_cases.json beside
 * config.json.
 *
 * golden.json gives a prompt, the greedy continuation, the experts of every token and files of logits, computed in
 * double precision; the engine runs it in `reference` precision, whole, token by token and in odd pieces.
 */
#ifndef MS_TESTS_GOLDEN_MIMO_CASES_H
#define MS_TESTS_GOLDEN_MIMO_CASES_H

#include "report.h"

/* False when the folder is not a MiMo checkpoint with one of the two files.  backend: NULL for the CPU. */
bool golden_mimo_dir(const char *dir, const char *backend, golden_report *report, void *arg);

#endif
