#include "server/http_path.h"

#include <string.h>
#include <strings.h>

#include "base/utf8.h"

/* Letters, digits and what else names, addresses and ports are written with. */
static bool is_host_byte(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c && strchr("-._~[]:%", c));
}

bool ms_target_split(const char *raw, char host[MS_HOST_BYTES], const char **path) {
    static const char *const schemes[] = {"http://", "https://"};
    host[0] = 0;
    *path = raw;
    if (*raw == '/') return true;
    const char *s = NULL;
    for (size_t i = 0; i < 2; i++) {
        if (strncasecmp(raw, schemes[i], strlen(schemes[i])) == 0) s = raw + strlen(schemes[i]);
    }
    if (!s) return false;
    size_t n = 0;
    while (is_host_byte(s[n]) && n < MS_HOST_BYTES - 1) n++;
    if (!n || (s[n] && s[n] != '/' && s[n] != '?')) return false;
    memcpy(host, s, n);
    host[n] = 0;
    *path = s[n] == '/' ? s + n : "/";
    return true;
}

static int hex(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

static bool climbs(const char *path) {
    for (const char *s = path; (s = strstr(s, "..")); s += 2) {
        if ((s == path || s[-1] == '/') && (s[2] == 0 || s[2] == '/')) return true;
    }
    return false;
}

bool ms_path_decode(const char *raw, char out[MS_PATH_BYTES]) {
    size_t n = 0;
    if (*raw != '/') return false;
    for (const char *s = raw; *s && *s != '?'; s++) {
        unsigned char c = (unsigned char)*s;
        if (c == '%') {
            int high = hex(s[1]), low = high < 0 ? -1 : hex(s[2]);
            if (low < 0) return false;
            c = (unsigned char)(high * 16 + low);
            s += 2;
        }
        if (c < 0x20 || c == 0x7F || n + 1 == MS_PATH_BYTES) return false;
        out[n++] = (char)c;
    }
    if (n > 1 && out[n - 1] == '/') n--;
    out[n] = 0;
    return ms_utf8_valid(out, n) && !climbs(out);
}
