/* chat_setup.c: opening and closing what a conversation needs, files in and out. */
#include "chat.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/clock.h"
#include "chat_input.h"
#include "chat_signals.h"
#include "io/file.h"

static double gib(uint64_t bytes) { return (double)bytes / (double)(UINT64_C(1) << 30); }

void chat_note(chat *c, const char *fmt, ...) {
    char line[1200];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    app_progress_end(&c->bar);
    app_write_text(&c->err, line, strlen(line));
    app_write(&c->err, "\n", 1);
}

int chat_fail(chat *c, const ms_error *err) {
    if (c->out.error == EPIPE) return CHAT_CLOSED;
    if (c->o->json) {
        ms_text t = {0};
        ms_text_printf(&t, "{\"error\":{\"code\":\"%s\",\"message\":", ms_status_name(err->code));
        ms_json_write_string(&t, err->message, strlen(err->message));
        ms_text_puts(&t, "}}\n");
        if (!t.failed) app_write(&c->out, t.data, t.len);
        ms_text_free(&t);
    }
    chat_note(c, "moonshine-chat: %s", err->message);
    if (err->code == MS_ERR_USAGE) return CHAT_USAGE;
    return err->code == MS_ERR_NO_FIT ? CHAT_REFUSED : CHAT_FAILED;
}

bool chat_wants_bar(const chat_options *o) {
    return o->progress == APP_ALWAYS || (o->progress == APP_AUTO && !o->quiet);
}

/* ------------------------------------------------------------------ files */

static ms_status read_stdin(ms_text *out, ms_error *err) {
    char piece[65536];
    for (;;) {
        ssize_t n = read(STDIN_FILENO, piece, sizeof piece);
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) return ms_fail_errno(err, MS_ERR_IO, errno, "standard input");
        if (n == 0) return MS_OK;
        if (out->len + (size_t)n > CHAT_FILE_MAX_BYTES) {
            return ms_fail(err, MS_ERR_FORMAT, "standard input: expected at most %zu bytes, found more",
                           CHAT_FILE_MAX_BYTES);
        }
        ms_text_append(out, piece, (size_t)n);
        if (out->failed) return ms_fail_memory(err, "standard input", out->len);
    }
}

ms_status chat_read_file(const char *path, ms_text *out, ms_error *err) {
    if (strcmp(path, "-") == 0) return read_stdin(out, err);
    char *data = NULL;
    size_t len = 0;
    MS_TRY(ms_file_read_all(path, CHAT_FILE_MAX_BYTES, &data, &len, err));
    ms_text_append(out, data, len);
    free(data);
    return out->failed ? ms_fail_memory(err, path, len) : MS_OK;
}

ms_status chat_read_prompt(const chat_options *o, ms_text *out, ms_error *err) {
    if (o->from_stdin) return read_stdin(out, err);
    if (o->prompt_file) return chat_read_file(o->prompt_file, out, err);
    ms_text_puts(out, o->prompt);
    return out->failed ? ms_fail_memory(err, "the prompt", strlen(o->prompt)) : MS_OK;
}

/* Opens the file as the end will and takes it back.  A signal that ends the program waits for that. */
static ms_status try_save(const chat_options *o, ms_error *err) {
    struct stat st;
    if (!o->force && lstat(o->save, &st) == 0 && S_ISREG(st.st_mode)) {
        return ms_fail(err, MS_ERR_IO, "--save: %s exists; --force lets it be replaced", o->save);
    }
    sigset_t all, before;
    (void)sigfillset(&all);
    (void)sigprocmask(SIG_BLOCK, &all, &before);
    ms_file_writer *w;
    ms_status status = ms_file_writer_open(&w, o->save, o->force, err);
    if (status == MS_OK) ms_file_writer_abort(w);
    (void)sigprocmask(SIG_SETMASK, &before, NULL);
    if (status == MS_OK) return MS_OK;
    if (status == MS_ERR_USAGE) err->code = MS_ERR_IO; /* "folder/" is a target that cannot be, like any other */
    return ms_error_context(err, "--save");
}

