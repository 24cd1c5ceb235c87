/* text_parse_cases.h: runs a parse.json file (generated ids -> reply) against the K3 reply parser. */
#ifndef TESTS_GOLDEN_TEXT_PARSE_CASES_H
#define TESTS_GOLDEN_TEXT_PARSE_CASES_H

#include "case_file.h"
#include "text/tokenizer.h"

/* `t` is the tokenizer of the key ids_tok4096.  Also checked: the segments have these ids, and the deltas of
 * each push joined are the reply's texts. */
int golden_parse_file(const char *path, const ms_tokenizer *t, golden_report *report, void *arg);

#endif
