/* sha256.h: SHA-256 of what files hold.
 *
 * Owns: a ms_sha256 its context.  Threads: one a object.  Errors: none after ms_sha256_begin, which may run out of
 * memory.
 */
#ifndef MS_STORE_SHA256_H
#define MS_STORE_SHA256_H

#include "base/error.h"

enum { MS_SHA256_BYTES = 32, MS_SHA256_HEX = 65 };

typedef struct ms_sha256 ms_sha256;
ms_status ms_sha256_begin(ms_sha256 **out, ms_error *err);
void ms_sha256_add(ms_sha256 *s, const void *data, size_t length);
void ms_sha256_end(ms_sha256 *s, uint8_t out[MS_SHA256_BYTES]); /* frees s */
void ms_sha256_drop(ms_sha256 *s);                              /* frees s; NULL is fine */

void ms_sha256_hex(char out[MS_SHA256_HEX], const uint8_t sha[MS_SHA256_BYTES]);
/* 64 lower-case hex digits; false for anything else. */
bool ms_sha256_from_hex(uint8_t out[MS_SHA256_BYTES], const char *text, size_t length);

/* A whole regular file; *bytes (may be NULL) gets its length. */
ms_status ms_sha256_file(uint8_t out[MS_SHA256_BYTES], const char *path, uint64_t *bytes, ms_error *err);

#endif
