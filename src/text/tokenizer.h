/* tokenizer.h: text to token ids and back, for tiktoken-style rank files and for tokenizer.json (hf_tokenizer.h).
 *
 * Rules of a rank file: 400,000 code point and 25,000 run cuts, then the fixed pre-tokenizer pattern over Unicode 16.0
 * classes, then byte-pair merging by rank of the joined bytes.  n ranks are ids 0..n-1; 256 control ids
 * follow at n.. with fixed names.  Of a tokenizer.json the added tokens are the control ids.
 *
 * Owns: a tokenizer owns its tables; immutable after open.
 * Threads: encode, decode and lookups may run on many threads at once; a stream belongs to one.
 * Errors: a bad rank file names the file and the line; encode only fails on memory.
 */
#ifndef MS_TEXT_TOKENIZER_H
#define MS_TEXT_TOKENIZER_H

#include "base/error.h"
#include "base/json.h"

typedef struct ms_tokenizer ms_tokenizer;

typedef enum ms_tokenizer_kind {
    MS_TOKENIZER_RANKS, /* a tiktoken-style rank file */
    MS_TOKENIZER_HF     /* tokenizer.json: byte-level BPE with merges */
} ms_tokenizer_kind;

enum { MS_CONTROL_COUNT = 256 };
/* offsets of control ids from the first one */
enum {
    MS_CTL_BOS = 0, MS_CTL_EOS = 1, MS_CTL_END_OF_MSG = 2, MS_CTL_OPEN = 3, MS_CTL_CLOSE = 4, MS_CTL_SEP = 5,
    MS_CTL_EOT = 9, MS_CTL_UNK = 254, MS_CTL_PAD = 255
};

/* A growing list of ids. */
typedef struct ms_ids {
    uint32_t *data;
    size_t count, cap;
} ms_ids;
ms_status ms_ids_push(ms_ids *ids, uint32_t id, ms_error *err);
ms_status ms_ids_append(ms_ids *ids, const uint32_t *more, size_t count, ms_error *err);
void ms_ids_free(ms_ids *ids);

/* Reads a rank file (`<base64> <rank>` lines; LF or CR LF; empty lines skipped; dense from 0; every single
 * byte present; n >= 256). */
ms_status ms_tokenizer_open(ms_tokenizer **out, const char *rank_path, ms_error *err);
/* The same from memory; `name` is for messages. */
ms_status ms_tokenizer_parse(ms_tokenizer **out, const char *data, size_t len, const char *name, ms_error *err);
/* The same for a tokenizer.json. */
ms_status ms_tokenizer_open_hf(ms_tokenizer **out, const char *path, ms_error *err);
ms_status ms_tokenizer_parse_hf(ms_tokenizer **out, const char *data, size_t len, const char *name, ms_error *err);
void ms_tokenizer_close(ms_tokenizer *t);

uint32_t ms_tokenizer_ids(const ms_tokenizer *t);             /* ids from here on have no token */
uint32_t ms_tokenizer_ranks(const ms_tokenizer *t);           /* rank files: n, the first control id; else 0 */
uint32_t ms_tokenizer_first_control(const ms_tokenizer *t);   /* the lowest control id; without any: ms_tokenizer_ids */
uint64_t ms_tokenizer_digest(const ms_tokenizer *t);          /* FNV-1a-64 over lengths and bytes of all tokens */
const char *ms_tokenizer_control_name(const ms_tokenizer *t, uint32_t id); /* NULL when id is not a control id */

/* The control id of this name; false: there is none. */
bool ms_tokenizer_control_id(const ms_tokenizer *t, const char *name, size_t len, uint32_t *id);
/* Whether a control id leaves no text in a reply; false: its name is the text, as for `<think>`. */
bool ms_tokenizer_control_hidden(const ms_tokenizer *t, uint32_t id);

/* Rank files: compares names in tokenizer_config.json's added_tokens_decoder with the built-in table; a difference is
 * MS_ERR_FORMAT naming the id, both names and the file; so is a file without that key.  `config` is the parsed file. */
ms_status ms_tokenizer_check_names(const ms_tokenizer *t, const ms_json *config, const char *file, ms_error *err);

/* Appends the ids of text[0..len).  Ill-formed UTF-8 becomes U+FFFD first.  special: control names become
 * their ids (raw prompts and tests only). */
ms_status ms_tokenizer_encode(const ms_tokenizer *t, const char *text, size_t len, bool special, ms_ids *out,
                              ms_error *err);
/* Limits of the hard cuts, in code points; both at least 1.  Encoding uses 400,000 and 25,000. */
typedef struct ms_cut_limits {
    size_t chunk_chars, run_chars;
} ms_cut_limits;
/* Encoding with other limits: test data states some.  A limit of 0 is MS_ERR_USAGE.  A tokenizer.json has no limits. */
ms_status ms_tokenizer_encode_cut(const ms_tokenizer *t, const char *text, size_t len, bool special,
                                  const ms_cut_limits *limits, ms_ids *out, ms_error *err);
/* Splits only (rank files): appends to `ends` the byte end offset of each piece in the repaired text; for tests. */
ms_status ms_tokenizer_pieces(const ms_tokenizer *t, const char *text, size_t len, bool special, ms_text *repaired,
                              ms_ids *ends, ms_error *err);

/* Bytes of an ordinary token; NULL for control ids and ids without a token. */
const uint8_t *ms_tokenizer_token(const ms_tokenizer *t, uint32_t id, size_t *len);

/* Decodes a whole list; control ids give nothing, or their names when names is true or they are not hidden.  Ids without
 * a token are MS_ERR_USAGE. */
ms_status ms_tokenizer_decode(const ms_tokenizer *t, const uint32_t *ids, size_t count, bool names, ms_text *out,
                              ms_error *err);

/* Streaming UTF-8: bytes in, decided text out.  Plain value, zero-initialised. */
typedef struct ms_utf8_stream {
    uint8_t pending[4];
    unsigned count;
} ms_utf8_stream;
/* Appends to `out` the longest decided prefix; each maximal ill-formed subpart gives one U+FFFD.
 * The start of a surrogate (ED A0..BF) is held back like a cut code point. */
void ms_utf8_stream_push(ms_utf8_stream *s, const uint8_t *bytes, size_t len, ms_text *out);
/* End of stream or a control token: an incomplete rest becomes one U+FFFD. */
void ms_utf8_stream_end(ms_utf8_stream *s, ms_text *out);

#endif
