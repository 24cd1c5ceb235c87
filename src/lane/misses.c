#include "lane/misses.h"

#include <string.h>

enum { MAX_LISTED = 20 };

void ms_misses_note(ms_misses *m, const char *what) {
    const size_t room = sizeof((ms_error *)0)->message - 80; /* for "and N more" and the reader's context */
    if (m->listed == MAX_LISTED || (m->listed && m->list.len + strlen(what) + 2 > room)) {
        m->unlisted++;
        return;
    }
    if (m->listed++) ms_text_puts(&m->list, "; ");
    ms_text_puts(&m->list, what);
}

void ms_misses_expect(ms_misses *m, const ms_checkpoint *c, const char *name, ms_dtype dtype, unsigned dims,
                      const uint64_t *shape, uint8_t *seen) {
    const ms_tensor *t = ms_checkpoint_find(c, name);
    if (t) seen[t - ms_checkpoint_tensor(c, 0)] = 1;
    ms_error error = {0};
    if (ms_checkpoint_expect(c, name, dtype, dims, shape, NULL, &error) != MS_OK) ms_misses_note(m, error.message);
}

void ms_misses_unknown(ms_misses *m, const char *name) {
    ms_error error = {0};
    (void)ms_fail(&error, MS_ERR_FORMAT, "unknown tensor \"%.200s\"", name);
    ms_misses_note(m, error.message);
}

ms_status ms_misses_finish(ms_misses *m, const char *dir, ms_error *err) {
    ms_status status = MS_OK;
    if (m->list.failed)
        status = ms_fail_memory(err, "list of tensors", m->list.cap);
    else if (m->unlisted)
        status = ms_fail(err, MS_ERR_FORMAT, "%s: %s; and %u more", dir, m->list.data, (unsigned)m->unlisted);
    else if (m->listed)
        status = ms_fail(err, MS_ERR_FORMAT, "%s: %s", dir, m->list.data);
    ms_text_free(&m->list);
    *m = (ms_misses){0};
    return status;
}
