/* The folder of kept states while the program is killed, its files are damaged, or the disk is full: the server starts,
 * answers like one that keeps nothing, and leaves nothing behind.
 *
 * A talk is a conversation with tools; what a server without any reuse answers to it is what is expected.  tests/soak
 * runs this file with more rounds. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "program.h"

#ifndef KILLS
#define KILLS 10
#endif
#ifndef DAMAGES
#define DAMAGES 1 /* of each kind */
#endif

enum { TALKS = 6, STEPS = 4, MOST_ENTRIES = 3, MOST_BYTES = 4000000 };

static char folder[64], root[96], saved[96], work[256];
static uint32_t random_state = 20;

static uint32_t random_below(uint32_t n) {
    random_state = random_state * 1664525u + 1013904223u;
    return (random_state >> 8) % n;
}

static void shell(const char *format, ...) {
    va_list ap;
    va_start(ap, format);
    (void)vsnprintf(work, sizeof work, format, ap);
    va_end(ap);
    if (system(work) != 0) fail_msg("%s", work);
}

/* ------------------------------------------------------------------ talks */

typedef struct talk {
    ms_text messages;
    size_t step;
    long kept; /* tokens after the last step */
    char call[64];
} talk;

static char *expected[TALKS][STEPS];

static void talk_free(talk *t) {
    ms_text_free(&t->messages);
    *t = (talk){0};
}

/* All that a client sees of a reply but its random names. */
static char *reply_of(http_response *r) {
    ms_text t = {0};
    ms_text_printf(&t, "%s|%s|%s|%s|%s", http_text(r, "choices.0.finish_reason"),
                   http_text(r, "choices.0.message.reasoning_content"), http_text(r, "choices.0.message.content"),
                   http_text(r, "choices.0.message.tool_calls.0.function.name"),
                   http_text(r, "choices.0.message.tool_calls.0.function.arguments"));
    return t.data;
}

/* The next step; on an answer the talk goes on.  false: the server went away, and the talk is as before. */
static bool talk_step(talk *t, size_t which, uint32_t port, http_response *r) {
    static const char *const cities[] = {"Paris", "Rome", "Berlin", "Oslo", "Madrid", "Vienna", "London"};
    size_t before = t->messages.len;
    bool asks = t->step % 2 == 0;
    if (!before && which % 3 == 0) { /* longer than what is kept on its own */
        ms_text_puts(&t->messages, "{\"role\":\"system\",\"content\":\"");
        for (int i = 0; i < 140; i++) ms_text_puts(&t->messages, "Always be kind. ");
        ms_text_puts(&t->messages, "\"},");
    }
    if (t->step) ms_text_puts(&t->messages, ",");
    if (asks) {
        ms_text_printf(&t->messages, "{\"role\":\"user\",\"content\":\"What is the weather in %s?\"}",
                       cities[(which + t->step) % 7]);
    } else {
        ms_text_printf(&t->messages, "{\"role\":\"tool\",\"tool_call_id\":\"%s\",\"content\":\"%zu degrees\"}", t->call,
                       10 + which);
    }
    chat_try(port, t->messages.data, asks ? "," TOOLS ",\"tool_choice\":\"required\"" : "," TOOLS, r);
    if (!r->complete) {
        t->messages.len = before;
        if (t->messages.data) t->messages.data[before] = '\0';
        return false;
    }
    if (r->status != 200) fail_msg("%d %s", r->status, r->body.data ? r->body.data : "");
    replay(&t->messages, r);
    (void)snprintf(t->call, sizeof t->call, "%s", http_text(r, "choices.0.message.tool_calls.0.id"));
    t->kept = total(r);
    t->step++;
    return true;
}

/* The same, compared; *reused: cached tokens. */
static bool talk_check(talk *t, size_t which, uint32_t port, long *reused) {
    http_response r;
    size_t step = t->step;
    bool there = talk_step(t, which, port, &r);
    if (there) {
        char *said = reply_of(&r);
        assert_string_equal(said, expected[which][step]);
        free(said);
        *reused = cached(&r);
    }
    http_free(&r);
    if (t->step == STEPS) talk_free(t);
    return there;
}

