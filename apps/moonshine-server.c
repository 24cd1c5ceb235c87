/* moonshine-server: serves a model over HTTP. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "server/causal_session.h"
#include "server/server.h"
#include "server_names.h"
#include "session/prefix_disk.h"

#ifndef MS_BUILD
#define MS_BUILD "" /* the commit, where the Makefile knows one */
#endif

enum { EXIT_FAILED = 1, EXIT_USAGE = 2, EXIT_REFUSED = 3, EXIT_BROKEN = 70, LOOK_MS = 50, MIN_DISTANCE = 512 };

/* Bytes of the pipe that the main thread reads. */
enum { BYTE_STOP = 's', BYTE_HANGUP = 'h', BYTE_CHANGED = 'c' };
static int pipe_write_fd = -1;

static void on_signal(int number) {
    int saved = errno;
    char byte = number == SIGHUP ? BYTE_HANGUP : BYTE_STOP;
    ssize_t n = write(pipe_write_fd, &byte, 1);
    (void)n;
    errno = saved;
}

typedef struct program {
    server_options o;
    ms_log log;
    ms_keys keys;
    ms_text_model text;
    ms_plan *plan;
    ms_causal_session *engine;
    ms_server *server;
    ms_diagnostics *diagnostics;
    char fingerprint[64];
    int pipe[2];
    uint64_t start_ns;
    pthread_mutex_t lock; /* the two below */
    ms_worker_state state;
    ms_error error;
} program;

static void log_error(program *p, const char *event, const char *message) {
    ms_log_line l;
    ms_log_begin(&l, &p->log, MS_LOG_ERROR, event, NULL);
    ms_log_word(&l, "error", message);
    ms_log_end(&l);
}

static int exit_code(const ms_error *err) {
    if (err->code == MS_ERR_USAGE) return EXIT_USAGE;
    return err->code == MS_ERR_NO_FIT ? EXIT_REFUSED : EXIT_FAILED;
}

/* ------------------------------------------------------------------ what the inference thread says */

static void on_changed(void *arg, ms_worker_state state, const ms_error *err) {
    program *p = arg;
    (void)pthread_mutex_lock(&p->lock);
    p->state = state;
    if (err) p->error = *err;
    (void)pthread_mutex_unlock(&p->lock);
    char byte = BYTE_CHANGED;
    ssize_t n = write(p->pipe[1], &byte, 1);
    (void)n;
}

static void on_engine_log(void *arg, const char *line) {
    program *p = arg;
    ms_log_line l;
    ms_log_begin(&l, &p->log, MS_LOG_INFO, "engine.note", NULL);
    ms_log_word(&l, "note", line);
    ms_log_end(&l);
}

static void on_kept(void *arg, ms_prefix_event event, uint64_t entry, uint64_t tokens, uint64_t bytes, uint64_t ns,
                    const char *error) {
    static const char *const names[] = {"prefix.checkpoint.write", "prefix.checkpoint.restore",
                                        "prefix.checkpoint.evict", "prefix.checkpoint.corrupt",
                                        "prefix.checkpoint.failed"};
    program *p = arg;
    ms_log_line l;
    char name[24];
    (void)snprintf(name, sizeof name, "%016llx", (unsigned long long)entry);
    ms_log_begin(&l, &p->log, event >= MS_PREFIX_CORRUPT ? MS_LOG_WARN : MS_LOG_INFO, names[event], NULL);
    ms_log_word(&l, "entry", name);
    ms_log_u64(&l, "tokens", tokens);
    ms_log_u64(&l, "bytes", bytes);
    ms_log_real(&l, "seconds", (double)ns / 1e9);
    ms_log_word(&l, "error", error);
    ms_log_end(&l);
}

static void on_disabled(void *arg) {
    program *p = arg;
    ms_log_line l;
    ms_log_begin(&l, &p->log, MS_LOG_WARN, "prefix.checkpoint.failed", NULL);
    ms_log_word(&l, "error", "the folder belongs to another process: states are kept in memory alone");
    ms_log_end(&l);
}

