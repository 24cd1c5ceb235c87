/* text_render_cases.h: runs a render.json file (request -> segments, full text, ids) against k3_render. */
#ifndef TESTS_GOLDEN_TEXT_RENDER_CASES_H
#define TESTS_GOLDEN_TEXT_RENDER_CASES_H

#include "case_file.h"
#include "text/tokenizer.h"

/* Checks the `cases` and that each of `reject` is refused.  Ids are compared when `t` (the tokenizer of the
 * key ids_tok4096) is given. */
int golden_render_file(const char *path, const ms_tokenizer *t, golden_report *report, void *arg);

#endif
