/* http_path.h: the path of a request, decoded once.
 *
 * Threads: pure.  Errors: false for what no path may hold: a NUL, a control byte, a `..` segment, a broken escape,
 * bytes that are not UTF-8, or more than fits.
 */
#ifndef MS_SERVER_HTTP_PATH_H
#define MS_SERVER_HTTP_PATH_H

#include "base/error.h"

enum { MS_PATH_BYTES = 8192 }; /* as much as a request line may have */

/* raw: up to the end or a '?'.  A trailing slash is dropped. */
bool ms_path_decode(const char *raw, char out[MS_PATH_BYTES]);

#endif
