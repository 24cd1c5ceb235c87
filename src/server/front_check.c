/* front_check.c: path, key, origin and length of a request, before its body is read. */
#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "server/front_internal.h"

enum { LINE_MAX_BYTES = 8 << 10, HEADERS_MAX = 100, HEADER_BYTES_MAX = 64 << 10, CLIENT_ID_MAX = 128 };

static enum MHD_Result one_header(void *arg, enum MHD_ValueKind kind, const char *name, const char *value) {
    (void)kind;
    ms_request_headers *h = arg;
    h->count++;
    if (!value) value = "";
    h->bytes += strlen(name) + strlen(value) + 4; /* ": " and the end of the line */
    if (strcasecmp(name, "Content-Length") == 0) {
        h->lengths++;
        h->length = value;
        return MHD_YES;
    }
    if (strcasecmp(name, "Host") == 0) h->hosts++;
    const struct {
        const char *name, **to;
    } known[] = {{"Transfer-Encoding", &h->transfer},
                 {"Content-Encoding", &h->encoding},
                 {"Expect", &h->expect},
                 {"Origin", &h->origin},
                 {"Host", &h->host},
                 {"Authorization", &h->authorization},
                 {"x-api-key", &h->api_key},
                 {"Content-Type", &h->type},
                 {"X-Client-Request-Id", &h->client_id}};
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        if (strcasecmp(name, known[i].name) == 0) *known[i].to = value;
    }
    return MHD_YES;
}

void ms_front_refuse(ms_exchange *x, int http, const char *code, const char *fmt, ...) {
    ms_api_error e = {.http = http, .code = code};
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(e.message, sizeof e.message, fmt, ap);
    va_end(ap);
    ms_log_line l;
    ms_log_begin(&l, x->front->o.log, MS_LOG_WARN, http == 401 ? "http.unauthorized" : "http.reject", x->id);
    ms_log_word(&l, "peer", x->peer);
    ms_log_u64(&l, "status", (uint64_t)http);
    ms_log_word(&l, "code", code);
    ms_log_word(&l, "method", x->post ? "POST" : x->head ? "HEAD" : strcmp(x->method, "GET") == 0 ? "GET" : "-");
    ms_log_word(&l, "path", x->route ? x->route->path : "-");
    ms_log_end(&l);
    ms_exchange_error(x, &e);
}

/* ------------------------------------------------------------------ key */

static bool key_in(const ms_keys *keys, const char *value) { return ms_keys_match(keys, value, strlen(value)); }

static bool bearer(const ms_keys *keys, const char *value) {
    static const char scheme[] = "Bearer ";
    return strncasecmp(value, scheme, sizeof scheme - 1) == 0 && key_in(keys, value + sizeof scheme - 1);
}

static bool authorized(const ms_exchange *x) {
    const ms_keys *keys = x->front->o.keys;
    const ms_request_headers *h = &x->headers;
    if (!keys || !keys->count) return true;
    if (!h->authorization && !h->api_key) return false;
    bool good = !h->authorization || bearer(keys, h->authorization);
    return (!h->api_key || key_in(keys, h->api_key)) && good;
}

/* ------------------------------------------------------------------ origin */

bool ms_front_origin_listed(const ms_exchange *x) {
    if (!x->headers.origin || !x->front->o.origins) return false;
    for (const char *const *o = x->front->o.origins; *o; o++) {
        if (strcmp(*o, x->headers.origin) == 0) return true;
    }
    return false;
}

static bool has_suffix(const char *s, size_t len, const char *suffix) {
    size_t n = strlen(suffix);
    return len >= n && strncasecmp(s + len - n, suffix, n) == 0;
}

static bool same_origin(const ms_request_headers *h) {
    const char *host = strstr(h->origin, "://");
    return host && h->host && strcasecmp(host + 3, h->host) == 0;
}

/* A number, localhost, or the name that the server was told to listen on.  Any other name may be a stranger's, made to
 * lead here for the sake of a page of theirs (DNS rebinding). */
