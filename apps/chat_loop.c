/* chat_loop.c: the conversation on a terminal or a pipe, and its commands. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "chat.h"
#include "chat_input.h"
#include "chat_signals.h"

/* The running conversation. */
typedef struct loop {
    chat *c;
    chat_input *in;
    ms_text line, message;
    bool leave, ended, failed; /* ended: the input is at its end */
    int code; /* with leave: ends the program with it unless it is 0 */
} loop;

/* ------------------------------------------------------------------ reading */

/* Reads l->line; false: the entry is dropped, or the loop is to be left. */
static bool ask_line(loop *l, const char *prompt) {
    ms_error err;
    chat_signals_phase(CHAT_PROMPT, NULL);
    chat_read r = chat_input_line(l->in, prompt, &l->line, &err);
    if (r == CHAT_READ_LINE) return true;
    if (r == CHAT_READ_INTERRUPT && l->c->interactive && !chat_signals_insistent()) {
        if (chat_input_is_terminal(l->in)) chat_note(l->c, "(again to leave)");
        return false;
    }
    l->leave = true;
    l->ended = r == CHAT_READ_END;
    if (r == CHAT_READ_TERMINATE)
        l->code = CHAT_TERMINATED;
    else if (r == CHAT_READ_INTERRUPT)
        l->code = CHAT_INTERRUPTED;
    else if (r == CHAT_READ_FAILED)
        l->code = chat_fail(l->c, &err);
    return false;
}

/* After a turn or a command: what it means for the loop. */
static void outcome(loop *l, int code) {
    if (code == CHAT_INTERRUPTED || code == CHAT_CLOSED || code == CHAT_TERMINATED) {
        l->leave = true;
        l->code = code;
    } else if (code != CHAT_OK) {
        l->failed = true;
    }
}

/* Input that ends in the middle of an entry: a pipe had nothing more to say, someone typing gave it up. */
static bool ends_entry(const loop *l) { return l->ended && !l->c->interactive; }

/* A command that cannot be obeyed as it stands.  Someone typing sees it and goes on; a script has failed. */
static void mistyped(loop *l) {
    if (!l->c->interactive) l->failed = true;
}

static void complain(loop *l, const ms_error *err) { outcome(l, chat_fail(l->c, err)); }

static void send_message(loop *l, const char *text, size_t len) { outcome(l, chat_turn_user(l->c, text, len)); }

/* ------------------------------------------------------------------ commands */

static void cmd_help(loop *l, const char *arg);

static void cmd_quit(loop *l, const char *arg) {
    (void)arg;
    l->leave = true;
}

static void cmd_save(loop *l, const char *arg) {
    ms_error err;
    if (chat_save(l->c, arg, l->c->o->force, &err) != MS_OK) complain(l, &err);
}

static void cmd_load(loop *l, const char *arg) {
    ms_error err;
    if (chat_load(l->c, arg, &err) != MS_OK) complain(l, &err);
}

static void cmd_reset(loop *l, const char *arg) {
    (void)arg;
    ms_error err;
    ms_timeline_forget(&l->c->timeline);
    ms_session_reset(l->c->session);
    if (chat_restart(l->c, &err) != MS_OK)
        complain(l, &err);
    else
        chat_note(l->c, "new conversation");
}

static void cmd_system(loop *l, const char *arg) {
    ms_error err;
    chat *c = l->c;
    if (ms_conversation_system(&c->conversation, arg, strlen(arg), &err) != MS_OK) {
        chat_note(c, "%s; /reset starts a new conversation", err.message);
        mistyped(l);
        return;
    }
    ms_text_free(&c->system);
    ms_text_puts(&c->system, arg);
}

static void say_mode(loop *l) {
    const ms_conversation *v = &l->c->conversation;
    const char *effort = v->mode.thinking ? v->mode.effort : "none";
    if (ms_conversation_rerenders(v)) {
        chat_note(l->c,
                  "thinking effort %s from the next turn; that starts a new prefix: %zu tokens are evaluated again",
                  effort, v->ids.count);
    } else if (v->opaque) {
        chat_note(l->c, "thinking effort %s from the next turn; the loaded conversation stays as it is", effort);
    } else {
        chat_note(l->c, "thinking effort %s from the next turn", effort);
    }
}

