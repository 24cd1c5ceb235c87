/* test_turns.c: the memory of conversations that ended in calls: what is found, bounds, many threads. */
#include "api_test.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "server/turns.h"

static void add(ms_turn_memory *m, const char *messages, const char *id, bool thinking) {
    ms_json_doc *doc;
    assert_int_equal(ms_json_parse(&doc, messages, strlen(messages), "m", NULL, NULL), MS_OK);
    ms_tool_call calls[2] = {{.name = "f", .name_len = 1, .arguments = "{\"a\": 1}", .arguments_len = 8},
                             {.name = "g", .name_len = 1}};
    ms_reply answer = {.reasoning = "why", .reasoning_len = 3, .calls = calls, .call_count = 2};
    char ids[2][MS_CALL_ID_BYTES] = {"", "second"};
    (void)snprintf(ids[0], sizeof ids[0], "%s", id);
    ms_turn_memory_add(m, ms_json_root(doc), &answer, thinking, ids);
    ms_json_free(doc);
}

static char *found(ms_turn_memory *m, const char *id) {
    ms_text t = {0};
    if (ms_turn_memory_history(m, id, strlen(id), &t)) return t.data;
    assert_null(t.data);
    return NULL;
}

static void contents(void **state) {
    (void)state;
    ms_turn_memory *m = ms_turn_memory_create(4, 10000);
    add(m, "[ {\"role\":\"user\",\"content\":\"q\"} ]", "one", true);
    char *text = found(m, "one"), *same = found(m, "second");
    assert_string_equal(text, " {\"role\":\"user\",\"content\":\"q\"} ,{\"role\":\"assistant\",\"content\":\"\","
                              "\"reasoning_content\":\"why\",\"tool_calls\":[{\"type\":\"function\",\"id\":\"one\","
                              "\"function\":{\"name\":\"f\",\"arguments\":\"{\\\"a\\\": 1}\"}},{\"type\":\"function\","
                              "\"id\":\"second\",\"function\":{\"name\":\"g\",\"arguments\":\"\"}}]}");
    assert_string_equal(text, same);
    assert_null(found(m, "on"));
    assert_null(found(m, "one2"));
    free(text);
    free(same);
    add(m, "[1]", "two", false);
    text = found(m, "two");
    assert_null(strstr(text, "reasoning"));
    free(text);
    add(m, "[]", "none", false); /* no message: not a conversation */
    assert_null(found(m, "none"));
    ms_turn_memory_destroy(m);
    ms_turn_memory_destroy(NULL);
}

static void bounds(void **state) {
    (void)state;
    ms_turn_memory *m = ms_turn_memory_create(3, 100000);
    for (int i = 0; i < 10; i++) {
        char id[8];
        (void)snprintf(id, sizeof id, "c%d", i);
        add(m, "[1]", id, false);
    }
    for (int i = 0; i < 10; i++) {
        char id[8];
        (void)snprintf(id, sizeof id, "c%d", i);
        char *text = found(m, id);
        assert_int_equal(text != NULL, i >= 7);
        free(text);
    }
    ms_turn_memory_destroy(m);
    m = ms_turn_memory_create(100, 500); /* two turns of about 210 bytes */
    add(m, "[1]", "a", false);
    add(m, "[2]", "b", false);
    add(m, "[3]", "c", false);
    assert_null(found(m, "a"));
    free(found(m, "b"));
    char big[600];
    memset(big, ' ', sizeof big);
    big[0] = '[';
    big[1] = '1';
    memcpy(big + sizeof big - 2, "]", 2);
    add(m, big, "big", false); /* larger than all: nothing else is lost for it */
    assert_null(found(m, "big"));
    char *text = found(m, "b");
    assert_non_null(text);
    free(text);
    ms_turn_memory_destroy(m);
}

static void *many(void *arg) {
    for (int i = 0; i < 500; i++) {
        char id[16];
        (void)snprintf(id, sizeof id, "t%d", i % 20);
        ms_text t = {0};
        if (ms_turn_memory_history(arg, id, strlen(id), &t)) assert_true(t.len > 100);
        ms_text_free(&t);
        add(arg, "[1]", id, true);
    }
    return NULL;
}

static void threads(void **state) {
    (void)state;
    ms_turn_memory *m = ms_turn_memory_create(8, 100000);
    pthread_t t[4];
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_create(&t[i], NULL, many, m), 0);
    for (int i = 0; i < 4; i++) assert_int_equal(pthread_join(t[i], NULL), 0);
    ms_turn_memory_destroy(m);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(contents), cmocka_unit_test(bounds), cmocka_unit_test(threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
