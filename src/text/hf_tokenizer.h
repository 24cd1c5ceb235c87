/* hf_tokenizer.h: the contents of a tokenizer.json: byte-level BPE with explicit merges; inside of ms_tokenizer.
 *
 * Accepted: model BPE without byte fallback, dropout, prefix or suffix; normalizer NFC or none; pre-tokenizer a split
 * by ms_pretoken_plain_pattern, then byte level without prefix space; no post-processing that adds tokens.  Text is cut
 * at added tokens (special only: the longest at each place), the rest normalised, split, and merged by rank of the
 * pair.
 *
 * Owns: tables; immutable after parsing.  Threads: encode and lookups may run on many threads.
 * Errors: MS_ERR_FORMAT for damage, MS_ERR_UNSUPPORTED for another kind of tokenizer; both name the field.
 */
#ifndef MS_TEXT_HF_TOKENIZER_H
#define MS_TEXT_HF_TOKENIZER_H

#include "text/tokenizer.h"

typedef struct ms_hf ms_hf;

ms_status ms_hf_parse(ms_hf **out, const char *data, size_t len, const char *name, ms_error *err);
void ms_hf_free(ms_hf *t); /* NULL is fine */

uint32_t ms_hf_ids(const ms_hf *t);
uint64_t ms_hf_digest(const ms_hf *t); /* of tokens, merges and added tokens */
const uint8_t *ms_hf_token(const ms_hf *t, uint32_t id, size_t *len);
const char *ms_hf_added_name(const ms_hf *t, uint32_t id);
bool ms_hf_added_id(const ms_hf *t, const char *name, size_t len, uint32_t *id);
bool ms_hf_added_special(const ms_hf *t, uint32_t id);

/* text[0..len) is well-formed.  On an error ids may have been appended. */
ms_status ms_hf_encode(const ms_hf *t, const uint8_t *text, size_t len, bool special, ms_ids *out, ms_error *err);

#endif
