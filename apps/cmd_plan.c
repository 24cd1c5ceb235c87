/* cmd_plan.c: `moonshine plan` and `moonshine verify`: what headers alone tell. */
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "base/clock.h"
#include "base/text.h"
#include "command.h"
#include "session/engine.h"

typedef struct plan_flags {
    bool json;
    uint32_t snapshots;
} plan_flags;

static const ms_option plan_options[] = {
    {.name = "json", .type = MS_OPTION_FLAG, .offset = offsetof(plan_flags, json), .help = "Print one JSON object."},
    {.name = "snapshots", .type = MS_OPTION_U32, .offset = offsetof(plan_flags, snapshots), .arg = "N", .max = 64,
     .help = "Retained state copies to count (default: 0)."},
};

static double gib(uint64_t b) { return (double)b / (double)(1ull << 30); }

static void print_row(const char *group, const char *name, uint64_t bytes) {
    printf("  %-10s %-26s %18" PRIu64 "  %11.3f GiB\n", group, name, bytes, gib(bytes));
}

/* The lines of one place, with the sums of its groups.  given: the memory is what --memory said, not what there is. */
static void print_ledger(const ms_plan *p, bool device, bool given) {
    const char *group = "";
    uint64_t sum = 0;
    for (size_t i = 0; i < p->item_count; i++) {
        const ms_plan_item *it = &p->items[i];
        if (it->device != device) continue;
        if (strcmp(group, it->group) != 0 && *group) {
            print_row(group, "(sum)", sum);
            sum = 0;
        }
        group = it->group;
        sum += it->bytes;
        print_row(it->group, it->name, it->bytes);
    }
    if (*group) print_row(group, "(sum)", sum);
    print_row("total", device ? "of the device" : "", device ? p->device_total_bytes : p->total_bytes);
    print_row("reserve", "left free", device ? p->device_reserve_bytes : p->reserve_bytes);
    print_row("available", given ? "as --memory says" : "memory now", device ? p->device_available_bytes : p->available_bytes);
}

static void print_plan(const ms_plan *p, const ms_engine_options *o) {
    printf("%s: %s precision, %s weights, context %" PRIu64 ", %u of %u experts a layer in %u layers, ranges of %u\n",
           p->lane, o->precision == MS_PRECISION_FAST ? "fast" : "reference",
           o->static_format == MS_STATIC_Q8 ? "q8" : "bf16", p->context, p->experts, p->experts_all, p->moe_layers,
           p->range_rows);
    if (p->has_device) {
        printf("device memory:\n");
        print_ledger(p, true, false);
        printf("host memory:\n");
    }
    print_ledger(p, false, o->memory_bytes != 0);
    printf("  one expert %" PRIu64 " bytes; state grows by %" PRIu64 " bytes a token\n", p->expert_bytes,
           p->state_bytes_per_token);
    if (p->lent_slots)
        printf("  passes of more than %u tokens borrow the last %u of %u slots of every layer, %" PRIu64 " bytes\n",
               p->usual_rows, p->lent_slots, p->experts, p->lent_bytes);
    printf("  %s\n", p->fits ? "fits" : "DOES NOT FIT");
}

static void print_plan_json(const ms_plan *p) {
    printf("{\"lane\":\"%s\",\"context\":%" PRIu64 ",\"experts\":%u,\"experts_all\":%u,\"moe_layers\":%u,\"range\":%u,\"usual_range\":%u,"
           "\"lent_slots\":%u,\"lent_bytes\":%" PRIu64 ",\"items\":[",
           p->lane, p->context, p->experts, p->experts_all, p->moe_layers, p->range_rows, p->usual_rows, p->lent_slots,
           p->lent_bytes);
    for (size_t i = 0; i < p->item_count; i++)
        printf("%s{\"group\":\"%s\",\"name\":\"%s\",\"bytes\":%" PRIu64 ",\"place\":\"%s\"}", i ? "," : "",
               p->items[i].group, p->items[i].name, p->items[i].bytes, p->items[i].device ? "device" : "host");
    printf("],\"total_bytes\":%" PRIu64 ",\"reserve_bytes\":%" PRIu64 ",\"available_bytes\":%" PRIu64
           ",\"device_total_bytes\":%" PRIu64 ",\"device_reserve_bytes\":%" PRIu64 ",\"device_available_bytes\":%" PRIu64
           ",\"expert_bytes\":%" PRIu64 ",\"state_bytes_per_token\":%" PRIu64 ",\"fits\":%s}\n",
           p->total_bytes, p->reserve_bytes, p->available_bytes, p->device_total_bytes, p->device_reserve_bytes,
           p->device_available_bytes, p->expert_bytes, p->state_bytes_per_token, p->fits ? "true" : "false");
}

