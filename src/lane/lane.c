#include "lane/lane.h"

#include <stdlib.h>

static const ms_lane *const lanes[] = {&ms_lane_k3, &ms_lane_mimo26};

const ms_lane *ms_lane_find(const ms_json *config_root) {
    for (size_t i = 0; i < sizeof lanes / sizeof lanes[0]; i++)
        if (lanes[i]->matches(config_root)) return lanes[i];
    return NULL;
}

const char *ms_lane_model_types(void) { return "kimi_k3 or mimo_v2"; }

ms_status ms_static_list_add(ms_static_list *l, const ms_static_item *item, ms_error *err) {
    if (l->count == l->cap) {
        size_t cap = l->cap ? 2 * l->cap : 64;
        ms_static_item *items = realloc(l->items, cap * sizeof *items);
        if (!items) return ms_fail_memory(err, "weight list", cap * sizeof *items);
        l->items = items;
        l->cap = cap;
    }
    l->items[l->count++] = *item;
    return MS_OK;
}

void ms_static_list_free(ms_static_list *l) {
    free(l->items);
    *l = (ms_static_list){0};
}
