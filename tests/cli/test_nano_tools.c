/* The programs of tools/nano with arguments that cannot be: one line, exit status 2, and nothing is written.
 *
 * PyTorch is not asked for: a module of that name that fails to load, or one without a GPU, stands in its place. */
#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "cli_run.h"

static char dir[64];

static int shell(const char *line, ms_text *out) {
    char piece[4096], whole[2048];
    *out = (ms_text){0};
    (void)snprintf(whole, sizeof whole, "{ %s\n} 2>&1", line);
    FILE *f = popen(whole, "r");
    assert_non_null(f);
    for (size_t n; (n = fread(piece, 1, sizeof piece, f)) > 0;) ms_text_append(out, piece, n);
    ms_text_append(out, "", 0);
    int how = pclose(f);
    return WIFEXITED(how) ? WEXITSTATUS(how) : -WTERMSIG(how);
}

/* Lines with $T (the tools), $N (a folder with a tokenizer) and $D (a folder). */
static void refuses(const char *words, const char *line) {
    ms_text out;
    int code = shell(line, &out);
    const char *said = out.data, *end = strchr(said, '\n');
    if (code != 2 || !strstr(said, words) || !end || end[1]) fail_msg("%s: exit %d, %s: %s", line, code, words, said);
    ms_text_free(&out);
    code = shell("ls -d \"$D\"/out*", &out);
    if (!code) fail_msg("%s: left %s", line, out.data);
    ms_text_free(&out);
}

static int begin(void **state) {
    (void)state;
    ms_text out;
    cli_make_folder(dir);
    int code = setenv("D", dir, 1) || setenv("T", "tools/nano", 1) || setenv("N", "models/mimo-nano", 1) ||
               setenv("PYTHONPYCACHEPREFIX", dir, 1);
    code = code ||
           shell("mkdir $D/none $D/cpu $D/bad && echo 'raise ImportError(\"no such module\")' > $D/none/torch.py &&"
                 "echo 'class cuda: is_available = staticmethod(lambda: False)' > $D/cpu/torch.py &&"
                 "touch $D/cpu/numpy.py $D/file && echo '{\"model\": 7}' > $D/bad/tokenizer.json",
                 &out);
    ms_text_free(&out);
    return code;
}

static int end(void **state) {
    (void)state;
    ms_text out;
    int code = shell("rm -rf \"$D\"", &out);
    ms_text_free(&out);
    return code;
}

#define TRAIN "$T/train.py --layout mimo --tokenizer $N "

static void the_trainer(void **state) {
    (void)state;
    refuses("required", "$T/train.py");
    refuses("invalid choice: 'gpt'", "$T/train.py --layout gpt --tokenizer $N $D/out");
    refuses("--seconds: expected a number of seconds above 0, found '0'", TRAIN "--seconds 0 $D/out");
    refuses("--seconds: expected", TRAIN "--seconds nan $D/out");
    refuses("--tokens: expected a whole number from 1 on, found '-1'", TRAIN "--tokens=-1 $D/out");
    refuses("--processes: expected", TRAIN "--processes 0 $D/out");
    refuses("--seed: expected", TRAIN "--seed 1e3 $D/out");
    refuses("--log-every: expected", TRAIN "--log-every 0 $D/out");
    refuses("--save-every: expected", TRAIN "--save-every soon $D/out");
    refuses("none/tokenizer.json: expected a file", "$T/train.py --layout mimo --tokenizer $D/none $D/out");
    refuses("tiktoken.model: expected a file", "$T/train.py --layout k3 --tokenizer $N $D/out");
    refuses("expected a tokenizer of layout mimo: TypeError", "$T/train.py --layout mimo --tokenizer $D/bad $D/out");
    refuses("file is none", TRAIN "$D/file");
    refuses("file is none", TRAIN "$D/file/out");
    refuses("another folder", "$T/train.py --layout mimo --tokenizer models/mimo-nano models/mimo-nano/");
    refuses("out/state.pt: expected a file that train.py saved", TRAIN "--export $D/out/state.pt $D/out");
}

static void what_is_not_there(void **state) {
    (void)state;
    refuses("needs PyTorch, and NumPy for training: no such module", "PYTHONPATH=$D/none " TRAIN "$D/out");
    refuses("needs PyTorch", "PYTHONPATH=$D/none " TRAIN "--export $D/file $D/out");
    refuses("needs a GPU", "PYTHONPATH=$D/cpu " TRAIN "$D/out");
}

/* It needs Python alone, as it says. */
static void the_tokenizer(void **state) {
    (void)state;
    ms_text out;
    assert_int_equal(shell("PYTHONPATH=$D/none $T/make_tokenizer.py --help", &out), 0);
    ms_text_free(&out);
    refuses("required", "PYTHONPATH=$D/none $T/make_tokenizer.py $D/out");
    refuses("file is none", "PYTHONPATH=$D/none $T/make_tokenizer.py --layout k3 $D/file");
    assert_int_equal(shell("PYTHONPATH=$D/none $T/test_engine.py", &out), 1);
    assert_string_equal(out.data, "test_engine.py: needs PyTorch: no such module\n");
    ms_text_free(&out);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_trainer),
        cmocka_unit_test(what_is_not_there),
        cmocka_unit_test(the_tokenizer),
    };
    return cmocka_run_group_tests(tests, begin, end);
}
