#include "server/log.h"

#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { TAIL_BYTES = 40 }; /* room for log_truncated and the end of the line */

static const char *const level_names[] = {"INFO", "WARN", "ERROR"};

void ms_log_init(ms_log *log, int fd, bool json) {
    const char *no_color = getenv("NO_COLOR");
    log->fd = fd;
    log->json = json;
    log->color = !json && fd >= 0 && isatty(fd) && !(no_color && *no_color);
    atomic_init(&log->dropped, 0);
}

/* Appends as much as leaves room for the tail. */
static void put(ms_log_line *l, const char *s, size_t len) {
    size_t room = sizeof l->text - TAIL_BYTES - l->len;
    if (l->truncated) return;
    if (len > room) {
        l->truncated = true;
        return;
    }
    memcpy(l->text + l->len, s, len);
    l->len += len;
}

static void puts_line(ms_log_line *l, const char *s) { put(l, s, strlen(s)); }

/* A value in text form: control bytes are spaces, and what has a space or a quote is quoted. */
static void put_text_value(ms_log_line *l, const char *s) {
    bool quote = *s == 0 || strpbrk(s, " \"\t\r\n") != NULL;
    if (quote) put(l, "\"", 1);
    for (; *s; s++) {
        char c = (unsigned char)*s < 0x20 || *s == 0x7F ? ' ' : *s == '"' ? '\'' : *s;
        put(l, &c, 1);
    }
    if (quote) put(l, "\"", 1);
}

static void put_json_value(ms_log_line *l, const char *s) {
    put(l, "\"", 1);
    for (; *s; s++) {
        if (*s == '"' || *s == '\\') put(l, "\\", 1);
        char c = (unsigned char)*s < 0x20 || *s == 0x7F ? ' ' : *s;
        put(l, &c, 1);
    }
    put(l, "\"", 1);
}

static void put_key(ms_log_line *l, const char *key) {
    puts_line(l, l->log->json ? ",\"" : " ");
    puts_line(l, key);
    puts_line(l, l->log->json ? "\":" : "=");
}

static void put_time(ms_log_line *l) {
    struct timespec now;
    struct tm utc;
    char text[40];
    (void)clock_gettime(CLOCK_REALTIME, &now);
    (void)gmtime_r(&now.tv_sec, &utc);
    size_t n = strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S", &utc);
    (void)snprintf(text + n, sizeof text - n, ".%03ldZ", now.tv_nsec / 1000000);
    puts_line(l, text);
}

void ms_log_begin(ms_log_line *l, ms_log *log, ms_log_level level, const char *event, const char *id) {
    static const char *const colors[] = {"", "\033[33m", "\033[31m"};
    l->log = log;
    l->level = level;
    l->len = 0;
    l->truncated = false;
    char head[128];
    if (log->json) {
        puts_line(l, "{\"time\":\"");
        put_time(l);
        (void)snprintf(head, sizeof head, "\",\"level\":\"%s\",\"event\":\"%s\"", level_names[level], event);
    } else {
        put_time(l);
        (void)snprintf(head, sizeof head, " %s%-5s%s %-25s", log->color ? colors[level] : "", level_names[level],
                       log->color && *colors[level] ? "\033[0m" : "", event);
    }
    puts_line(l, head);
    ms_log_word(l, "id", id);
}

void ms_log_word(ms_log_line *l, const char *key, const char *value) {
    if (!value) return;
    put_key(l, key);
    if (l->log->json)
        put_json_value(l, value);
    else
        put_text_value(l, value);
}

void ms_log_u64(ms_log_line *l, const char *key, uint64_t value) {
    char text[24];
    (void)snprintf(text, sizeof text, "%llu", (unsigned long long)value);
    put_key(l, key);
    puts_line(l, text);
}

void ms_log_real(ms_log_line *l, const char *key, double value) {
    char text[64];
    (void)snprintf(text, sizeof text, "%.3f", isfinite(value) ? value : 0.0);
    put_key(l, key);
    puts_line(l, text);
}

void ms_log_yes(ms_log_line *l, const char *key, bool value) {
    put_key(l, key);
    if (l->log->json)
        puts_line(l, value ? "true" : "false");
    else
        puts_line(l, value ? "yes" : "no");
}

void ms_log_end(ms_log_line *l) {
    if (l->log->fd < 0) return;
    const char *tail = l->log->json ? (l->truncated ? ",\"log_truncated\":true}\n" : "}\n")
                                    : (l->truncated ? " log_truncated=yes\n" : "\n");
    size_t n = strlen(tail);
    memcpy(l->text + l->len, tail, n);
    struct pollfd ready = {.fd = l->log->fd, .events = POLLOUT};
    if (poll(&ready, 1, 0) != 1 || !(ready.revents & POLLOUT) ||
        write(l->log->fd, l->text, l->len + n) != (ssize_t)(l->len + n)) {
        (void)atomic_fetch_add(&l->log->dropped, 1);
    }
}
