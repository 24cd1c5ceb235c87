/* http_path.h: the target of a request: its host, where it names one, and its path, decoded once.
 *
 * Threads: pure.  Errors: false for what no path may hold: a NUL, a control byte, a `..` segment, a broken escape,
 * bytes that are not UTF-8, or more than fits.
 */
#ifndef MS_SERVER_HTTP_PATH_H
#define MS_SERVER_HTTP_PATH_H

#include "base/error.h"

enum {
    MS_PATH_BYTES = 8192, /* as much as a request line may have */
    MS_HOST_BYTES = 262   /* a name of 255 bytes, a colon, a port, and the end */
};

/* A target as a request line has it: "/PATH", or "http://HOST[:PORT]/PATH", which is for proxies but no error here
 * (https too, for a proxy may have ended it).  host: empty where the target has none; *path: where the path begins, in
 * `raw` or "/".  false: neither form, a user name in the host, or a longer one than fits. */
bool ms_target_split(const char *raw, char host[MS_HOST_BYTES], const char **path);

/* raw: up to the end or a '?'.  A trailing slash is dropped. */
bool ms_path_decode(const char *raw, char out[MS_PATH_BYTES]);

#endif