static bool names_this_server(const ms_front *f, const char *host) {
    char name[256];
    struct in6_addr number;
    const bool six = host[0] == '[';
    const size_t len = six ? strcspn(++host, "]") : strcspn(host, ":");
    if (len >= sizeof name) return false;
    memcpy(name, host, len);
    name[len] = 0;
    if (inet_pton(six ? AF_INET6 : AF_INET, name, &number) == 1) return true;
    return strcasecmp(name, "localhost") == 0 || has_suffix(name, len, ".localhost") ||
           (f->o.host && *f->o.host && strcasecmp(name, f->o.host) == 0);
}

static bool origin_fits(const ms_exchange *x) {
    const ms_front *f = x->front;
    if (!x->headers.origin || ms_front_origin_listed(x)) return true;
    return same_origin(&x->headers) && ((f->o.keys && f->o.keys->count) || names_this_server(f, x->headers.host));
}

/* ------------------------------------------------------------------ content */

static bool type_is(const char *s, size_t len, const char *name) {
    return strlen(name) == len && strncasecmp(s, name, len) == 0;
}

/* A charset parameter other than utf-8 is not readable here. */
static bool charset_fits(const char *parameters) {
    const char *c = strcasestr(parameters, "charset=");
    if (!c) return true;
    c += strlen("charset=");
    if (*c == '"') c++;
    return strncasecmp(c, "utf-8", 5) == 0 || strncasecmp(c, "utf8", 4) == 0;
}

static bool content_type_fits(const ms_request_headers *h) {
    if (!h->type) return true;
    size_t len = strcspn(h->type, ";");
    if (!charset_fits(h->type + len)) return false;
    while (len && (h->type[len - 1] == ' ' || h->type[len - 1] == '\t')) len--;
    if (type_is(h->type, len, "application/json") || has_suffix(h->type, len, "+json")) return true;
    return !h->origin &&
           (type_is(h->type, len, "text/plain") || type_is(h->type, len, "application/x-www-form-urlencoded"));
}

/* Digits only, up to 2^63 - 1. */
static bool read_length(const char *s, uint64_t *out) {
    uint64_t v = 0;
    if (!*s) return false;
    for (; *s; s++) {
        if (*s < '0' || *s > '9' || v > (uint64_t)(INT64_MAX - (*s - '0')) / 10) return false;
        v = v * 10 + (uint64_t)(*s - '0');
    }
    *out = v;
    return true;
}

static bool check_framing(ms_exchange *x, uint64_t *length) {
    const ms_request_headers *h = &x->headers;
    *length = 0;
    if (h->lengths > 1 || (h->lengths && h->transfer) || (h->lengths && !read_length(h->length, length))) {
        ms_front_refuse(x, 400, "bad_http", "the body needs one Content-Length of decimal digits, or chunks");
    } else if (h->transfer && strcasecmp(h->transfer, "chunked") != 0) {
        ms_front_refuse(x, 501, "transfer_coding", "the only transfer coding known here is chunked");
    } else if (x->post && !h->lengths && !h->transfer) {
        ms_front_refuse(x, 411, "length_required", "a POST needs Content-Length or chunks");
    } else {
        return true;
    }
    return false;
}

static bool check_content(ms_exchange *x) {
    const ms_request_headers *h = &x->headers;
    uint64_t length;
    if (!check_framing(x, &length)) return false;
    if (h->expect && strcasecmp(h->expect, "100-continue") != 0) {
        ms_front_refuse(x, 417, "expectation_failed", "the only expectation known here is 100-continue");
    } else if (x->post && !content_type_fits(h)) {
        ms_front_refuse(x, 415, "unsupported_media_type", "expected a body of type application/json in UTF-8");
    } else if (h->encoding && strcasecmp(h->encoding, "identity") != 0) {
        ms_front_refuse(x, 415, "unsupported_media_type", "expected a body without Content-Encoding");
    } else if (length > x->front->o.max_body_bytes) {
        ms_front_refuse(x, 413, "body_too_large", "the body may have at most %llu bytes",
                        (unsigned long long)x->front->o.max_body_bytes);
    } else {
        return true;
    }
    return false;
}