static int start_all(void **state) {
    (void)state;
    static const char *const cold[] = {PLAIN, "--prefix-reuse", "off", NULL};
    program p;
    (void)snprintf(folder, sizeof folder, "/tmp/moonshine-server-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    (void)snprintf(root, sizeof root, "%s/states", folder);
    (void)snprintf(saved, sizeof saved, "%s/good", folder);
    program_start(&p, cold);
    program_ready(&p);
    for (size_t i = 0; i < TALKS; i++) {
        talk t = {0};
        for (size_t step = 0; step < STEPS; step++) {
            http_response r;
            assert_true(talk_step(&t, i, p.port, &r));
            assert_int_equal(cached(&r), 0);
            expected[i][step] = reply_of(&r);
            http_free(&r);
        }
        talk_free(&t);
    }
    assert_int_equal(program_end(&p, SIGTERM), 0);
    program_free(&p);
    return 0;
}

static int end_all(void **state) {
    (void)state;
    for (size_t i = 0; i < TALKS * STEPS; i++) free(expected[i / STEPS][i % STEPS]);
    shell("rm -rf -- '%s'", folder);
    return 0;
}

static const char *const keeping[] = {PLAIN, "--prefix-checkpoint-root",  root,      "--prefix-checkpoint-entries",
                                      "3",   "--prefix-checkpoint-bytes", "4000000", NULL};

/* ------------------------------------------------------------------ the folder */

typedef struct content {
    size_t entries, temporary, other;
    uint64_t bytes;
    char names[8][32]; /* of entries */
} content;

static void count_in(int parent, const char *name, content *c) {
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return;
    DIR *dir = fdopendir(fd);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        struct stat st;
        if (fstatat(fd, e->d_name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode))
            c->bytes += (uint64_t)st.st_size;
    }
    (void)closedir(dir);
}

static content look(void) {
    content c = {0};
    int fd = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) return c; /* not made yet */
    DIR *dir = fdopendir(fd);
    assert_non_null(dir);
    for (struct dirent *e; (e = readdir(dir));) {
        const char *name = e->d_name;
        if (strncmp(name, "e-", 2) == 0) {
            if (c.entries < 8) (void)snprintf(c.names[c.entries], sizeof c.names[0], "%.31s", name);
            c.entries++;
            count_in(fd, name, &c);
        } else if (strncmp(name, "tmp-", 4) == 0 || strncmp(name, ".ms-tmp-", 8) == 0) {
            c.temporary++;
            count_in(fd, name, &c);
        } else if (name[0] != '.' && strcmp(name, "lock") != 0 && strcmp(name, "manifest.json") != 0) {
            c.other++;
        }
    }
    count_in(fd, ".", &c);
    (void)closedir(dir);
    return c;
}

static void in_bounds(size_t temporary) {
    content c = look();
    assert_true(c.entries <= MOST_ENTRIES);
    assert_true(c.temporary <= temporary);
    assert_true(c.bytes <= MOST_BYTES);
    assert_int_equal(c.other, 0);
}

/* ------------------------------------------------------------------ kills */

typedef struct killer {
    pthread_t thread;
    pid_t pid;
    unsigned us;
} killer;

static void *kill_later(void *arg) {
    const killer *k = arg;
    (void)usleep(k->us);
    (void)kill(k->pid, SIGKILL);
    return NULL;
}

static void kill_within(killer *k, const program *p, unsigned us) {
    *k = (killer){.pid = p->pid, .us = random_below(us)};
    assert_int_equal(pthread_create(&k->thread, NULL, kill_later, k), 0);
}

static size_t count_of(const ms_text *log, const char *what) {
    size_t n = 0;
    for (const char *s = log->data; s && (s = strstr(s, what)); s++) n++;
    return n;
}

typedef struct tally {
    size_t starts, answers, restores, writes;
} tally;

/* One life of the server: killed from its start on, from its first answer on, or, most often, about when an answer is
 * out, which is when states are written. */
static void one_life(size_t round, talk *talks, tally *sum) {
    program p;
    killer k;
    size_t kind = round % 4, answers = 0;
    long reused;
    program_start(&p, keeping);
    if (kind == 0) kill_within(&k, &p, 250000);
    bool there = program_try_ready(&p);
    if (!there) assert_int_equal(kind, 0);
    if (there) {
        sum->starts++;
        if (kind) in_bounds(0); /* what the last life left is gone */
        size_t after = kind == 1 ? 0 : 1 + random_below(4);
        for (;;) {
            size_t which = random_below(TALKS);
            if (kind && answers == after) kill_within(&k, &p, kind == 1 ? 400000 : 15000);
            if (!talk_check(&talks[which], which, p.port, &reused)) break;
            answers++;
        }
    }
    (void)pthread_join(k.thread, NULL);
    assert_int_equal(program_end(&p, 0), -SIGKILL);
    in_bounds(1);
    assert_int_equal(count_of(&p.log, "prefix.checkpoint.corrupt"), 0);
    assert_int_equal(count_of(&p.log, "prefix.checkpoint.failed"), 0);
    sum->answers += answers;
    sum->restores += count_of(&p.log, "prefix.checkpoint.restore");
    sum->writes += count_of(&p.log, "prefix.checkpoint.write");
    program_free(&p);
}

