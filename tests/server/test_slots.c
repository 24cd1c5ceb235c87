/* POST /slots/0: a conversation is saved, erased, and goes on where it was; bad names, files and links change nothing.
 */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "nano_fixture.h"

static char folder[64], root[96];

static int begin(void **state) {
    (void)state;
    (void)snprintf(folder, sizeof folder, "/tmp/moonshine-slots-XXXXXX");
    if (!mkdtemp(folder)) return -1;
    (void)snprintf(root, sizeof root, "%s/states", folder);
    return 0;
}

static int end(void **state) {
    (void)state;
    char command[128];
    (void)snprintf(command, sizeof command, "rm -rf -- '%s'", folder);
    return system(command);
}

static const char *in_named(const char *file) {
    static char path[192];
    (void)snprintf(path, sizeof path, "%s/named/%s", root, file);
    return path;
}

static void act(served *s, const char *action, const char *body, int status, const char *code) {
    char path[64];
    http_response r;
    (void)snprintf(path, sizeof path, "/slots/0%s%s", action ? "?action=" : "", action ? action : "");
    served_post(s, path, body, &r);
    if (r.status != status) fail_msg("%s %s: %d %s", path, body, r.status, r.body.data ? r.body.data : "");
    if (code) assert_string_equal(http_text(&r, "error.code"), code);
    http_free(&r);
}

static long number(served *s, const char *action, const char *body, const char *field) {
    char path[64];
    http_response r;
    (void)snprintf(path, sizeof path, "/slots/0?action=%s", action);
    served_post(s, path, body, &r);
    assert_int_equal(r.status, 200);
    long n = http_number(&r, field);
    http_free(&r);
    return n;
}

#define CHAT  "/v1/chat/completions"
#define FIRST "{\"role\":\"user\",\"content\":\"Say hello to the person in front of you.\"}"

/* The first turn; *messages gets it with the reply and the next question.  Returns its tokens. */
static long first_turn(served *s, ms_text *messages) {
    http_response r;
    served_post(s, CHAT, "{\"model\":\"moonshine\",\"max_tokens\":200,\"messages\":[" FIRST "]}", &r);
    assert_int_equal(r.status, 200);
    assert_string_equal(http_text(&r, "choices.0.finish_reason"), "stop");
    ms_text_puts(messages, "{\"model\":\"moonshine\",\"max_tokens\":4,\"messages\":[" FIRST ",");
    ms_json_write(messages, ms_json_get(ms_json_at(ms_json_get(http_json(&r), "choices"), 0), "message"),
                  &ms_json_compact);
    ms_text_puts(messages, ",{\"role\":\"user\",\"content\":\"And now goodbye.\"}]}");
    long total = http_number(&r, "usage.total_tokens");
    http_free(&r);
    return total;
}

static long cached(served *s, const char *body) {
    http_response r;
    served_post(s, CHAT, body, &r);
    assert_int_equal(r.status, 200);
    long n = http_number(&r, "usage.prompt_tokens_details.cached_tokens");
    http_free(&r);
    return n;
}