ms_status chat_check_targets(chat *c, ms_error *err) {
    const chat_options *o = c->o;
    if (o->save) MS_TRY(try_save(o, err));
    return o->history && !chat_options_one_shot(o) ? chat_input_check_history(o->history, err) : MS_OK;
}

/* ------------------------------------------------------------------ text side */

static ms_status open_sampler(chat *c, ms_error *err) {
    const chat_options *o = c->o;
    ms_sampler_greedy(&c->sampler);
    c->sampler.temperature = o->temperature;
    c->sampler.top_p = o->top_p;
    c->sampler.min_p = o->min_p;
    c->sampler.top_k = o->top_k;
    c->sampler.seed = o->seed;
    c->seeded = o->seed_given;
    for (size_t i = 0; i < o->stop.count; i++) {
        MS_TRY(ms_stop_strings_add(&c->stops, o->stop.items[i], strlen(o->stop.items[i]), err));
    }
    return MS_OK;
}

ms_status chat_restart(chat *c, ms_error *err) {
    ms_conversation_clear(&c->conversation);
    ms_text_free(&c->last_user);
    c->last_accepted = false;
    return c->system.len ? ms_conversation_system(&c->conversation, c->system.data, c->system.len, err) : MS_OK;
}

ms_status chat_open_text(chat *c, const chat_options *o, ms_error *err) {
    *c = (chat){.o = o, .max_tokens = o->max_tokens};
    app_stream_init(&c->out, STDOUT_FILENO, (app_when)o->color);
    app_stream_init(&c->err, STDERR_FILENO, (app_when)o->color);
    MS_TRY(open_sampler(c, err));
    if (o->system) ms_text_puts(&c->system, o->system);
    if (o->system_file) MS_TRY(chat_read_file(o->system_file, &c->system, err));
    if (c->system.failed) return ms_fail_memory(err, "the system message", c->system.len);
    MS_TRY(ms_text_model_open(&c->text, o->model, err));
    ms_conversation_init(&c->conversation, &c->text);
    c->conversation.mode.thinking = o->thinking == 1;
    c->conversation.mode.effort = chat_efforts[o->effort >= 0 ? o->effort : 3];
    return chat_restart(c, err);
}

/* ------------------------------------------------------------------ engine */

static void on_log(void *arg, const char *line) { chat_note(arg, "%s", line); }

static void on_load(void *arg, uint64_t done, uint64_t total) {
    chat *c = arg;
    app_progress_update(&c->bar, "MiB", done >> 20, total >> 20);
}

static ms_status check_sampling(chat *c, ms_error *err) {
    const chat_options *o = c->o;
    if (c->text.lane->greedy_only && !o->allow_sampling && c->sampler.temperature > 0) {
        return ms_fail(err, MS_ERR_USAGE, "--temperature: %s models only give the best token (0) without --allow-sampling, found %g",
                       c->text.lane->name, c->sampler.temperature);
    }
    if (c->sampler.temperature > 0) {
        if (!c->seeded && getrandom(&c->sampler.seed, sizeof c->sampler.seed, 0) != sizeof c->sampler.seed) {
            return ms_fail_errno(err, MS_ERR_IO, errno, "a random seed");
        }
        if (!o->quiet) chat_note(c, "[seed=%lld]", (long long)c->sampler.seed);
    } else if (o->top_p_given || o->top_k_given || o->min_p_given || o->seed_given) {
        chat_note(c,
                  "note: without --temperature the best token is taken; top-p, top-k, min-p and seed have no effect");
    }
    return MS_OK;
}

static void say_ready(chat *c) {
    const ms_plan *plan = ms_engine_plan(c->engine);
    ms_model_info info;
    ms_engine_info(c->engine, &info);
    chat_note(c,
              "ready: %s, context %llu, %s kernels, %u threads; loaded in %.2f s; static %.3f GiB, cache %.3f GiB, "
              "state %.3f GiB",
              info.lane, (unsigned long long)plan->context, info.kernels, info.threads, c->load_seconds,
              gib(ms_plan_group_bytes(plan, "static")), gib(ms_plan_group_bytes(plan, "cache")),
              gib(ms_plan_group_bytes(plan, "state")));
}

