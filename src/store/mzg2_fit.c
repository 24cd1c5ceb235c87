/* mzg2_fit.c: counts of a sample, contexts merged into few tables, frequencies.
 *
 * A context is (row class, scale difference, column class).  Contexts are merged pairwise where that costs the fewest
 * bits, by their nibbles, until few are left; then each context moves to the table that codes its bytes best, and the
 * tables are made anew, until nothing moves.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bytes.h"
#include "store/mzg2_encode.h"
#include "store/mzg2_model.h"

enum {
    CONTEXTS = MS_MZG2_CLASSES * MS_MZG2_DELTAS * MS_MZG2_CLASSES, /* class, difference, column class */
    MEANS = 256,                                                   /* whole part of a row's mean scale */
    SEEDS = 192,                                                   /* clusters that merging begins with */
    ROUNDS = 12,
    SAFE_SCALES = 8 /* scale symbols that every table can code */
};

typedef struct kind_counts {
    uint64_t bytes[CONTEXTS][256];
    uint64_t scales[MS_MZG2_CLASSES][MEANS][256];
    uint64_t rows[MEANS];
} kind_counts;

struct ms_mzg2_fit {
    ms_expert_shape shape;
    ms_mzg2_fit_options options;
    kind_counts *kind; /* [3] */
    uint8_t *base, *columns;
    uint32_t *mean8;
    mzg2_ranked *order;
};

static uint32_t widest_of(ms_expert_shape s) { return s.hidden > s.inner ? s.hidden : s.inner; }

ms_status ms_mzg2_fit_create(ms_mzg2_fit **out, ms_expert_shape s, const ms_mzg2_fit_options *o, ms_error *err) {
    ms_mzg2_fit *f = calloc(1, sizeof *f);
    if (!f) return ms_fail_memory(err, "table fitting", sizeof *f);
    uint32_t widest = widest_of(s);
    f->shape = s;
    if (o) f->options = *o;
    if (!f->options.tables) f->options.tables = MS_MZG2_FIT_TABLES;
    if (!f->options.column_classes) f->options.column_classes = MS_MZG2_CLASSES;
    f->kind = calloc(MS_MZG2_SETS, sizeof *f->kind);
    f->base = malloc(widest);
    f->mean8 = malloc(widest * sizeof *f->mean8);
    f->columns = malloc(widest / 2);
    f->order = malloc(widest / 2 * sizeof *f->order);
    if (!f->kind || !f->base || !f->mean8 || !f->columns || !f->order) {
        ms_mzg2_fit_destroy(f);
        return ms_fail_memory(err, "table fitting", (size_t)ms_mzg2_fit_bytes(s));
    }
    *out = f;
    return MS_OK;
}

void ms_mzg2_fit_destroy(ms_mzg2_fit *f) {
    if (!f) return;
    free(f->kind);
    free(f->base);
    free(f->mean8);
    free(f->columns);
    free(f->order);
    free(f);
}

/* ------------------------------------------------------------------ counting */

static uint32_t context_of(uint32_t class, uint32_t s, uint32_t q) {
    uint32_t d = s < MS_MZG2_DELTAS - 1 ? s : MS_MZG2_DELTAS - 1;
    return (class * MS_MZG2_DELTAS + d) * MS_MZG2_CLASSES + q;
}

/* Bases as they are when no row needs clamping, which does not depend on the e_base that is chosen later. */
static void count_matrix(ms_mzg2_fit *f, const mzg2_matrix *m) {
    kind_counts *k = &f->kind[m->kind];
    for (uint32_t r = 0; r < m->rows; r++) {
        f->mean8[r] = mzg2_row_mean8(m->scales + (size_t)r * m->groups, m->groups);
        f->base[r] = (uint8_t)(f->mean8[r] / 8 - MZG2_BASE_BELOW);
        k->rows[f->mean8[r] / 8]++;
    }
    mzg2_column_classes(f->columns, m, f->base, f->options.column_classes, f->order);
    const uint8_t *bytes = m->packed, *scale = m->scales;
    for (uint32_t r = 0; r < m->rows; r++) {
        uint32_t class = f->mean8[r] & 7;
        uint64_t *scales = k->scales[class][f->mean8[r] / 8];
        for (uint32_t g = 0; g < m->groups; g++, bytes += MZG2_GROUP_BYTES, scale++) {
            scales[*scale]++;
            uint64_t(*context)[256] = &k->bytes[context_of(class, (uint8_t)(*scale - f->base[r]), 0)];
            const uint8_t *q = f->columns + g * MZG2_GROUP_BYTES;
            for (uint32_t i = 0; i < MZG2_GROUP_BYTES; i++) context[q[i]][bytes[i]]++;
        }
    }
}