static void killed_at_any_moment(void **state) {
    (void)state;
    talk talks[TALKS] = {{{0}, 0, 0, ""}};
    tally sum = {0};
    program p;
    long reused;
    for (size_t i = 0; i < KILLS; i++) one_life(i, talks, &sum);
    print_message("%d kills: %zu starts, %zu answers, %zu written, %zu restored\n", KILLS, sum.starts, sum.answers,
                  sum.writes, sum.restores);
    assert_true(sum.starts >= KILLS * 3 / 4 && sum.answers >= KILLS / 2);
    assert_true(sum.writes > 0 && sum.restores > 0);
    program_start(&p, keeping);
    program_ready(&p);
    in_bounds(0);
    for (size_t i = 0; i < TALKS; i++) {
        do assert_true(talk_check(&talks[i], i, p.port, &reused));
        while (talks[i].step);
    }
    assert_int_equal(program_end(&p, SIGTERM), 0);
    program_free(&p);
    in_bounds(0);
    shell("rm -rf -- '%s'", root);
}

/* ------------------------------------------------------------------ damage */

static void flip(const char *path) {
    FILE *f = fopen(path, "r+b");
    assert_non_null(f);
    assert_int_equal(fseek(f, 0, SEEK_END), 0);
    long at = (long)random_below((uint32_t)ftell(f));
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    int c = fgetc(f);
    assert_int_equal(fseek(f, at, SEEK_SET), 0);
    assert_int_not_equal(fputc(c ^ (int)(1u << random_below(8)), f), EOF);
    assert_int_equal(fclose(f), 0);
}

/* By more than the end of a last line, which says nothing. */
static void cut(const char *path) {
    struct stat st;
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(truncate(path, (off_t)random_below((uint32_t)st.st_size - 1)), 0);
}

static void emptied(const char *path) { assert_int_equal(truncate(path, 0), 0); }

static void removed(const char *path) { assert_int_equal(unlink(path), 0); }

static void longer(const char *path) {
    FILE *f = fopen(path, "ab");
    assert_non_null(f);
    assert_int_equal(fputc('x', f), 'x');
    assert_int_equal(fclose(f), 0);
}

/* Two talks with one step each, which gives one entry each. */
static void make_good(talk two[2]) {
    program p;
    long reused;
    program_start(&p, keeping);
    program_ready(&p);
    for (size_t i = 0; i < 2; i++) assert_true(talk_check(&two[i], i + 1, p.port, &reused));
    assert_int_equal(program_end(&p, SIGTERM), 0);
    program_free(&p);
    assert_int_equal(look().entries, 2);
    shell("cp -a -- '%s' '%s'", root, saved);
}

/* Goes on with both talks.  Returns how many of them kept all their tokens. */
static size_t go_on(const talk two[2], program *p) {
    size_t whole = 0;
    program_start(p, keeping);
    program_ready(p);
    for (size_t i = 0; i < 2; i++) {
        talk t = {.step = two[i].step, .kept = two[i].kept};
        long reused = 0;
        memcpy(t.call, two[i].call, sizeof t.call);
        ms_text_append(&t.messages, two[i].messages.data, two[i].messages.len);
        assert_true(talk_check(&t, i + 1, p->port, &reused));
        whole += reused == two[i].kept;
        talk_free(&t);
    }
    assert_int_equal(program_end(p, SIGTERM), 0);
    in_bounds(0);
    return whole;
}

static void fresh(void) {
    shell("rm -rf -- '%s'", root);
    shell("cp -a -- '%s' '%s'", saved, root);
}

/* The identity in meta.json may become another one by a flipped bit: then the state is just not this server's. */
static void damaged_file(const talk two[2], const char *file, void (*damage)(const char *path)) {
    fresh();
    char path[160], entry[32];
    content c = look();
    (void)snprintf(entry, sizeof entry, "%s", c.names[random_below(2)]);
    (void)snprintf(path, sizeof path, "%s/%s/%s", root, entry, file);
    damage(path);
    program p;
    size_t whole = go_on(two, &p);
    bool corrupt = count_of(&p.log, "prefix.checkpoint.corrupt") == 1, gone = true;
    if (whole != 1) fail_msg("%s: %zu whole: %s", file, whole, p.log.data);
    c = look();
    for (size_t i = 0; i < c.entries; i++) gone = gone && strcmp(c.names[i], entry) != 0;
    if (strcmp(file, "meta.json") == 0 && damage == flip && !corrupt) gone = corrupt = true;
    if (!corrupt || !gone) fail_msg("%s: corrupt %d, gone %d: %s", file, corrupt, gone, p.log.data);
    program_free(&p);
}

