/* grammar_way.c: see grammar_way.h. */
#include "text/grammar_way.h"

#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ symbols */

/* White space may be left out everywhere, so it lowers no bound. */
static bool is_space(const ms_matcher *m, uint32_t stack) {
    return stack > MS_FRAME_FLOOR && m->frames[stack].block == m->g->space;
}

static void leave_out_space(const ms_matcher *m, ms_list *stacks) {
    uint32_t kept = 0;
    for (uint32_t i = 0; i < stacks->count; i++)
        if (!is_space(m, stacks->data[i])) stacks->data[kept++] = stacks->data[i];
    stacks->count = kept;
}

/* The symbols that some stack of the list may read next. */
static void candidates(const ms_matcher *m, const ms_list *stacks, uint64_t symbols[MS_SYMBOLS / 64]) {
    memset(symbols, 0, MS_SYMBOLS / 8);
    for (uint32_t i = 0; i < stacks->count; i++) ms_match_candidates(m, stacks->data[i], symbols);
}

static uint32_t least_bound(const ms_matcher *m, const ms_list *stacks) {
    uint32_t best = MS_BOUND_NONE;
    for (uint32_t i = 0; i < stacks->count; i++)
        if (m->frames[stacks->data[i]].total < best) best = m->frames[stacks->data[i]].total;
    return best;
}

/* Whether a symbol lowers the bound; *next: the stacks behind it. */
static bool lowers(ms_matcher *m, const ms_list *now, ms_list *next, uint32_t log, uint32_t bound, uint32_t symbol) {
    m->log_len = log;
    if (symbol < MS_SYMBOL_CONTROL && !ms_match_log(m, (uint8_t)symbol)) return false;
    next->count = 0;
    ms_match_epoch(m);
    for (uint32_t i = 0; i < now->count; i++) ms_match_step(m, now->data[i], symbol, next);
    return least_bound(m, next) < bound;
}

/* The symbol that lowers the bound: one of the last two bytes, as texts repeat themselves, or the first that does.
 * MS_SYMBOLS: none. */
static uint32_t lowering(ms_matcher *m, const ms_list *now, ms_list *next, uint32_t bound) {
    uint64_t symbols[MS_SYMBOLS / 64];
    uint32_t log = m->log_len;
    candidates(m, now, symbols);
    for (uint32_t back = 1; back <= 2 && back <= log; back++) {
        uint32_t s = m->log[log - back];
        if (!(symbols[s / 64] >> s % 64 & 1)) continue;
        if (lowers(m, now, next, log, bound, s)) return s;
        symbols[s / 64] &= ~(UINT64_C(1) << s % 64);
    }
    for (uint32_t w = 0; w < MS_SYMBOLS / 64 && !m->failed; w++)
        for (uint64_t bits = symbols[w]; bits; bits &= bits - 1)
            if (lowers(m, now, next, log, bound, w * 64 + (uint32_t)__builtin_ctzll(bits)))
                return w * 64 + (uint32_t)__builtin_ctzll(bits);
    return MS_SYMBOLS;
}

static void follow(ms_matcher *m, ms_way *way) {
    uint32_t bound = ms_matcher_bound(m);
    ms_list now = {0}, next = {0};
    ms_match_mark mark = ms_match_marked(m);
    for (uint32_t i = 0; i < m->stacks.count; i++) ms_list_push(m, &now, m->stacks.data[i]);
    while (bound && bound < MS_BOUND_NONE && !m->failed) {
        leave_out_space(m, &now);
        uint32_t symbol = lowering(m, &now, &next, bound);
        if (symbol == MS_SYMBOLS) break;
        way->symbols[way->length++] = (uint16_t)symbol;
        bound = least_bound(m, &next);
        ms_list swap = now;
        now = next;
        next = swap;
    }
    ms_match_back(m, mark);
    free(now.data);
    free(next.data);
}

/* ------------------------------------------------------------------ tokens */

static void cut_at(const ms_vocabulary *v, ms_way *way, uint32_t i) {
    uint32_t best = UINT32_MAX;
    if (way->symbols[i] >= MS_SYMBOL_CONTROL) {
        way->need[i] = way->need[i + 1] + 1;
        way->first[i] = v->first_control + way->symbols[i] - MS_SYMBOL_CONTROL;
        return;
    }
    uint32_t node = v->root[way->symbols[i]], end = node == UINT32_MAX ? 0 : node + 1;
    for (uint32_t at = i; at < way->length && node < end;) {
        if (v->byte[node] != way->symbols[at]) {
            node = v->end[node];
            continue;
        }
        at++;
        if (v->token[node] != MS_NO_TOKEN && way->need[at] < best) {
            best = way->need[at];
            way->first[i] = v->token[node];
        }
        end = v->end[node++];
    }
    way->need[i] = best == UINT32_MAX ? best : best + 1;
}

static bool make(ms_matcher *m, const ms_vocabulary *v) {
    uint32_t bound = ms_matcher_bound(m), cap = bound < MS_BOUND_NONE ? bound : 0;
    ms_way *way = &m->way;
    ms_way_clear(way);
    way->symbols = malloc(((size_t)cap + 1) * sizeof *way->symbols);
    way->need = malloc(((size_t)cap + 1) * sizeof *way->need);
    way->first = malloc(((size_t)cap + 1) * sizeof *way->first);
    if (!way->symbols || !way->need || !way->first) return false;
    follow(m, way);
    way->need[way->length] = 0;
    way->first[way->length] = MS_NO_TOKEN;
    for (uint32_t i = way->length; i-- > 0;) cut_at(v, way, i);
    way->vocabulary = v;
    return !m->failed;
}

bool ms_way_find(ms_matcher *m, const ms_vocabulary *v, uint32_t *tokens, uint32_t *first) {
    *tokens = 0;
    *first = MS_NO_TOKEN;
    if (m->way.vocabulary != v && !make(m, v)) {
        ms_way_clear(&m->way);
        return false;
    }
    *tokens = m->way.need[m->way.at];
    *first = m->way.first[m->way.at];
    return true;
}