static void say_ready(program *p) {
    ms_log_line l;
    ms_log_begin(&l, &p->log, MS_LOG_INFO, "server.ready", NULL);
    ms_log_word(&l, "listen", ms_server_address(p->server));
    ms_log_word(&l, "model", p->o.model_id ? p->o.model_id : p->text.lane->model_id);
    ms_log_word(&l, "version", MS_VERSION);
    ms_log_u64(&l, "context", p->plan->context);
    ms_log_u64(&l, "max_output", p->o.max_output);
    ms_log_real(&l, "load", (double)(ms_clock_ns() - p->start_ns) / 1e9);
    ms_log_u64(&l, "static", ms_plan_group_bytes(p->plan, "static"));
    ms_log_u64(&l, "cache", ms_plan_group_bytes(p->plan, "cache"));
    ms_log_u64(&l, "state", ms_plan_group_bytes(p->plan, "state"));
    ms_log_u64(&l, "slots", 1);
    ms_log_word(&l, "auth", p->keys.count ? "on" : "off");
    ms_log_end(&l);
}

/* ------------------------------------------------------------------ start */

static ms_engine_options engine_options(program *p) {
    ms_engine_options e = ms_model_flags_engine(&p->o.engine, p->o.model);
    e.snapshots = p->o.prefix_reuse ? p->o.prefix_points : 0;
    e.log = on_engine_log;
    e.log_arg = p;
    return e;
}

/* A key on the command line is wiped there: other users can read it. */
static ms_status read_keys(program *p, ms_error *err) {
    if (p->o.api_key) {
        MS_TRY(ms_keys_add(&p->keys, p->o.api_key, strlen(p->o.api_key), err));
        const char *env = getenv("MOONSHINE_API_KEY");
        if (p->o.api_key != env) {
            char *wipe = (char *)(uintptr_t)p->o.api_key;
            memset(wipe, 'x', strlen(wipe));
        }
        p->o.api_key = NULL;
    }
    return p->o.api_key_file ? ms_keys_add_file(&p->keys, p->o.api_key_file, err) : MS_OK;
}

static ms_status check_plan(program *p, const ms_engine_options *e, ms_error *err) {
    ms_plan_destroy(p->plan);
    p->plan = NULL;
    MS_TRY(ms_plan_create(&p->plan, e, err));
    if (p->plan->fits) return MS_OK;
    return ms_fail(err, MS_ERR_NO_FIT,
                   "the plan needs %llu bytes and %llu in reserve, found %llu available (device: %llu of %llu); "
                   "`moonshine plan` shows every part",
                   (unsigned long long)p->plan->total_bytes, (unsigned long long)p->plan->reserve_bytes,
                   (unsigned long long)p->plan->available_bytes, (unsigned long long)p->plan->device_total_bytes,
                   (unsigned long long)p->plan->device_available_bytes);
}

static void log_load(program *p) {
    ms_log_line l;
    ms_log_begin(&l, &p->log, MS_LOG_INFO, "server.load.start", NULL);
    ms_log_word(&l, "model_root", p->o.model);
    ms_log_word(&l, "model_source", p->plan->model_source);
    ms_log_u64(&l, "context", p->plan->context);
    ms_log_u64(&l, "experts", p->plan->experts);
    ms_log_u64(&l, "staging", p->plan->staging);
    ms_log_word(&l, "precision", p->o.engine.static_format ? "bf16" : "q8");
    ms_log_word(&l, "range_backend", p->o.engine.range_backend ? "blas" : "default");
    ms_log_end(&l);
}

/* Memory for kept states: what was asked for, else four of them as far as a quarter of the free memory goes. */
static void kept_options(program *p, ms_causal_session_options *c) {
    const ms_plan *plan = p->plan;
    uint64_t used = plan->total_bytes + plan->reserve_bytes;
    uint64_t quarter = plan->available_bytes > used ? (plan->available_bytes - used) / 4 : 0;
    uint64_t four = 4 * ms_plan_group_bytes(plan, "state");
    c->engine.kept_state_bytes = p->o.prefix_memory_given ? p->o.prefix_memory : four < quarter ? four : quarter;
    uint64_t identity = ms_tokenizer_digest(p->text.tokenizer);
    c->kept = (ms_prefix_options){.root = p->o.checkpoint_root,
                                  .disk_entries = p->o.checkpoint_entries,
                                  .disk_bytes = p->o.checkpoint_bytes,
                                  .min_distance = MIN_DISTANCE,
                                  .identity_extra = identity,
                                  .event = on_kept,
                                  .event_arg = p};
}