/* Without room for kept states, only the name brings the conversation back: after erasing, and in a new process. */
static void a_conversation_goes_on(void **state) {
    (void)state;
    served s;
    ms_text m = {0};
    struct stat st;
    served_start(&s, &(served_options){.root = root});
    act(&s, "save", "{\"filename\":\"one\"}", 409, "empty_state");
    long total = first_turn(&s, &m);
    long saved = number(&s, "save", "{\"filename\":\"one\"}", "n_saved");
    assert_true(saved >= total);
    assert_int_equal(stat(in_named("one.state"), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0600);
    assert_int_equal(number(&s, "save", "{\"filename\":\"one\"}", "n_written"), st.st_size); /* replaces */
    assert_int_equal(stat(in_named(""), &st), 0);
    assert_int_equal(st.st_mode & 07777, 0700);
    assert_int_equal(number(&s, "erase", "", "n_erased"), saved);
    assert_int_equal(number(&s, "erase", "{}", "n_erased"), 0);
    act(&s, "save", "{\"filename\":\"two\"}", 409, "empty_state");
    served_stop(&s);
    /* Entries that the store kept would do the same: they go. */
    char command[256];
    (void)snprintf(command, sizeof command, "rm -rf -- %s/e-* %s/manifest.json", root, root);
    assert_int_equal(system(command), 0);
    served_start(&s, &(served_options){.root = root});
    assert_int_equal(number(&s, "restore", "{\"filename\":\"one\"}", "n_restored"), saved);
    assert_int_equal(cached(&s, m.data), saved);
    served_log(&s, "request.prefill.start", "reuse=", command, sizeof command);
    assert_string_equal(command, "hit");
    served_stop(&s);
    ms_text_free(&m);
}

static void write_at(const char *path, off_t at, const char *byte) {
    int fd = open(path, O_WRONLY);
    assert_true(fd >= 0);
    assert_int_equal(pwrite(fd, byte, 1, at), 1);
    assert_int_equal(close(fd), 0);
}

/* Whatever is wrong with a name or a file: an error, and the live state serves the next turn. */
static void what_is_bad_changes_nothing(void **state) {
    (void)state;
    static const char *const names[] = {"\"\"",         "\".hidden\"", "\"a/b\"",     "\"..\"",
                                        "\"a\\u0000\"", "\"a b\"",     "\"\xc3\xa9\""};
    served s;
    ms_text m = {0};
    char body[160], path[224];
    served_start(&s, &(served_options){.root = root});
    long total = first_turn(&s, &m);
    assert_true(number(&s, "save", "{\"filename\":\"good\"}", "n_saved") >= total);
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        (void)snprintf(body, sizeof body, "{\"filename\":%s}", names[i]);
        act(&s, "save", body, 400, "invalid_value");
        act(&s, "restore", body, 400, "invalid_value");
    }
    (void)snprintf(body, sizeof body, "{\"filename\":\"%065d\"}", 0);
    act(&s, "restore", body, 400, "invalid_value");
    act(&s, "restore", "{\"filename\":7}", 400, "invalid_type");
    act(&s, "restore", "{}", 400, "missing_field");
    act(&s, "restore", "{", 400, "invalid_json");
    act(&s, "copy", "{\"filename\":\"good\"}", 400, "unsupported_value");
    act(&s, NULL, "{\"filename\":\"good\"}", 400, "missing_field");
    act(&s, "restore", "{\"filename\":\"absent\"}", 404, "state_not_found");
    /* A link, a folder, a cut file, a changed byte. */
    (void)snprintf(path, sizeof path, "%s", in_named("good.state"));
    assert_int_equal(symlink(path, in_named("link.state")), 0);
    act(&s, "restore", "{\"filename\":\"link\"}", 400, "invalid_state");
    act(&s, "save", "{\"filename\":\"link\"}", 500, "internal_error");
    assert_int_equal(mkdir(in_named("dir.state"), 0700), 0);
    act(&s, "restore", "{\"filename\":\"dir\"}", 400, "invalid_state");
    assert_true(number(&s, "save", "{\"filename\":\"bad\"}", "n_saved") >= total);
    write_at(in_named("bad.state"), 5000, "\xa5");
    act(&s, "restore", "{\"filename\":\"bad\"}", 400, "invalid_state");
    assert_int_equal(truncate(in_named("bad.state"), 100), 0);
    act(&s, "restore", "{\"filename\":\"bad\"}", 400, "invalid_state");
    assert_true(cached(&s, m.data) >= total); /* the live one all the while */
    served_log(&s, "request.prefill.start", "reuse=", body, sizeof body);
    assert_string_equal(body, "hit");
    served_stop(&s);
    /* Another precision's state is no state of ours. */
    served_start(&s, &(served_options){.root = root, .reference = true});
    act(&s, "restore", "{\"filename\":\"good\"}", 400, "invalid_state");
    served_stop(&s);
    ms_text_free(&m);
}

