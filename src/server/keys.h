/* keys.h: the API keys of the server.
 *
 * Owns: SHA-256 digests of the keys, not the keys.  Threads: immutable once the server runs.
 * Errors: a key file that others may read or that is not plain lines is MS_ERR_USAGE or MS_ERR_IO, naming the file and
 * never a line of it.
 */
#ifndef MS_SERVER_KEYS_H
#define MS_SERVER_KEYS_H

#include "base/error.h"

enum { MS_KEY_DIGEST_BYTES = 32 };

typedef struct ms_keys {
    uint8_t (*digests)[MS_KEY_DIGEST_BYTES];
    size_t count;
} ms_keys;

/* An empty key adds nothing. */
ms_status ms_keys_add(ms_keys *k, const char *key, size_t len, ms_error *err);
/* One key a line; blank lines and lines that begin with # do not count; spaces around a key are cut off. */
ms_status ms_keys_add_file(ms_keys *k, const char *path, ms_error *err);
void ms_keys_free(ms_keys *k);
/* The time it takes depends on the number of keys and the length of `key` alone. */
bool ms_keys_match(const ms_keys *k, const char *key, size_t len);

#endif
