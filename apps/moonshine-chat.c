/* moonshine-chat: talks to a model. */
#include <errno.h>

#include "chat.h"
#include "chat_signals.h"
#include "command.h"

/* What one turn is given. */
typedef struct input {
    ms_text text;     /* a user message, or */
    ms_prompt prompt; /* a whole request */
} input;

/* The input is read before the weights: what is wrong with it shows at once. */
static ms_status read_input(chat *c, input *in, ms_error *err) {
    if (!c->o->messages) return chat_read_prompt(c->o, &in->text, err);
    MS_TRY(chat_request_prompt(c, c->o->messages, &in->prompt, err));
    if (in->prompt.channel != MS_CHANNEL_NONE) return MS_OK;
    return ms_fail(err, MS_ERR_USAGE, "%s: add_generation_prompt: expected true for a reply, found false",
                   c->o->messages);
}

static int one_turn(chat *c, const input *in) {
    if (c->o->messages) return chat_turn_prompt(c, &in->prompt);
    return chat_turn_user(c, in->text.data ? in->text.data : "", in->text.len);
}

static int save_at_end(chat *c, int code) {
    ms_error err;
    bool leaving = code == CHAT_OK || (code == CHAT_FAILED && !chat_options_one_shot(c->o));
    if (!c->o->save || !leaving || chat_signals_terminated()) return code;
    if (chat_save(c, c->o->save, c->o->force, &err) != MS_OK) code = chat_fail(c, &err);
    if (chat_signals_terminated()) return CHAT_TERMINATED;
    return !c->interactive && chat_signals_interrupted() ? CHAT_INTERRUPTED : code;
}

static int run(chat *c) {
    const chat_options *o = c->o;
    if (o->tokenize || o->detokenize || o->render_only) return chat_text_only(c);
    input in = {0};
    ms_error err;
    bool one_shot = chat_options_one_shot(o);
    ms_status status = chat_check_targets(c, &err);
    if (status == MS_OK && one_shot) status = read_input(c, &in, &err);
    if (status == MS_OK) status = chat_open_engine(c, &err);
    int code;
    if (status != MS_OK)
        code = chat_fail(c, &err);
    else
        code = save_at_end(c, one_shot ? one_turn(c, &in) : chat_loop(c));
    ms_prompt_free(&in.prompt);
    ms_text_free(&in.text);
    return code;
}

int main(int argc, char **argv) {
    ms_command_begin();
    chat_options o;
    int code = chat_options_parse(&o, argc, argv);
    if (code >= 0) return code;
    chat c;
    ms_error err;
    ms_status status = chat_open_text(&c, &o, &err);
    if (status == MS_OK) status = chat_signals_install(&err);
    code = status == MS_OK ? run(&c) : chat_fail(&c, &err);
    chat_close(&c);
    if (code == CHAT_OK && c.out.error) code = c.out.error == EPIPE ? CHAT_CLOSED : CHAT_FAILED;
    return code;
}
