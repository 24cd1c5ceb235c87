#include "http_client.h"

#include <arpa/inet.h>
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

int http_connect(uint32_t port) {
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    a.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (fd >= 0 && connect(fd, (struct sockaddr *)&a, sizeof a) == 0) return fd;
    if (fd >= 0) (void)close(fd);
    return -1;
}

bool http_send(int fd, const char *data, size_t len) {
    while (len) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        if (poll(&p, 1, HTTP_LIMIT_MS) != 1) return false;
        ssize_t n = send(fd, data, len, MSG_NOSIGNAL);
        if (n <= 0) return false;
        data += n;
        len -= (size_t)n;
    }
    return true;
}

bool http_puts(int fd, const char *text) { return http_send(fd, text, strlen(text)); }

/* -1: end or error, else bytes. */
static ssize_t some(int fd, char *to, size_t room) {
    struct pollfd p = {.fd = fd, .events = POLLIN};
    if (poll(&p, 1, HTTP_LIMIT_MS) != 1) return -1;
    ssize_t n = recv(fd, to, room, 0);
    return n > 0 ? n : -1;
}

bool http_read_until(int fd, ms_text *all, const char *text) {
    char piece[4096];
    while (!all->data || !strstr(all->data, text)) {
        ssize_t n = some(fd, piece, sizeof piece);
        if (n < 0) return false;
        ms_text_append(all, piece, (size_t)n);
    }
    return true;
}

static bool read_exactly(int fd, ms_text *to, size_t len) {
    char piece[4096];
    while (len) {
        ssize_t n = some(fd, piece, len < sizeof piece ? len : sizeof piece);
        if (n < 0) return false;
        ms_text_append(to, piece, (size_t)n);
        len -= (size_t)n;
    }
    return true;
}

static bool read_line(int fd, ms_text *line) {
    line->len = 0;
    char c;
    while (some(fd, &c, 1) == 1) {
        ms_text_append(line, &c, 1);
        if (c == '\n') return true;
    }
    return false;
}

static bool read_chunks(int fd, ms_text *to) {
    ms_text line = {0};
    bool good = false;
    while (read_line(fd, &line)) {
        size_t n = strtoul(line.data, NULL, 16);
        if (!n) {
            good = read_line(fd, &line);
            break;
        }
        if (!read_exactly(fd, to, n) || !read_line(fd, &line)) break;
    }
    ms_text_free(&line);
    return good;
}

void http_read(int fd, http_response *r, bool head_request) {
    *r = (http_response){0};
    ms_text line = {0};
    while (read_line(fd, &line)) {
        ms_text_append(&r->head, line.data, line.len);
        if (strcmp(line.data, "\r\n") == 0) break;
    }
    ms_text_free(&line);
    if (!r->head.data || sscanf(r->head.data, "HTTP/1.%*c %d", &r->status) != 1) return;
    if (r->status / 100 == 1) return;
    const char *length = http_header(r, "Content-Length"), *coding = http_header(r, "Transfer-Encoding");
    if (head_request || r->status == 204) {
        r->complete = true;
    } else if (coding && strcasecmp(coding, "chunked") == 0) {
        r->complete = read_chunks(fd, &r->body);
    } else if (length) {
        r->complete = read_exactly(fd, &r->body, strtoul(length, NULL, 10));
    } else {
        char piece[4096];
        for (ssize_t n; (n = some(fd, piece, sizeof piece)) > 0;) ms_text_append(&r->body, piece, (size_t)n);
        r->complete = true;
    }
}

void http_free(http_response *r) {
    ms_json_free(r->doc);
    ms_text_free(&r->head);
    ms_text_free(&r->body);
    *r = (http_response){0};
}

const char *http_header(const http_response *r, const char *name) {
    static _Thread_local char values[4][512];
    static _Thread_local unsigned turn;
    char *value = values[turn++ % 4];
    size_t n = strlen(name);
    for (const char *s = r->head.data ? strchr(r->head.data, '\n') : NULL; s && s[1]; s = strchr(s + 1, '\n')) {
        if (strncasecmp(s + 1, name, n) != 0 || s[1 + n] != ':') continue;
        const char *v = s + 2 + n;
        while (*v == ' ') v++;
        (void)snprintf(value, sizeof values[0], "%.*s", (int)strcspn(v, "\r\n"), v);
        return value;
    }
    return NULL;
}

const ms_json *http_json(http_response *r) {
    if (!r->doc && r->body.data) {
        const ms_json_limits limits = {.max_depth = 200};
        (void)ms_json_parse(&r->doc, r->body.data, r->body.len, "body", &limits, NULL);
    }
    return ms_json_root(r->doc);
}

static const ms_json *at_path(http_response *r, const char *path) {
    const ms_json *v = http_json(r);
    while (v && *path) {
        char key[64];
        size_t n = strcspn(path, ".");
        (void)snprintf(key, sizeof key, "%.*s", (int)n, path);
        v = v->type == MS_JSON_ARRAY ? ms_json_at(v, strtoul(key, NULL, 10)) : ms_json_get(v, key);
        path += n + (path[n] == '.');
    }
    return v;
}

const char *http_text(http_response *r, const char *path) {
    const ms_json *v = at_path(r, path);
    return v && v->type == MS_JSON_STRING ? v->str : "";
}

long http_number(http_response *r, const char *path) {
    const ms_json *v = at_path(r, path);
    uint64_t n;
    return v && ms_json_u64(v, &n) ? (long)n : -1;
}

void http_call(uint32_t port, const char *method, const char *path, const char *headers, const char *body,
               http_response *r) {
    ms_text t = {0};
    *r = (http_response){0};
    int fd = http_connect(port);
    if (fd < 0) return;
    ms_text_printf(&t, "%s %s HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n%s", method, path,
                   headers ? headers : "");
    if (body) ms_text_printf(&t, "Content-Type: application/json\r\nContent-Length: %zu\r\n", strlen(body));
    ms_text_puts(&t, "\r\n");
    if (body) ms_text_puts(&t, body);
    (void)http_send(fd, t.data, t.len);
    http_read(fd, r, strcmp(method, "HEAD") == 0);
    (void)close(fd);
    ms_text_free(&t);
}

void pause_ms(unsigned ms) {
    const struct timespec t = {.tv_sec = ms / 1000, .tv_nsec = (long)(ms % 1000) * 1000000};
    (void)nanosleep(&t, NULL);
}
