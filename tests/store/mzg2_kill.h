/* mzg2_kill.h: builds that are killed at random moments and go on: shared by the plain test and the long one. */
#ifndef MS_TESTS_MZG2_KILL_H
#define MS_TESTS_MZG2_KILL_H

#include <signal.h>
#include <sys/wait.h>
#include <time.h>

#include "base/clock.h"
#include "lane/k3/k3_synth.h"
#include "session/engine.h"
#include "store/mzg2_build.h"
#include "store/mzg2_encode.h"
#include "store_util.h"

static inline k3_config store_config(uint32_t layers, uint32_t experts) {
    k3_config c;
    k3_config_official(&c);
    c.vocab = 320;
    c.hidden = 64;
    c.layers = layers;
    c.first_dense = 1;
    c.dense_width = 64;
    c.block_size = 2;
    c.experts = experts;
    c.top_k = 2;
    c.expert_inner = 64;
    c.latent = 128;
    c.mla_heads = c.kda_heads = 2;
    c.kda_dim = 32;
    c.nope = 32;
    c.extra = 16;
    c.value = 32;
    c.q_rank = 32;
    c.kv_rank = 32;
    c.max_context = 1024;
    c.bos = 300;
    c.eos = 301;
    c.pad = 302;
    memset(c.is_mla, 0, sizeof c.is_mla);
    c.is_mla[layers - 1] = 1;
    return c;
}

/* DIR/NAME: a checkpoint with Gaussian experts. */
static inline void make_model(char path[PATH_BYTES], const char *dir, const char *name, uint32_t layers,
                              uint32_t experts, uint64_t seed) {
    k3_config c = store_config(layers, experts);
    ms_synth_options o = {.seed = seed, .gaussian = true, .threads = 1};
    ms_error err = {0};
    path_in(path, dir, name);
    if (k3_synth_write(path, &c, &o, &err) != MS_OK) fail_msg("%s", err.message);
}

static inline void open_source(ms_model *m, ms_mzg2_source *s, const char *dir) {
    ms_error err = {0};
    if (ms_model_open(m, dir, &err) != MS_OK) fail_msg("%s", err.message);
    *s = ms_mzg2_source_of(m->checkpoint, &m->experts, m->info.expert_shape, m->lane->name);
}

static inline void must_build(const char *dir, const ms_mzg2_source *s, const ms_mzg2_job_options *o,
                              ms_mzg2_report *r) {
    ms_error err = {0};
    ms_mzg2_report local;
    if (ms_mzg2_build(dir, s, o, r ? r : &local, &err) != MS_OK) fail_msg("%s", err.message);
}

/* Both folders hold the same files with the same bytes, and nothing else. */
static inline void assert_same_stores(const char *a, const char *b) {
    char command[2 * PATH_BYTES + 32];
    (void)snprintf(command, sizeof command, "diff -r '%s' '%s' >&2", a, b);
    assert_int_equal(system(command), 0);
}

/* Kills `kills` builds, each at a random moment of what an undisturbed one takes; every store that comes out in the end
 * is the undisturbed one. */
static inline void kill_many(unsigned kills, unsigned jobs, uint64_t seed) {
    char dir[PATH_BYTES], model[PATH_BYTES], calm[PATH_BYTES], store[PATH_BYTES];
    make_dir(dir);
    make_model(model, dir, "model", 7, 12, seed);
    path_in(calm, dir, "calm");
    path_in(store, dir, "store");
    ms_model m;
    ms_mzg2_source s;
    open_source(&m, &s, model);
    const ms_mzg2_job_options o = {.jobs = jobs, .signs = true};
    uint64_t begin = ms_clock_ns();
    must_build(calm, &s, &o, NULL);
    uint64_t took = ms_clock_ns() - begin;
    unsigned killed = 0, finished = 0, tries = 0;
    while (killed < kills || finished == 0) {
        assert_true(tries++ < 50 * (kills + 10));
        pid_t child = fork();
        assert_true(child >= 0);
        if (child == 0) {
            ms_mzg2_report r;
            _exit(ms_mzg2_build(store, &s, &o, &r, NULL) == MS_OK ? 0 : 1);
        }
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        /* short waits while kills are wanted, so that many fall before the end; then it may finish */
        uint64_t wait = (seed >> 16) % (killed < kills ? took : 4 * took + 1000000000u);
        nanosleep(&(struct timespec){.tv_sec = (time_t)(wait / 1000000000u), .tv_nsec = (long)(wait % 1000000000u)},
                  NULL);
        (void)kill(child, SIGKILL);
        int status = 0;
        assert_int_equal(waitpid(child, &status, 0), child);
        if (WIFSIGNALED(status)) {
            killed++;
            continue;
        }
        assert_int_equal(WEXITSTATUS(status), 0);
        finished++;
        assert_same_stores(calm, store);
        remove_dir(store);
    }
    ms_model_close(&m);
    remove_dir(dir);
}

#endif
