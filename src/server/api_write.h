/* api_write.h: what the codecs share on the way out: ids, seals, usage, stream framing.
 *
 * Owns: a base owns its collected texts.  Threads: one writer, one thread.
 * Errors: a failed allocation or random source marks the output as failed.
 */
#ifndef MS_SERVER_API_WRITE_H
#define MS_SERVER_API_WRITE_H

#include "server/api_read.h"

/* First member of every writer. */
typedef struct ms_api_base {
    ms_api_writer writer;
    const ms_api_request *r;
    ms_api_start start; /* its model and fingerprint texts outlive the writer */
    bool started, ended;
    uint32_t calls;     /* begun so far */
    ms_text name, args; /* of the call in progress */
} ms_api_base;
void ms_api_base_free(ms_api_base *b); /* the base's texts, not the writer */

/* PREFIX and 24 random letters and digits; false: no random source. */
bool ms_api_random_id(char *out, size_t size, const char *prefix);
/* Begins a call: draws its id with this prefix, remembers its name. */
void ms_api_base_call(ms_api_base *b, ms_text *out, const char *prefix, const char *name, size_t len);

void ms_api_put_n(ms_text *out, const char *s, size_t len); /* quoted; NULL is "" */
/* ": TEXT" and an empty line for each line of text. */
void ms_api_comment(ms_text *out, const char *text);
void ms_api_keepalive(ms_api_writer *w, ms_text *out, const char *what);
/* A keepalive in the words of progress; for APIs without progress chunks. */
void ms_api_progress(ms_api_writer *w, ms_text *out, uint64_t total, uint64_t cached, uint64_t processed,
                     uint64_t elapsed_ms);
/* {"prompt_tokens":...} of chat and completions. */
void ms_api_put_usage(ms_text *out, const ms_api_usage *u);
const char *ms_api_finish_reason(ms_api_finish f);
/* "data: {error with status}" and the end mark of chat and completions streams. */
void ms_api_stream_error(ms_text *out, const ms_api_error *e);

/* Keyed digest of a text as base64; good: does this text have this digest? */
void ms_api_sign(ms_text *out, const uint8_t key[MS_API_KEY_BYTES], const char *s, size_t len);
bool ms_api_sign_good(const uint8_t key[MS_API_KEY_BYTES], const char *s, size_t len, const char *sign,
                      size_t sign_len);
/* An encrypted and authenticated copy of a text, base64url. */
void ms_api_seal(ms_text *out, const uint8_t key[MS_API_KEY_BYTES], const char *s, size_t len);
/* Appends the text; false when the blob is not of this key or was changed. */
bool ms_api_unseal(ms_text *out, const uint8_t key[MS_API_KEY_BYTES], const char *blob, size_t len);

ms_api_writer *ms_api_chat_writer(const ms_api_request *r);
ms_api_writer *ms_api_messages_writer(const ms_api_request *r);
ms_api_writer *ms_api_responses_writer(const ms_api_request *r);

#endif
