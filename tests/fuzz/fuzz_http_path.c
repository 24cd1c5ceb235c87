/* Request targets: what comes out is a host without odd bytes, and a path. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "server/http_path.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    char *raw = malloc(size + 1), out[MS_PATH_BYTES], host[MS_HOST_BYTES];
    const char *path;
    if (!raw) return 0;
    if (size) memcpy(raw, data, size);
    raw[size] = 0;
    bool whole = ms_target_split(raw, host, &path);
    if (whole && (strlen(host) >= MS_HOST_BYTES || strpbrk(host, "/?#@ ") || *path != '/')) abort();
    if (ms_path_decode(whole ? path : raw, out)) {
        size_t n = strlen(out);
        if (out[0] != '/' || n >= MS_PATH_BYTES || !ms_utf8_valid(out, n) || strstr(out, "/../")) abort();
    }
    free(raw);
    return 0;
}