ms_status chat_open_engine(chat *c, ms_error *err) {
    const chat_options *o = c->o;
    ms_engine_options e = ms_model_flags_engine(&o->engine, o->model);
    bool one_shot = chat_options_one_shot(o);
    e.snapshots = one_shot ? 0 : 1;
    e.log = on_log;
    e.log_arg = c;
    e.load_progress = on_load;
    e.load_progress_arg = c;
    MS_TRY(check_sampling(c, err));
    uint64_t start = ms_clock_ns();
    if (!o->quiet) {
        char context[24] = "default";
        if (o->engine.context) (void)snprintf(context, sizeof context, "%llu", (unsigned long long)o->engine.context);
        chat_note(c, "moonshine-chat %s: precision %s (static %s), context %s, source %s", MS_VERSION,
                  o->engine.precision ? "reference" : "fast", o->engine.static_format ? "bf16" : "q8", context,
                  o->model);
    }
    app_progress_begin(&c->bar, &c->err, chat_wants_bar(o), "loading", UINT64_C(1000000000));
    ms_status status = ms_engine_open(&c->engine, &e, err);
    if (status == MS_OK) status = ms_session_create(&c->session, c->engine, err);
    app_progress_end(&c->bar);
    MS_TRY(status);
    c->load_seconds = (double)(ms_clock_ns() - start) / 1e9;
    ms_timeline_init(&c->timeline, c->engine, c->session, &c->text);
    c->timeline.keep_prompt_end = !one_shot;
    if (!o->quiet) say_ready(c);
    return o->load ? chat_load(c, o->load, err) : MS_OK;
}

/* A failed import leaves the session as it was, or empty when the file changed while it was read.  The conversation's
 * ids are known in either case, also those that came from a state file. */
static ms_status load_failed(chat *c, uint64_t before, const ms_error *err) {
    if (ms_session_position(c->session) == before) return err->code;
    ms_timeline_forget(&c->timeline);
    if (c->conversation.ids.count) {
        chat_note(c, "the conversation stays; its %zu tokens are evaluated again with the next turn",
                  c->conversation.ids.count);
    }
    return err->code;
}

ms_status chat_load(chat *c, const char *path, ms_error *err) {
    uint64_t position = ms_session_position(c->session);
    if (ms_session_import(c->session, path, err) != MS_OK) return load_failed(c, position, err);
    ms_timeline_forget(&c->timeline);
    size_t closed = 0;
    position = ms_session_position(c->session);
    MS_TRY(ms_conversation_continue(&c->conversation, ms_session_tokens(c->session), (size_t)position, &closed, err));
    ms_text_free(&c->last_user);
    c->last_accepted = false;
    if (!c->o->quiet) {
        chat_note(c, "loaded %s: position %llu%s", path, (unsigned long long)position,
                  closed ? "; its last message is closed with the next turn" : "");
    }
    return MS_OK;
}

void chat_begin_work(chat *c) {
    ms_session_clear_cancel(c->session);
    if (c->interactive) (void)chat_signals_take_interrupts();
    chat_signals_phase(CHAT_TURN, c->session);
    if (!c->interactive && chat_signals_interrupted()) ms_session_cancel(c->session);
}

ms_status chat_save(chat *c, const char *path, bool replace, ms_error *err) {
    chat_begin_work(c);
    ms_status status = ms_timeline_settle(&c->timeline, &c->conversation.ids, err);
    chat_signals_phase(CHAT_WRITING, NULL);
    if (status == MS_OK) status = ms_session_export(c->session, path, replace, err);
    if (status == MS_OK && !c->o->quiet) {
        chat_note(c, "saved %s: position %llu", path, (unsigned long long)ms_session_position(c->session));
    }
    return status;
}

void chat_close(chat *c) {
    ms_timeline_fini(&c->timeline);
    ms_session_destroy(c->session);
    ms_engine_close(c->engine);
    ms_conversation_fini(&c->conversation);
    ms_text_model_close(&c->text);
    ms_stop_strings_free(&c->stops);
    ms_text_free(&c->system);
    ms_text_free(&c->last_user);
    ms_text_free(&c->last_stats);
}