/* ------------------------------------------------------------------ all of it */

static const ms_route *find_route(const ms_front *f, const char *path) {
    for (const ms_route *r = f->o.routes; r->path; r++) {
        size_t n = strlen(r->path);
        if (r->tail ? strncmp(path, r->path, n) == 0 && path[n] : strcmp(path, r->path) == 0) return r;
    }
    return NULL;
}

static bool check_route(ms_exchange *x) {
    if (!x->route) {
        ms_front_refuse(x, 404, "not_found", "there is nothing at this path");
        return false;
    }
    bool get = x->head || strcmp(x->method, "GET") == 0;
    if ((get && (x->route->methods & MS_GET)) || (x->post && (x->route->methods & MS_POST))) return true;
    ms_exchange_header(x, "Allow",
                       x->route->methods == MS_GET    ? "GET, HEAD, OPTIONS"
                       : x->route->methods == MS_POST ? "POST, OPTIONS"
                                                      : "GET, HEAD, POST, OPTIONS");
    ms_front_refuse(x, 405, "method_not_allowed", "this path is not for that method");
    return false;
}

/* A host in the target stands for the header, whatever that says (RFC 9112, 3.2.2). */
static bool read_target(ms_exchange *x, const char *url) {
    const char *path;
    if (!ms_target_split(url, x->host, &path) || !ms_path_decode(path, x->path)) return false;
    if (x->host[0]) x->headers.host = x->host;
    x->route = find_route(x->front, x->path);
    return true;
}

bool ms_front_check(ms_exchange *x, const char *url) {
    (void)MHD_get_connection_values(x->connection, MHD_HEADER_KIND, one_header, &x->headers);
    const char *id = x->headers.client_id;
    size_t id_len = id ? strlen(id) : 0;
    for (const char *s = id; s && *s; s++) {
        if (*s < 0x20 || *s > 0x7E) id_len = SIZE_MAX;
    }
    if (id && id_len <= CLIENT_ID_MAX) ms_exchange_header(x, "X-Client-Request-Id", id);
    bool fits = x->line_bytes <= LINE_MAX_BYTES, options = strcmp(x->method, "OPTIONS") == 0;
    bool path = fits && ((options && strcmp(url, "*") == 0) || read_target(x, url)); /* "*": the server as a whole */
    if (!fits) {
        ms_front_refuse(x, 414, "uri_too_long", "a request line may have at most %d bytes", LINE_MAX_BYTES);
    } else if (!path) {
        ms_front_refuse(x, 400, "bad_http", "the path is not one that a request may have");
    } else if (x->headers.hosts > 1 || (!x->headers.hosts && !x->http_1_0)) {
        ms_front_refuse(x, 400, "bad_http", "a request of HTTP/1.1 needs one Host header");
    } else if (x->headers.count > HEADERS_MAX) {
        ms_front_refuse(x, 431, "headers_too_large", "a request may have at most %d headers", HEADERS_MAX);
    } else if (x->headers.bytes > HEADER_BYTES_MAX) {
        ms_front_refuse(x, 431, "headers_too_large", "a request may have at most %d bytes of headers",
                        HEADER_BYTES_MAX);
    } else if (options) {
        ms_front_preflight(x);
    } else if (!(x->route && x->route->open) && !authorized(x)) {
        ms_exchange_header(x, "WWW-Authenticate", "Bearer");
        ms_front_refuse(x, 401, "invalid_api_key", "this server needs a valid API key");
    } else if (x->post && !origin_fits(x)) {
        ms_front_refuse(x, 403, "origin_not_allowed", "pages of this origin may not use the server (--cors-origin)");
    } else {
        return check_route(x) && check_content(x);
    }
    return false;
}