static void swapped(const talk two[2], const char *file) {
    fresh();
    content c = look();
    shell("cd '%s' && mv %s%s x && mv %s%s %s%s && mv x %s%s", root, c.names[0], file, c.names[1], file, c.names[0],
          file, c.names[1], file);
    program p;
    assert_int_equal(go_on(two, &p), 0);
    size_t corrupt = count_of(&p.log, "prefix.checkpoint.corrupt");
    if (corrupt != 2) fail_msg("%s: %zu corrupt", file, corrupt);
    program_free(&p);
}

static void damaged_manifest(const talk two[2], void (*damage)(const char *path)) {
    fresh();
    char path[160];
    (void)snprintf(path, sizeof path, "%s/manifest.json", root);
    damage(path);
    program p;
    assert_int_equal(go_on(two, &p), 2);
    assert_int_equal(count_of(&p.log, "prefix.checkpoint.corrupt"), 0);
    program_free(&p);
}

static void damaged_entries(void **state) {
    (void)state;
    static void (*const ways[])(const char *) = {flip, cut, emptied, removed, longer};
    static const char *const files[] = {"state.bin", "tokens.u32", "meta.json"};
    talk two[2] = {{{0}, 0, 0, ""}};
    program p;
    make_good(two);
    fresh();
    assert_int_equal(go_on(two, &p), 2);
    program_free(&p);
    for (size_t n = 0; n < DAMAGES; n++) {
        for (size_t i = 0; i < 15; i++) damaged_file(two, files[i / 5], ways[i % 5]);
        for (size_t i = 0; i < 5; i++) damaged_manifest(two, ways[i]);
    }
    for (size_t i = 0; i < 3; i++) {
        char file[32];
        (void)snprintf(file, sizeof file, "/%s", files[i]);
        swapped(two, file);
    }
    swapped(two, "");
    for (size_t i = 0; i < 2; i++) talk_free(&two[i]);
    shell("rm -rf -- '%s' '%s'", root, saved);
}

/* ------------------------------------------------------------------ no room */

/* Six talks when nothing or only the first state can be written; then again on what is there. */
static void without_room(size_t entries) {
    for (int again = 0; again < 2; again++) {
        program p;
        long reused;
        program_start(&p, keeping);
        program_ready(&p);
        for (size_t i = 0; i < TALKS; i++) {
            talk t = {0};
            for (size_t step = 0; step < 2; step++) assert_true(talk_check(&t, i, p.port, &reused));
            talk_free(&t);
        }
        assert_int_equal(program_end(&p, SIGTERM), 0);
        assert_true(count_of(&p.log, "prefix.checkpoint.failed") > 0);
        assert_int_equal(count_of(&p.log, "prefix.checkpoint.corrupt"), 0);
        program_free(&p);
        in_bounds(0);
        assert_true(look().entries <= entries);
    }
}

static void files_may_not_grow(void **state) {
    (void)state;
    struct rlimit old, low;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = old;
    low.rlim_cur = 100000;
    (void)signal(SIGXFSZ, SIG_IGN); /* the program inherits both: its writes fail in the middle */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    without_room(0);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    (void)signal(SIGXFSZ, SIG_DFL);
    shell("rm -rf -- '%s'", root);
}

/* A file system of its own needs privileges, which a user has in a namespace where the system allows that; elsewhere
 * the case above stands for this one. */
static void the_disk_is_full(void **state) {
    (void)state;
    assert_int_equal(mkdir(root, 0700), 0);
    bool mounted = mount("tmpfs", root, "tmpfs", 0, "size=1m,mode=0700") == 0;
    if (!mounted && unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0) {
        mounted = mount("tmpfs", root, "tmpfs", 0, "size=1m,mode=0700") == 0;
    }
    if (!mounted) {
        print_message("no file system could be mounted: %s\n", strerror(errno));
        files_may_not_grow(NULL);
        return;
    }
    without_room(1);
    assert_int_equal(umount(root), 0);
    assert_int_equal(rmdir(root), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(killed_at_any_moment),
        cmocka_unit_test(damaged_entries),
        cmocka_unit_test(files_may_not_grow),
        cmocka_unit_test(the_disk_is_full),
    };
    return cmocka_run_group_tests(tests, start_all, end_all);
}
