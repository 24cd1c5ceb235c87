#include "server_names.h"

#include <stddef.h>
#include <string.h>

#define FIELD(f) offsetof(server_names, f)

/* In this order also in `common` and in server_names.given. */
enum { SLOTS, CHUNK, LOOKAHEAD, MAJOR, RETAIN, REUSE, CACHE_DIR, CACHE_ENTRIES, CACHE_GIB, NAMES };
_Static_assert((int)NAMES == (int)SERVER_NAMES, "one flag a name");

static const char *const on_off[] = {"off", "on", NULL};

const ms_option server_name_table[] = {
    {.name = "slots",
     .type = MS_OPTION_U32,
     .offset = FIELD(slots),
     .arg = "N",
     .max = 65536,
     .help = "Same as --experts."},
    {.name = "prefill-chunk",
     .type = MS_OPTION_U32,
     .offset = FIELD(prefill_chunk),
     .arg = "N",
     .min = 1,
     .max = 1048576,
     .word = "auto",
     .help = "Same as --range."},
    {.name = "expert-lookahead",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(lookahead),
     .arg = "V",
     .choices = on_off,
     .help = "Same as --lookahead (default: on)."},
    {.name = "expert-major",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(expert_major),
     .arg = "V",
     .choices = on_off,
     .help = "off: every prompt runs token by token, as with a high --sequential-limit (default: on)."},
    {.name = "retain-experts",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(retain),
     .arg = "V",
     .choices = on_off,
     .help = "off: no expert stays in memory, as with --experts 0, whatever --slots says (default: on)."},
    {.name = "kv-prefix-reuse",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(reuse),
     .arg = "V",
     .choices = on_off,
     .help = "Same as --prefix-reuse (default: on)."},
    {.name = "prefix-cache-dir",
     .type = MS_OPTION_STRING,
     .filled = true,
     .offset = FIELD(cache_dir),
     .arg = "DIR",
     .help = "Same as --prefix-checkpoint-root."},
    {.name = "prefix-cache-entries",
     .type = MS_OPTION_U32,
     .offset = FIELD(cache_entries),
     .arg = "N",
     .min = 1,
     .max = 4096,
     .help = "Same as --prefix-checkpoint-entries (default: 8); needs --prefix-cache-dir."},
    {.name = "prefix-cache-gib",
     .type = MS_OPTION_U32,
     .offset = FIELD(cache_gib),
     .arg = "N",
     .min = 1,
     .max = 1048576,
     .help = "Same as --prefix-checkpoint-bytes, in GiB (default: 24); needs --prefix-cache-dir."},
};
const size_t server_name_count = sizeof server_name_table / sizeof server_name_table[0];
_Static_assert(sizeof server_name_table / sizeof server_name_table[0] == NAMES, "one entry a name");

/* What each stands for. */
static const char *const common[NAMES] = {[SLOTS] = "experts",
                                          [CHUNK] = "range",
                                          [LOOKAHEAD] = "lookahead",
                                          [MAJOR] = "sequential-limit",
                                          [RETAIN] = "experts",
                                          [REUSE] = "prefix-reuse",
                                          [CACHE_DIR] = "prefix-checkpoint-root",
                                          [CACHE_ENTRIES] = "prefix-checkpoint-entries",
                                          [CACHE_GIB] = "prefix-checkpoint-bytes"};

server_names server_names_default(void) {
    return (server_names){
        .lookahead = 1, .expert_major = 1, .retain = 1, .reuse = 1, .cache_entries = 8, .cache_gib = 24};
}

ms_status server_names_parsed(server_options *o, const ms_option_set *set, const ms_option_result *r, ms_error *err) {
    for (size_t i = 0; i < NAMES; i++) {
        const char *const both[] = {server_name_table[i].name, common[i]};
        o->names.given[i] = ms_options_given(set, r, both[0]);
        o->names.common_given[i] = ms_options_given(set, r, both[1]);
        MS_TRY(ms_options_exclusive(set, r, both, 2, err));
    }
    return MS_OK;
}

static ms_status check(const server_names *n, const ms_lane *lane, ms_error *err) {
    for (size_t i = 0; i < NAMES; i++) {
        bool known = !n->given[i];
        for (const char *const *k = lane->option_names; !known && k && *k; k++)
            known = strcmp(*k, server_name_table[i].name) == 0;
        if (!known)
            return ms_fail(err, MS_ERR_USAGE, "--%s: expected an option of this model's family (%s); there it is --%s",
                           server_name_table[i].name, lane->name, common[i]);
    }
    return MS_OK;
}

/* Bounds of a folder that nobody gave would bound nothing. */
static ms_status check_folder(const server_options *o, ms_error *err) {
    static const size_t bounds[] = {CACHE_ENTRIES, CACHE_GIB};
    const server_names *n = &o->names;
    if (o->checkpoint_root) return MS_OK;
    for (size_t i = 0; i < sizeof bounds / sizeof bounds[0]; i++) {
        size_t b = bounds[i];
        if (n->given[b])
            return ms_fail(err, MS_ERR_USAGE, "--%s: needs --%s", server_name_table[b].name,
                           server_name_table[CACHE_DIR].name);
        if (n->common_given[b]) return ms_fail(err, MS_ERR_USAGE, "--%s: needs --%s", common[b], common[CACHE_DIR]);
    }
    return MS_OK;
}

const char *server_names_root(const server_options *o) {
    return o->names.given[CACHE_DIR] ? server_name_table[CACHE_DIR].name : common[CACHE_DIR];
}

ms_status server_names_apply(server_options *o, const ms_lane *lane, ms_error *err) {
    const server_names *n = &o->names;
    MS_TRY(check(n, lane, err));
    if (n->given[SLOTS]) o->engine.experts = n->slots;
    if (n->given[RETAIN] && !n->retain) o->engine.experts = 0;
    if (n->given[CHUNK]) o->engine.range = n->prefill_chunk;
    if (n->given[LOOKAHEAD]) o->engine.lookahead = n->lookahead ? 0 : 1; /* the choices there: on, off */
    if (n->given[MAJOR] && !n->expert_major) o->sequential_limit = UINT32_MAX;
    if (n->given[REUSE]) o->prefix_reuse = n->reuse;
    bool dir = n->given[CACHE_DIR];
    if (dir) o->checkpoint_root = n->cache_dir;
    MS_TRY(check_folder(o, err));
    if (n->given[CACHE_ENTRIES] || (dir && !n->common_given[CACHE_ENTRIES])) o->checkpoint_entries = n->cache_entries;
    if (n->given[CACHE_GIB] || (dir && !n->common_given[CACHE_GIB])) o->checkpoint_bytes = (uint64_t)n->cache_gib << 30;
    return MS_OK;
}