void ms_mzg2_fit_add(ms_mzg2_fit *f, const uint8_t *canonical) {
    for (int i = 0; i < MS_MZG2_SETS; i++) {
        mzg2_matrix m = mzg2_matrix_of(canonical, f->shape, (ms_expert_matrix)i);
        count_matrix(f, &m);
    }
}

/* ------------------------------------------------------------------ frequencies */

/* A table in the making: what a slot more saves and a slot less costs each symbol, in bits over the sample. */
typedef struct making {
    const uint64_t *n;
    uint16_t *freq;
    uint32_t range;
    double gain[256], loss[256];
} making;

static void weigh(making *t, int s) {
    double n = (double)t->n[s], f = t->freq[s];
    t->gain[s] = t->freq[s] && t->freq[s] < t->range - 1 ? n * log2((f + 1) / f) : -1;
    t->loss[s] = t->freq[s] > 1 ? n * log2(f / (f - 1)) : INFINITY;
}

static void change(making *t, int s, int by) {
    t->freq[s] = (uint16_t)(t->freq[s] + by);
    weigh(t, s);
}

static int best_up(const making *t) {
    int best = 0;
    for (int s = 1; s < 256; s++)
        if (t->gain[s] > t->gain[best]) best = s;
    return best;
}

static int best_down(const making *t) {
    int best = 0;
    for (int s = 1; s < 256; s++)
        if (t->loss[s] < t->loss[best]) best = s;
    return best;
}

/* Frequencies with sum 2^bits, none the whole range; `safe` symbols get a slot even when they do not occur. */
static void make_frequencies(uint16_t freq[256], const uint64_t n[256], const bool safe[256], unsigned bits) {
    making t = {.n = n, .freq = freq, .range = 1u << bits};
    uint32_t sum = 0;
    uint64_t total = 0;
    for (int s = 0; s < 256; s++) total += n[s];
    for (int s = 0; s < 256; s++) {
        double share = total ? (double)n[s] * t.range / (double)total : 0;
        uint32_t f = (uint32_t)(share + 0.5);
        if (f == 0 && (n[s] || safe[s])) f = 1;
        if (f > t.range - 1) f = t.range - 1;
        freq[s] = (uint16_t)f;
        sum += f;
        weigh(&t, s);
    }
    for (; sum < t.range; sum++) change(&t, best_up(&t), 1);
    for (; sum > t.range; sum--) change(&t, best_down(&t), -1);
    for (uint32_t moves = 0; moves < t.range; moves++) { /* single slots to where they save more */
        int up = best_up(&t), down = best_down(&t);
        if (up == down || t.gain[up] <= t.loss[down]) return;
        change(&t, up, 1);
        change(&t, down, -1);
    }
}

/* ------------------------------------------------------------------ merging contexts */

typedef struct cluster {
    uint64_t nibble[16];
    double bits;
    uint32_t near; /* a later cluster that is cheapest to merge with */
    double cost;
} cluster;

typedef struct sized {
    uint64_t total;
    uint32_t context;
} sized;

typedef struct merging {
    uint32_t where[CONTEXTS]; /* cluster of a context; UINT32_MAX: never seen */
    uint32_t count;
    cluster c[SEEDS];
    sized order[CONTEXTS];
    double price[SEEDS][16]; /* bits of a nibble in a cluster as it began */
} merging;

static double bits_of(const uint64_t n[16]) {
    uint64_t total = 0;
    double bits = 0;
    for (int i = 0; i < 16; i++) {
        total += n[i];
        if (n[i]) bits -= (double)n[i] * log2((double)n[i]);
    }
    return total ? bits + (double)total * log2((double)total) : 0;
}

static double merge_cost(const cluster *a, const cluster *b) {
    uint64_t sum[16];
    for (int i = 0; i < 16; i++) sum[i] = a->nibble[i] + b->nibble[i];
    return bits_of(sum) - a->bits - b->bits;
}

static void find_near(merging *m, uint32_t i) {
    m->c[i].cost = INFINITY;
    m->c[i].near = UINT32_MAX;
    for (uint32_t j = i + 1; j < m->count; j++) {
        double cost = merge_cost(&m->c[i], &m->c[j]);
        if (cost < m->c[i].cost) {
            m->c[i].cost = cost;
            m->c[i].near = j;
        }
    }
}

static void nibbles_of(uint64_t out[16], const uint64_t bytes[256]) {
    memset(out, 0, 16 * sizeof *out);
    for (int s = 0; s < 256; s++) {
        out[s & 15] += bytes[s];
        out[s >> 4] += bytes[s];
    }
}

