/* chat_text.c: what needs the tokenizer and the renderer only. */
#include <stdlib.h>
#include <string.h>

#include "chat.h"

static void write_ids(ms_text *out, const ms_ids *ids, const char *separator) {
    for (size_t i = 0; i < ids->count; i++) ms_text_printf(out, "%s%u", i ? separator : "", ids->data[i]);
}

/* Ids and, when `text` is not NULL, their text with the names of control tokens. */
static ms_status print_ids(chat *c, const ms_ids *ids, const ms_text *text, ms_error *err) {
    ms_text out = {0};
    if (c->o->json) {
        ms_text_printf(&out, "{\"count\":%zu,\"ids\":[", ids->count);
        write_ids(&out, ids, ",");
        ms_text_puts(&out, "]");
        if (text) {
            ms_text_puts(&out, ",\"text\":");
            ms_json_write_string(&out, text->data ? text->data : "", text->len);
        }
        ms_text_puts(&out, "}\n");
    } else {
        write_ids(&out, ids, " ");
        ms_text_puts(&out, "\n");
        if (text) {
            ms_text_append(&out, text->data, text->len);
            ms_text_puts(&out, "\n");
        }
    }
    if (!out.failed) app_write_text(&c->out, out.data, out.len);
    ms_status status = out.failed ? ms_fail_memory(err, "the list of ids", out.len) : MS_OK;
    ms_text_free(&out);
    return status;
}

static ms_status tokenize(chat *c, ms_error *err) {
    ms_ids ids = {0};
    ms_status status = ms_tokenizer_encode(c->text.tokenizer, c->o->tokenize, strlen(c->o->tokenize), false, &ids, err);
    if (status == MS_OK) status = print_ids(c, &ids, NULL, err);
    ms_ids_free(&ids);
    return status;
}

static ms_status read_ids(const char *list, uint32_t vocab, ms_ids *out, ms_error *err) {
    for (const char *s = list + strspn(list, " ,"); *s; s += strspn(s, " ,")) {
        char word[24];
        size_t n = strcspn(s, " ,");
        uint64_t id;
        size_t kept = n < sizeof word ? n : sizeof word - 1;
        memcpy(word, s, kept);
        word[kept] = 0;
        MS_TRY(ms_option_parse_u64(&id, "--detokenize", word, 0, vocab - 1, err));
        MS_TRY(ms_ids_push(out, (uint32_t)id, err));
        s += n;
    }
    return MS_OK;
}

static ms_status detokenize(chat *c, ms_error *err) {
    ms_ids ids = {0};
    ms_text text = {0};
    ms_status status = read_ids(c->o->detokenize, c->text.info.vocab, &ids, err);
    if (status == MS_OK) status = ms_tokenizer_decode(c->text.tokenizer, ids.data, ids.count, true, &text, err);
    if (status == MS_OK && c->o->json) {
        status = print_ids(c, &ids, &text, err);
    } else if (status == MS_OK) {
        app_write_text(&c->out, text.data, text.len);
        app_write(&c->out, "\n", 1);
    }
    ms_text_free(&text);
    ms_ids_free(&ids);
    return status;
}

static ms_status prompt(chat *c, ms_prompt *p, ms_error *err) {
    if (c->o->messages) return chat_request_prompt(c, c->o->messages, p, err);
    ms_text text = {0};
    ms_status status = chat_read_prompt(c->o, &text, err);
    if (status == MS_OK) status = ms_conversation_user(&c->conversation, text.data ? text.data : "", text.len, p, err);
    ms_text_free(&text);
    return status;
}

static ms_status render(chat *c, ms_error *err) {
    ms_prompt p = {0};
    ms_text text = {0};
    ms_status status = prompt(c, &p, err);
    if (status == MS_OK) status = ms_tokenizer_decode(c->text.tokenizer, p.ids.data, p.ids.count, true, &text, err);
    if (status == MS_OK) status = print_ids(c, &p.ids, &text, err);
    ms_text_free(&text);
    ms_prompt_free(&p);
    return status;
}

int chat_text_only(chat *c) {
    ms_error err;
    ms_status status = c->o->tokenize ? tokenize(c, &err) : c->o->detokenize ? detokenize(c, &err) : render(c, &err);
    if (status == MS_OK && c->out.error) status = ms_fail_errno(&err, MS_ERR_IO, c->out.error, "standard output");
    return status == MS_OK ? CHAT_OK : chat_fail(c, &err);
}