static void cmd_effort(loop *l, const char *arg) {
    for (size_t i = 0; chat_efforts[i]; i++) {
        if (strcmp(arg, chat_efforts[i]) != 0) continue;
        l->c->conversation.mode = (ms_think_mode){.thinking = true, .effort = chat_efforts[i]};
        say_mode(l);
        return;
    }
    chat_note(l->c, "/effort: expected low, medium, high or max, found \"%.80s\"", arg);
    mistyped(l);
}

static void cmd_think(loop *l, const char *arg) {
    (void)arg;
    l->c->conversation.mode.thinking = true;
    say_mode(l);
}

static void cmd_no_think(loop *l, const char *arg) {
    (void)arg;
    l->c->conversation.mode.thinking = false;
    say_mode(l);
}

static void cmd_read(loop *l, const char *arg) {
    ms_error err;
    ms_text text = {0};
    if (chat_read_file(arg, &text, &err) != MS_OK)
        complain(l, &err);
    else
        send_message(l, text.data ? text.data : "", text.len);
    ms_text_free(&text);
}

static void cmd_multi(loop *l, const char *arg) {
    (void)arg;
    ms_text text = {0};
    bool lines = false, complete = false;
    while (ask_line(l, ". ")) {
        complete = strcmp(l->line.data, ".") == 0;
        if (complete) break;
        if (lines) ms_text_puts(&text, "\n");
        ms_text_append(&text, l->line.data, l->line.len);
        lines = true;
    }
    complete = complete || ends_entry(l);
    if (complete && !text.failed && text.len) send_message(l, text.data, text.len);
    ms_text_free(&text);
}

static bool confirm_replay(loop *l, const ms_prompt *p) {
    chat *c = l->c;
    size_t reused = ms_timeline_reusable(&c->timeline, p->ids.data, p->ids.count);
    size_t known = c->conversation.ids.count;
    if (!known || reused >= known) return true;
    chat_note(c, "the state at that point is gone: %zu tokens would be evaluated again; y goes on",
              p->ids.count - reused);
    return ask_line(l, "[y/N] ") && (strcmp(l->line.data, "y") == 0 || strcmp(l->line.data, "Y") == 0);
}

static void cmd_regen(loop *l, const char *arg) {
    (void)arg;
    chat *c = l->c;
    ms_error err;
    ms_prompt p;
    if (!c->last_user.data) {
        chat_note(c, "there is no turn to repeat");
        return;
    }
    const ms_conversation before = c->conversation; /* undo only shortens: this brings everything back */
    if (c->last_accepted) (void)ms_conversation_undo(&c->conversation);
    if (ms_conversation_user(&c->conversation, c->last_user.data, c->last_user.len, &p, &err) != MS_OK) {
        c->conversation = before;
        complain(l, &err);
        return;
    }
    if (confirm_replay(l, &p))
        send_message(l, c->last_user.data, c->last_user.len);
    else
        c->conversation = before;
    ms_prompt_free(&p);
}

static void cmd_stats(loop *l, const char *arg) {
    (void)arg;
    const ms_text *t = &l->c->last_stats;
    if (t->len)
        app_write(&l->c->err, t->data, t->len);
    else
        chat_note(l->c, "no turn yet");
}

static void cmd_ctx(loop *l, const char *arg) {
    (void)arg;
    uint64_t context = ms_engine_plan(l->c->engine)->context, used = l->c->conversation.ids.count;
    chat_note(l->c, "[position=%llu room=%llu context=%llu]", (unsigned long long)used,
              (unsigned long long)(used < context ? context - used : 0), (unsigned long long)context);
}

static void cmd_max(loop *l, const char *arg) {
    ms_error err;
    if (ms_option_parse_u64(&l->c->max_tokens, "/max", arg, 1, 1048576, &err) != MS_OK) {
        chat_note(l->c, "%s", err.message);
        mistyped(l);
    }
}

typedef struct command {
    const char *name, *arg; /* arg: NULL when there is none */
    void (*run)(loop *l, const char *arg);
    const char *help;
} command;