static int by_size(const void *a, const void *b) {
    const sized *x = a, *y = b;
    if (x->total != y->total) return x->total > y->total ? -1 : 1;
    return x->context < y->context ? -1 : 1;
}

/* The cluster whose nibbles code these best. */
static uint32_t nearest(const merging *m, const uint64_t n[16]) {
    uint32_t best = 0;
    double least = INFINITY;
    for (uint32_t i = 0; i < m->count; i++) {
        double bits = 0;
        for (int s = 0; s < 16; s++) bits += (double)n[s] * m->price[i][s];
        if (bits < least) {
            least = bits;
            best = i;
        }
    }
    return best;
}

/* The largest contexts begin as clusters of their own, so that hostile statistics cannot make this slow; each of the
 * others joins the one that suits it. */
static void start_merging(merging *m, const kind_counts *k) {
    uint32_t seen = 0;
    uint64_t nibble[16];
    m->count = 0;
    for (uint32_t x = 0; x < CONTEXTS; x++) {
        uint64_t total = 0;
        for (int s = 0; s < 256; s++) total += k->bytes[x][s];
        m->where[x] = UINT32_MAX;
        if (total) m->order[seen++] = (sized){total, x};
    }
    qsort(m->order, seen, sizeof *m->order, by_size);
    for (uint32_t i = 0; i < seen && i < SEEDS; i++) {
        cluster *c = &m->c[m->count];
        nibbles_of(c->nibble, k->bytes[m->order[i].context]);
        for (int s = 0; s < 16; s++) /* half a count more, so that nothing is impossible */
            m->price[m->count][s] = -log2(((double)c->nibble[s] + 0.5) / (2 * (double)m->order[i].total + 8));
        m->where[m->order[i].context] = m->count++;
    }
    for (uint32_t i = m->count; i < seen; i++) {
        nibbles_of(nibble, k->bytes[m->order[i].context]);
        uint32_t at = m->where[m->order[i].context] = nearest(m, nibble);
        for (int s = 0; s < 16; s++) m->c[at].nibble[s] += nibble[s];
    }
    for (uint32_t i = 0; i < m->count; i++) m->c[i].bits = bits_of(m->c[i].nibble);
    for (uint32_t i = 0; i < m->count; i++) find_near(m, i);
}

/* Merges b into a (a < b) and moves the last cluster to b's place. */
static void merge(merging *m, uint32_t a, uint32_t b) {
    uint32_t last = m->count - 1;
    for (int i = 0; i < 16; i++) m->c[a].nibble[i] += m->c[b].nibble[i];
    m->c[a].bits = bits_of(m->c[a].nibble);
    m->c[b] = m->c[last];
    m->count--;
    for (uint32_t x = 0; x < CONTEXTS; x++) {
        if (m->where[x] == b)
            m->where[x] = a;
        else if (m->where[x] == last)
            m->where[x] = b;
    }
    for (uint32_t i = 0; i < m->count; i++) {
        uint32_t near = m->c[i].near;
        if (i == a || i == b || near == a || near == b || near == last) {
            find_near(m, i);
            continue;
        }
        /* a has changed, and b may now lie behind i where the last one did not count */
        const uint32_t changed[2] = {a, b};
        for (int k = 0; k < 2; k++) {
            uint32_t j = changed[k];
            if (j <= i || j >= m->count) continue;
            double cost = merge_cost(&m->c[i], &m->c[j]);
            if (cost < m->c[i].cost) {
                m->c[i].cost = cost;
                m->c[i].near = j;
            }
        }
    }
}

static void merge_contexts(merging *m, const kind_counts *k, uint32_t tables) {
    start_merging(m, k);
    while (m->count > tables) {
        uint32_t best = 0;
        for (uint32_t i = 1; i < m->count; i++)
            if (m->c[i].cost < m->c[best].cost) best = i;
        merge(m, best, m->c[best].near);
    }
}

/* ------------------------------------------------------------------ tables of a set */

static void byte_tables(ms_mzg2_set *set, const merging *m, const kind_counts *k) {
    bool safe[256];
    for (int s = 0; s < 256; s++) safe[s] = (s & 15) != 8 && s >> 4 != 8;
    for (uint32_t t = 0; t < set->tables; t++) {
        uint64_t n[256] = {0};
        for (uint32_t x = 0; x < CONTEXTS; x++)
            if (m->where[x] == t)
                for (int s = 0; s < 256; s++) n[s] += k->bytes[x][s];
        make_frequencies(set->nibble[t], n, safe, MS_MZG2_PAIR_BITS);
    }
}