/* A folder that cannot be used is wrong usage, and found before the model is loaded. */
static ms_status check_root(program *p, ms_error *err) {
    if (!p->o.checkpoint_root || ms_prefix_disk_prepare(p->o.checkpoint_root, err) == MS_OK) return MS_OK;
    return ms_error_context(err, "--%s", server_names_root(&p->o));
}

static ms_status start_server(program *p, ms_error *err) {
    MS_TRY(ms_text_model_open(&p->text, p->o.model, err));
    MS_TRY(server_names_apply(&p->o, p->text.lane, err));
    const bool blas = p->o.engine.range_backend != 0; /* then a kept state is not what an evaluation gives */
    if (blas && p->o.checkpoint_root)
        return ms_fail(err, MS_ERR_USAGE, "--range-backend blas: expected no folder of kept states, found %s",
                       p->o.checkpoint_root);
    if (blas || p->o.forget_experts) p->o.prefix_reuse = 0;
    ms_causal_session_options c = {
        .engine = engine_options(p), .disabled = on_disabled, .disabled_arg = p, .logits = p->o.logits_tap};
    MS_TRY(check_plan(p, &c.engine, err));
    if (p->o.prefix_reuse) {
        kept_options(p, &c);
        MS_TRY(check_plan(p, &c.engine, err));
        MS_TRY(check_root(p, err));
    }
    if (p->o.diagnostics)
        MS_TRY(ms_diagnostics_create(&p->diagnostics, p->o.diagnostics, p->o.logits_tap, &p->text.info, err));
    p->engine = ms_causal_session_create(&c);
    if (!p->engine) return ms_fail_memory(err, "engine", sizeof p->engine);
    const char *format = p->o.engine.static_format ? "bf16" : "q8";
    (void)snprintf(p->fingerprint, sizeof p->fingerprint, "moonshine-%s-%s", format,
                   p->o.engine.precision ? "reference" : "fast");
    ms_server_options s;
    ms_server_options_default(&s);
    s.host = p->o.host;
    s.port = p->o.port;
    s.max_body_bytes = p->o.max_body;
    s.max_connections = p->o.max_connections;
    s.io_timeout_s = p->o.io_timeout_s;
    s.keys = &p->keys;
    s.origins = p->o.origins.count ? p->o.origin_names : NULL;
    s.text = &p->text;
    s.source = ms_causal_session_source(p->engine);
    s.model_id = p->o.model_id;
    s.aliases = p->o.alias_names;
    s.any_model = p->o.any_model;
    s.allow_sampling = p->o.allow_sampling;
    s.clamp_max_tokens = p->o.clamp_max_tokens;
    s.context = p->plan->context;
    s.max_output = p->o.max_output;
    s.sequential_limit = p->o.sequential_limit;
    s.deadline_s = p->o.deadline_s;
    s.keepalive_s = p->o.keepalive_s;
    s.restore_reasoning = p->o.restore_reasoning;
    s.reuse = p->o.prefix_reuse != 0;
    s.constrain = p->o.constrain != 0;
    s.buffer_structured = p->o.buffer_structured != 0;
    s.metrics = p->o.metrics;
    s.slots_endpoint = p->o.slots_endpoint;
    s.named_states = p->o.checkpoint_root && p->o.prefix_reuse;
    s.ui = p->o.ui;
    s.fingerprint = p->fingerprint;
    s.plan = p->plan;
    s.diagnostics = p->diagnostics;
    s.digest = p->o.state_digest;
    s.forget_experts = p->o.forget_experts;
    s.static_precision = format;
    s.build = MS_BUILD;
    s.model_source = p->plan->model_source;
    s.expert_store = p->plan->expert_store;
    s.experts_per_layer = p->plan->experts;
    s.range_blas = blas;
    s.log = &p->log;
    s.changed = on_changed;
    s.changed_arg = p;
    MS_TRY(ms_server_create(&p->server, &s, err));
    log_load(p);
    return MS_OK;
}

