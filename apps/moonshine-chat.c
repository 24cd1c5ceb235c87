/* moonshine-chat: talks to a model. */
#include <errno.h>

#include "chat.h"
#include "chat_signals.h"

/* The input is read before the weights: what is wrong with it shows at once. */
static ms_status one_prompt(chat *c, chat_request *r, ms_text *text, ms_error *err) {
    return c->o->messages ? chat_request_open(r, c, c->o->messages, err) : chat_read_prompt(c->o, text, err);
}

static int one_turn(chat *c, const chat_request *r, const ms_text *text) {
    if (!c->o->messages) return chat_turn_user(c, text->data ? text->data : "", text->len);
    ms_prompt p;
    ms_error err;
    if (ms_conversation_request(&c->conversation, ms_json_root(r->doc), &p, &err) != MS_OK) return chat_fail(c, &err);
    int code = chat_turn_prompt(c, &p);
    ms_prompt_free(&p);
    return code;
}

static int save_at_end(chat *c, int code) {
    ms_error err;
    bool leaving = code == CHAT_OK || (code == CHAT_FAILED && !chat_options_one_shot(c->o));
    if (!c->o->save || !leaving || chat_signals_terminated()) return code;
    return chat_save(c, c->o->save, c->o->force, &err) == MS_OK ? code : chat_fail(c, &err);
}

static int run(chat *c) {
    const chat_options *o = c->o;
    if (o->tokenize || o->detokenize || o->render_only) return chat_text_only(c);
    chat_request request = {0};
    ms_text text = {0};
    ms_error err;
    bool one_shot = chat_options_one_shot(o);
    ms_status status = one_shot ? one_prompt(c, &request, &text, &err) : MS_OK;
    if (status == MS_OK) status = chat_open_engine(c, &err);
    int code;
    if (status != MS_OK) code = chat_fail(c, &err);
    else code = save_at_end(c, one_shot ? one_turn(c, &request, &text) : chat_loop(c));
    chat_request_close(&request);
    ms_text_free(&text);
    return code;
}

int main(int argc, char **argv) {
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