/* Moves every context to its cheapest table; how many moved. */
static uint32_t reassign(merging *m, const ms_mzg2_set *set, const kind_counts *k) {
    static const double never = 64; /* bits for a symbol without a slot: more than a raw byte by far */
    double cost[MS_MZG2_MAX_TABLES][256];
    uint32_t moved = 0;
    for (uint32_t t = 0; t < set->tables; t++)
        for (int s = 0; s < 256; s++)
            cost[t][s] = set->nibble[t][s] ? MS_MZG2_PAIR_BITS - log2((double)set->nibble[t][s]) : never;
    for (uint32_t x = 0; x < CONTEXTS; x++) {
        if (m->where[x] == UINT32_MAX) continue;
        uint32_t best = m->where[x];
        double least = INFINITY;
        for (uint32_t t = 0; t < set->tables; t++) {
            double bits = 0;
            for (int s = 0; s < 256; s++) bits += (double)k->bytes[x][s] * cost[t][s];
            if (bits < least) {
                least = bits;
                best = t;
            }
        }
        moved += best != m->where[x];
        m->where[x] = best;
    }
    return moved;
}

/* Contexts that the sample never showed take the table of the nearest difference of the same class. */
static uint32_t table_of(const merging *m, uint32_t class, uint32_t d, uint32_t q) {
    for (uint32_t away = 0; away < MS_MZG2_DELTAS; away++) {
        uint32_t low = d >= away ? d - away : 0, high = d + away < MS_MZG2_DELTAS ? d + away : MS_MZG2_DELTAS - 1;
        uint32_t at = m->where[context_of(class, low, q)];
        if (at == UINT32_MAX) at = m->where[context_of(class, high, q)];
        if (at != UINT32_MAX) return at;
    }
    return 0;
}

static void make_map(ms_mzg2_set *set, const merging *m) {
    for (uint32_t c = 0; c < MS_MZG2_CLASSES; c++)
        for (uint32_t d = 0; d < MS_MZG2_DELTAS; d++) {
            set->nmap[c][d] = 0;
            for (uint32_t q = 0; q < MS_MZG2_CLASSES; q++) set->nmap[c][d] |= table_of(m, c, d, q) << 4 * q;
        }
}

/* The lowest base that leaves the fewest rows outside of its 32 values. */
static uint8_t choose_base(const kind_counts *k) {
    uint64_t best_rows = 0;
    uint32_t best = 0;
    for (uint32_t base = 0; base < MEANS; base++) {
        uint64_t rows = 0;
        for (uint32_t b = 0; b <= MZG2_MAX_BASE; b++)
            if (base + b + MZG2_BASE_BELOW < MEANS) rows += k->rows[base + b + MZG2_BASE_BELOW];
        if (rows > best_rows) {
            best_rows = rows;
            best = base;
        }
    }
    return (uint8_t)best;
}

static void scale_tables(ms_mzg2_set *set, const kind_counts *k) {
    bool safe[256] = {false};
    for (int s = 0; s < SAFE_SCALES; s++) safe[s] = true;
    for (uint32_t c = 0; c < MS_MZG2_CLASSES; c++) {
        uint64_t n[256] = {0};
        for (uint32_t mean = 0; mean < MEANS; mean++) {
            uint32_t base = mzg2_row_byte(8 * mean, set->e_base) >> 3;
            for (uint32_t s = 0; s < 256; s++) n[(s - set->e_base - base) & 0xff] += k->scales[c][mean][s];
        }
        make_frequencies(set->scale[c], n, safe, MS_MZG2_SCALE_BITS);
    }
}

static void fit_set(ms_mzg2_set *set, merging *m, const kind_counts *k, uint32_t tables) {
    *set = (ms_mzg2_set){.e_base = choose_base(k)};
    merge_contexts(m, k, tables);
    set->tables = m->count ? m->count : 1;
    byte_tables(set, m, k);
    for (int i = 0; i < ROUNDS && reassign(m, set, k); i++) byte_tables(set, m, k);
    make_map(set, m);
    scale_tables(set, k);
}

ms_status ms_mzg2_fit_sets(ms_mzg2_fit *f, ms_mzg2_set out[MS_MZG2_SETS], ms_error *err) {
    merging *m = malloc(sizeof *m);
    if (!m) return ms_fail_memory(err, "table fitting", sizeof *m);
    for (int i = 0; i < MS_MZG2_SETS; i++) fit_set(&out[i], m, &f->kind[i], f->options.tables);
    free(m);
    return MS_OK;
}

uint64_t ms_mzg2_fit_bytes(ms_expert_shape s) {
    uint64_t w = widest_of(s);
    return sizeof(ms_mzg2_fit) + MS_MZG2_SETS * sizeof(kind_counts) + sizeof(merging) + w * 5 +
           w / 2 * (1 + sizeof(mzg2_ranked));
}
