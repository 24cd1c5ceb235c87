#include <stdarg.h>
#include <stddef.h>
#include <setjmp.h>
#include <stdint.h>
#include <cmocka.h>

#include "../session/engine_util.h"
#include "lane/mimo26/mimo_synth.h"
#include "mimo_checkpoint.h"
#include "text/tokenizer.h"

#define TOKENIZER "tests/text/hf/tokenizer.json"

void mimo_checkpoint_make(char dir[MIMO_TEST_PATH], uint64_t seed) {
    mimo_config c;
    ms_error err;
    char *data, path[MIMO_TEST_PATH + 32];
    size_t len;
    ms_tokenizer *t;
    mimo_config_official(&c);
    c.vocab = MIMO_TEST_VOCAB;
    c.hidden = 64;
    c.layers = 3;
    c.dense_width = 96;
    c.experts = 4;
    c.top_k = 2;
    c.expert_inner = 32;
    c.chunks = 2;
    c.max_context = 4096;
    c.attention[MIMO_FULL] = (mimo_attention){4, 2, 24, 16, 8, 0, false, 1e7};
    c.attention[MIMO_SLIDING] = (mimo_attention){4, 2, 24, 16, 8, 12, true, 1e4};
    ok(ms_tokenizer_open_hf(&t, TOKENIZER, &err), &err);
    assert_true(ms_tokenizer_control_id(t, "<|im_end|>", 10, &c.eos));
    ms_tokenizer_close(t);
    (void)snprintf(dir, MIMO_TEST_PATH, "/tmp/ms-mimo-XXXXXX");
    assert_non_null(mkdtemp(dir));
    const ms_synth_options so = {.seed = seed, .threads = 1};
    ok(mimo_synth_write(dir, &c, &so, &err), &err);
    ok(ms_file_read_all(TOKENIZER, 1 << 20, &data, &len, &err), &err);
    (void)snprintf(path, sizeof path, "%s/tokenizer.json", dir);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
    free(data);
}

void mimo_checkpoint_remove(const char *dir) { remove_model(dir); }