/* The folder itself must be ours alone, and no link. */
static void the_folder_is_private(void **state) {
    (void)state;
    served s;
    ms_text m = {0};
    char other[96];
    served_start(&s, &(served_options){.root = root});
    (void)first_turn(&s, &m);
    assert_int_equal(chmod(in_named(""), 0755), 0);
    act(&s, "save", "{\"filename\":\"x\"}", 500, "internal_error");
    act(&s, "restore", "{\"filename\":\"good\"}", 400, "invalid_state");
    assert_int_equal(chmod(in_named(""), 0700), 0);
    (void)snprintf(other, sizeof other, "%s/other", folder);
    char named[128];
    (void)snprintf(named, sizeof named, "%s/named", root);
    assert_int_equal(rename(named, other), 0);
    assert_int_equal(symlink(other, named), 0);
    act(&s, "save", "{\"filename\":\"x\"}", 500, "internal_error");
    act(&s, "restore", "{\"filename\":\"good\"}", 400, "invalid_state");
    assert_int_equal(unlink(named), 0);
    act(&s, "restore", "{\"filename\":\"good\"}", 404, "state_not_found");
    served_stop(&s);
    ms_text_free(&m);
    served_start(&s, &(served_options){0});
    act(&s, "erase", "", 404, "endpoint_disabled");
    served_stop(&s);
}

/* What a refused save says: the cause and which file, and neither the folder nor the name. */
static void save_fails(served *s, const char *file, const char *cause) {
    http_response r;
    char line[512];
    served_post(s, "/slots/0?action=save", "{\"filename\":\"secret-plan\"}", &r);
    assert_int_equal(r.status, 500);
    assert_string_equal(http_text(&r, "error.code"), "internal_error");
    const char *message = http_text(&r, "error.message");
    if (!strstr(message, file) || !strstr(message, cause)) fail_msg("%s", message);
    if (strstr(message, folder) || strstr(message, "secret-plan")) fail_msg("%s", message);
    http_free(&r);
    rewind(s->log_file);
    bool said = false;
    while (fgets(line, sizeof line, s->log_file)) {
        said = said || (strstr(line, "slot.action") && strstr(line, cause));
        if (strstr(line, "secret-plan")) fail_msg("%s", line);
    }
    assert_true(said);
}

/* A file system of its own needs privileges, which a user has in a namespace where the system allows that; elsewhere a
 * limit of the size of files stands for it.  Last: the namespace stays. */
static void a_full_disk_is_named(void **state) {
    (void)state;
    served s;
    ms_text m = {0};
    char full[96];
    struct rlimit old, low;
    (void)snprintf(full, sizeof full, "%s/full", folder);
    assert_int_equal(mkdir(full, 0700), 0);
    bool mounted = mount("tmpfs", full, "tmpfs", 0, "size=128k,mode=0700") == 0;
    if (!mounted && unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0)
        mounted = mount("tmpfs", full, "tmpfs", 0, "size=128k,mode=0700") == 0;
    served_start(&s, &(served_options){.root = full});
    (void)first_turn(&s, &m);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &old), 0);
    low = old;
    low.rlim_cur = 100000;
    (void)signal(SIGXFSZ, SIG_IGN);
    if (!mounted) assert_int_equal(setrlimit(RLIMIT_FSIZE, &low), 0);
    save_fails(&s, "state file: ", mounted ? "No space left on device" : "File too large");
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &old), 0);
    assert_true(cached(&s, m.data) > 0); /* the live state is as it was */
    /* A folder in the state's place: refused before anything is written. */
    char taken[192];
    (void)snprintf(taken, sizeof taken, "%s/named/secret-plan.state", full);
    assert_int_equal(mkdir(taken, 0700), 0);
    save_fails(&s, "state file: ", "not a regular file");
    served_stop(&s);
    ms_text_free(&m);
    if (mounted) assert_int_equal(umount(full), 0);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_conversation_goes_on),
        cmocka_unit_test(what_is_bad_changes_nothing),
        cmocka_unit_test(the_folder_is_private),
        cmocka_unit_test(a_full_disk_is_named),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