int ms_command_plan(int argc, char **argv) {
    plan_flags flags = {0};
    ms_model_flags model_flags = ms_model_flags_default();
    const ms_option_group groups[] = {
        {"Options", plan_options, sizeof plan_options / sizeof plan_options[0], &flags},
        {"Model", ms_model_option_table, ms_model_option_count, &model_flags},
    };
    const ms_option_set set = {.program = "moonshine plan",
                               .synopsis = "[MODEL] [options]",
                               .about = "Prints every byte that running MODEL would take, from its headers alone.",
                               .epilogue = "Exit code 0: it fits; 3: it does not.",
                               .groups = groups,
                               .group_count = 2,
                               .max_args = 1};
    ms_option_result r;
    int code = ms_command_parse(&set, argc, argv, &r);
    if (code >= 0) return code;
    const char *model = ms_command_model(set.program, &r, 0);
    if (!model) return 2;
    ms_engine_options o = ms_model_flags_engine(&model_flags, model);
    o.snapshots = flags.snapshots;
    o.log = ms_command_log;
    o.log_arg = (void *)(uintptr_t)set.program;
    ms_plan *plan = NULL;
    ms_error err;
    if (ms_plan_create(&plan, &o, &err) != MS_OK) return ms_command_fail(set.program, &err);
    if (flags.json) print_plan_json(plan);
    else print_plan(plan, &o);
    bool fits = plan->fits;
    ms_plan_destroy(plan);
    code = ms_command_finish(set.program);
    return code ? code : fits ? 0 : 3;
}

/* What the lane looks for in weights. */
static ms_status check_weights(const ms_model *m, ms_error *err) {
    if (!m->lane->weights_check) {
        printf("  weights     lane %s has nothing to look for\n", m->lane->name);
        return MS_OK;
    }
    ms_text report = {0};
    ms_status st = m->lane->weights_check(m->checkpoint, m->config, &report, err);
    if (st == MS_OK && report.failed) st = ms_fail_memory(err, "a report", report.len);
    if (st == MS_OK) printf("  %s", report.data ? report.data : "");
    ms_text_free(&report);
    return st;
}

static ms_status verify(const char *dir, bool weights, ms_error *err) {
    uint64_t start = ms_clock_ns();
    ms_model m;
    MS_TRY(ms_model_open(&m, dir, err));
    ms_checkpoint_totals t;
    ms_checkpoint_get_totals(m.checkpoint, &t);
    printf("%s: %s layout is complete\n", dir, m.lane->name);
    printf("  shards      %" PRIu64 " in the index, %zu opened, %" PRIu64 " never opened\n", t.indexed_shards,
           ms_checkpoint_shard_count(m.checkpoint), t.skipped_shards);
    printf("  tensors     %" PRIu64 " in the index, %zu used\n", t.indexed_tensors,
           ms_checkpoint_tensor_count(m.checkpoint));
    printf("  payload     %" PRIu64 " bytes used, %" PRIu64 " bytes of headers read\n", t.payload_bytes, t.header_bytes);
    printf("  experts     %u layers of %u, %" PRIu64 " bytes each, contiguous\n", m.experts.layer_count,
           m.experts.expert_count, m.experts.expert_bytes);
    printf("  identity    %016" PRIx64 "\n", ms_checkpoint_layout_digest(m.checkpoint));
    ms_status st = weights ? check_weights(&m, err) : MS_OK;
    if (st == MS_OK) printf("  seconds     %.2f\n", (double)(ms_clock_ns() - start) / 1e9);
    ms_model_close(&m);
    return st;
}

typedef struct verify_flags {
    bool weights;
} verify_flags;

static const ms_option verify_options[] = {
    {.name = "weights", .type = MS_OPTION_FLAG, .offset = offsetof(verify_flags, weights),
     .help = "Also look at weights for what headers cannot tell (mimo26: the grid of block scales)."},
};

int ms_command_verify(int argc, char **argv) {
    verify_flags flags = {0};
    const ms_option_group groups[] = {{"Options", verify_options, sizeof verify_options / sizeof verify_options[0], &flags}};
    const ms_option_set set = {.program = "moonshine verify",
                               .synopsis = "[MODEL] [options]",
                               .about = "Checks config.json, the index, every header that is used, and that the parts of every "
                                        "expert lie side by side. Reads no weights unless asked to.",
                               .groups = groups,
                               .group_count = 1,
                               .max_args = 1};
    ms_option_result r;
    int code = ms_command_parse(&set, argc, argv, &r);
    if (code >= 0) return code;
    const char *model = ms_command_model(set.program, &r, 0);
    if (!model) return 2;
    ms_error err;
    if (verify(model, flags.weights, &err) != MS_OK) return ms_command_fail(set.program, &err);
    return ms_command_finish(set.program);
}