static const command commands[] = {
    {"help", NULL, cmd_help, "this list"},
    {"quit", NULL, cmd_quit, "leave"},
    {"exit", NULL, cmd_quit, "leave"},
    {"save", "FILE", cmd_save, "write the exact state to a file; replaces one only with --force"},
    {"load", "FILE", cmd_load, "continue from a state file; replaces the conversation"},
    {"reset", NULL, cmd_reset, "start a new conversation; the expert cache stays"},
    {"system", "TEXT", cmd_system, "system message, before the first turn"},
    {"effort", "LEVEL", cmd_effort, "think: low, medium, high or max"},
    {"think", NULL, cmd_think, "think before answering"},
    {"no-think", NULL, cmd_no_think, "answer directly"},
    {"read", "FILE", cmd_read, "send a file as the next message"},
    {"multi", NULL, cmd_multi, "several lines, up to a line with a single ."},
    {"regen", NULL, cmd_regen, "repeat the last turn"},
    {"stats", NULL, cmd_stats, "telemetry of the last turn"},
    {"ctx", NULL, cmd_ctx, "position and room"},
    {"max", "N", cmd_max, "most tokens of a reply"},
};
enum { COMMANDS = sizeof commands / sizeof commands[0] };

static void cmd_help(loop *l, const char *arg) {
    (void)arg;
    for (size_t i = 0; i < COMMANDS; i++) {
        chat_note(l->c, "  /%-9s %-6s %s", commands[i].name, commands[i].arg ? commands[i].arg : "", commands[i].help);
    }
    chat_note(l->c, "  //text sends a line that begins with /; a line that ends in \\ goes on");
}

static void run_command(loop *l, const char *line) {
    ms_text copy = {0}; /* commands read lines themselves */
    ms_text_puts(&copy, line);
    if (copy.failed) return;
    char *name = copy.data, *arg = name + strcspn(name, " \t");
    if (*arg) *arg++ = 0;
    arg += strspn(arg, " \t");
    for (size_t n = strlen(arg); n && (arg[n - 1] == ' ' || arg[n - 1] == '\t'); n--) arg[n - 1] = 0;
    const command *found = NULL;
    for (size_t i = 0; i < COMMANDS && !found; i++) {
        if (strcmp(commands[i].name, name) == 0) found = &commands[i];
    }
    if (!found) {
        chat_note(l->c, "unknown command /%.60s; /help lists them", name);
        mistyped(l);
    } else if (found->arg && !*arg) {
        chat_note(l->c, "/%s needs %s", name, found->arg);
        mistyped(l);
    } else if (!found->arg && *arg) {
        chat_note(l->c, "/%s takes nothing after it, found \"%.80s\"", name, arg);
        mistyped(l);
    } else {
        found->run(l, arg);
    }
    ms_text_free(&copy);
}

/* ------------------------------------------------------------------ loop */

/* One line, with the lines that it continues on, as a message or command. */
static void one_entry(loop *l) {
    l->message.len = 0;
    const char *prompt = "> ";
    for (;;) {
        if (!ask_line(l, prompt)) {
            if (!l->message.len || !ends_entry(l)) return;
            l->message.len--; /* the newline, which nothing followed */
            break;
        }
        bool first = !l->message.len, command_line = first && l->line.data[0] == '/' && l->line.data[1] != '/';
        if (command_line) {
            run_command(l, l->line.data + 1);
            return;
        }
        size_t skip = first && l->line.data[0] == '/' ? 1 : 0, len = l->line.len - skip;
        bool more = len && l->line.data[l->line.len - 1] == '\\';
        ms_text_append(&l->message, l->line.data + skip, more ? len - 1 : len);
        if (!more) break;
        ms_text_puts(&l->message, "\n");
        prompt = ". ";
    }
    if (!l->message.failed && l->message.len) send_message(l, l->message.data, l->message.len);
}

int chat_loop(chat *c) {
    loop l = {.c = c};
    ms_error err;
    c->interactive = isatty(STDIN_FILENO) == 1;
    if (chat_input_open(&l.in, c->o->history, c->err.styled, &err) != MS_OK) return chat_fail(c, &err);
    if (chat_input_is_terminal(l.in) && !c->o->quiet) chat_note(c, "/help lists the commands");
    if (!chat_input_is_terminal(l.in) && c->o->history)
        chat_note(c, "note: --history has no effect without a terminal");
    while (!l.leave) one_entry(&l);
    if (chat_input_close(l.in, &err) != MS_OK) complain(&l, &err);
    ms_text_free(&l.line);
    ms_text_free(&l.message);
    if (l.code) return l.code;
    return l.failed ? CHAT_FAILED : CHAT_OK;
}
