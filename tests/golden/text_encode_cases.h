/* text_encode_cases.h: checks a tokenizer against the case files of tests/golden/k3-text.
 *
 * An encode file is an object with `cases` (or `encode`): each has a `name`; the input as `text`, `repeat`
 * ([text, count] pairs), `bytes_hex` or `json_literal`; optionally `as_text` (the input after repair), `pieces`,
 * `mode` ("special"), `run_chars` and `chunk_chars`; and the ids as any of `ids`, `ids_rle`, `count`,
 * `fnv1a64_le32`.  A decode file has `cases` with `ids`, `text` and `stream` (what appears after each id, and at
 * the end).  Both name a `rank_file` beside them, or say in `needs` which one they were made with.
 */
#ifndef MS_TESTS_GOLDEN_TEXT_ENCODE_CASES_H
#define MS_TESTS_GOLDEN_TEXT_ENCODE_CASES_H

#include <stdbool.h>

#include "report.h"
#include "text/tokenizer.h"


/* Checks every case of the file; returns how many failed (an unreadable file counts as one).  With t NULL the file's
 * own `rank_file` is opened; a file with `needs` is then skipped, with one report that says so. */
int golden_encode_file(const char *path, ms_tokenizer *t, golden_report *report, void *arg);
int golden_decode_file(const char *path, ms_tokenizer *t, golden_report *report, void *arg);

#endif