/* ------------------------------------------------------------------ life */

static void log_stop(program *p, const char *reason) {
    ms_log_line l;
    ms_log_begin(&l, &p->log, MS_LOG_INFO, "server.stop", NULL);
    ms_log_word(&l, "reason", reason);
    ms_log_end(&l);
}

/* The next byte of the pipe; 0 after timeout_ms (-1: none). */
static char next_byte(program *p, int timeout_ms) {
    struct pollfd f = {.fd = p->pipe[0], .events = POLLIN};
    char byte = 0;
    int n;
    do {
        n = poll(&f, 1, timeout_ms);
    } while (n < 0 && errno == EINTR);
    return n > 0 && read(p->pipe[0], &byte, 1) == 1 ? byte : 0;
}

/* Lets what runs go on for the grace time; a second signal ends it. */
static void drain(program *p) {
    uint64_t end = ms_clock_ns() + (uint64_t)p->o.grace_s * UINT64_C(1000000000);
    ms_server_drain(p->server);
    while (!ms_server_idle(p->server) && ms_clock_ns() < end) {
        if (next_byte(p, LOOK_MS) == BYTE_STOP) break;
    }
}

/* Until a signal or a broken engine; the exit code. */
static int serve(program *p) {
    for (;;) {
        char byte = next_byte(p, -1);
        (void)pthread_mutex_lock(&p->lock);
        ms_worker_state state = p->state;
        ms_error error = p->error;
        (void)pthread_mutex_unlock(&p->lock);
        if (byte == BYTE_HANGUP) on_engine_log(p, "SIGHUP has no effect here");
        if (byte == BYTE_CHANGED && state == MS_WORKER_READY) say_ready(p);
        if (byte == BYTE_CHANGED && state == MS_WORKER_FAILED) {
            bool loaded = error.code == MS_ERR_INTERNAL && ms_server_loaded(p->server);
            if (!loaded) log_error(p, "server.load.failed", error.message);
            return loaded ? EXIT_BROKEN : exit_code(&error);
        }
        if (byte != BYTE_STOP) continue;
        if (state == MS_WORKER_LOADING) { /* loading cannot be stopped half way: nothing is written then */
            ms_server_hang_up(p->server);
            log_stop(p, "signal");
            _exit(0);
        }
        drain(p);
        return 0;
    }
}

static ms_status install_signals(program *p, ms_error *err) {
    if (pipe2(p->pipe, O_CLOEXEC | O_NONBLOCK) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "a pipe");
    pipe_write_fd = p->pipe[1];
    struct sigaction a = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    (void)sigemptyset(&a.sa_mask);
    const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (sigaction(numbers[i], &a, NULL) != 0) return ms_fail_errno(err, MS_ERR_IO, errno, "a signal handler");
    }
    return MS_OK;
}

static int run(program *p) {
    ms_error err;
    p->start_ns = ms_clock_ns();
    ms_status status = install_signals(p, &err);
    if (status == MS_OK) status = read_keys(p, &err);
    if (status == MS_OK) status = start_server(p, &err);
    if (status != MS_OK) {
        fprintf(stderr, "moonshine-server: %s\n", err.message);
        return exit_code(&err);
    }
    int code = serve(p);
    ms_server_destroy(p->server);
    log_stop(p, code == 0 ? "signal" : code == EXIT_BROKEN ? "engine" : "load");
    return code;
}

int main(int argc, char **argv) {
    ms_command_begin();
    program p = {.pipe = {-1, -1}};
    int code = server_options_parse(&p.o, argc, argv);
    if (code < 0) {
        ms_log_init(&p.log, STDERR_FILENO, p.o.log_json != 0);
        (void)pthread_mutex_init(&p.lock, NULL);
        code = run(&p);
        ms_causal_session_destroy(p.engine);
        ms_diagnostics_destroy(p.diagnostics);
        ms_plan_destroy(p.plan);
        ms_text_model_close(&p.text);
        ms_keys_free(&p.keys);
    }
    server_options_free(&p.o);
    return code;
}
