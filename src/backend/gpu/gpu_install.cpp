// gpu_install.cpp - raw expert bytes of the staging memory into slots, beside the operations.
//
// Installs run on the side stream: a copy to the device (where the host's memory is not its own), then the re-tiling.
// Order: what uses slots on the compute stream has a number, and so have installs; slot_use and slot_install remember
//   the last of each slot.  An install waits for the last use of its slot, experts_run for the last install of its
//   slots. Slots that share a mark wait for a little more.  Waits are the device's; the host waits in install_end
//   alone.
// Threads and errors: as gpu_internal.h says.
#include "backend/gpu/gpu_internal.h"

#include "backend/gpu/k_install.h"

#include <string.h>

namespace {

uint32_t mark_of(const void *slot) {
    return (uint32_t)(((uint64_t)(uintptr_t)slot >> 5) * 0x9e3779b97f4a7c15u >> 40) % SLOT_MARKS;
}

// An event of the compute stream that follows use `number`.
gpuEvent_t event_after(gpu_backend *g, uint64_t number) {
    gpu_order *o = &g->order;
    unsigned best = RUNS;
    for (unsigned i = 0; i < RUNS; i++)
        if (o->marked[i] >= number && (best == RUNS || o->marked[i] < o->marked[best])) best = i;
    if (best < RUNS) return g->run[best];
    best = o->next_run;
    o->next_run = (best + 1) % RUNS;
    o->marked[best] = o->uses;
    (void)gpu_ok(g, gpuEventRecord(g->run[best], g->stream), "install");
    return g->run[best];
}

// The compute stream goes on when install `number` is done.
void wait_install(gpu_backend *g, uint64_t number) {
    if (number <= g->order.installs_done) return;
    (void)gpu_ok(g, gpuStreamWaitEvent(g->stream, g->install[number % MS_INSTALLS].done), "install");
}

} // namespace

void slots_use(gpu_backend *g, const ms_expert_batch *batches, uint32_t count) {
    uint64_t last = 0;
    for (uint32_t i = 0; i < count; i++) {
        uint64_t n = g->order.slot_install[mark_of(batches[i].slot)];
        if (n > last) last = n;
    }
    wait_install(g, last);
}

// Only a run of slots that were installed a moment ago gets an event of its own: their slots are the ones that are
// installed again soon, and events cost the decode loop.
void slots_used(gpu_backend *g, const ms_expert_batch *batches, uint32_t count) {
    gpu_order *o = &g->order;
    bool fresh = false;
    o->uses++;
    for (uint32_t i = 0; i < count; i++) {
        uint32_t m = mark_of(batches[i].slot);
        o->slot_use[m] = o->uses;
        fresh |= o->slot_install[m] > g->fetch_installs;
    }
    if (fresh) (void)event_after(g, o->uses);
}

void memory_use(gpu_backend *g) {
    settle(g);
    g->held = {};
    wait_install(g, g->order.installs);
    g->order.all_slots = ++g->order.uses;
}

bool wait_all(gpu_backend *g, const char *op) {
    gpu_order *o = &g->order;
    settle(g);
    bool ok = gpu_ok(g, gpuStreamSynchronize(g->stream), op);
    if (o->installs > o->installs_done) ok = gpu_ok(g, gpuStreamSynchronize(g->side), op) && ok;
    o->installs_done = o->installs;
    o->uses_done = o->uses;
    return ok;
}

namespace {

ms_status install_begin(ms_backend *be, void *slot, const uint8_t *staging, ms_expert_shape s, uint32_t *ticket,
                        ms_error *err) {
    gpu_backend *g = gpu_of(be);
    gpu_order *o = &g->order;
    if (!ms_expert_shape_valid(s) || !experts_fit(s.hidden, s.inner))
        return ms_fail(err, MS_ERR_INTERNAL, "expert of %u x %u: expected multiples of 32", s.hidden, s.inner);
    uint64_t number = o->installs + 1;
    uint32_t i = (uint32_t)(number % MS_INSTALLS), mark = mark_of(slot);
    gpu_install *in = &g->install[i];
    if (in->open) return ms_fail(err, MS_ERR_INTERNAL, "more than %d installs are open", (int)MS_INSTALLS);
    uint64_t use = o->slot_use[mark] > o->all_slots ? o->slot_use[mark] : o->all_slots;
    if (use > o->uses_done) (void)gpu_ok(g, gpuStreamWaitEvent(g->side, event_after(g, use)), "install");
    size_t bytes = ms_expert_bytes(s);
    const uint8_t *source = staging;
    if (g->scratch.source && bytes <= ms_expert_bytes(g->scratch.need.expert)) {
        source = g->scratch.source;
        (void)gpu_ok(g, gpuMemcpyAsync(g->scratch.source, staging, bytes, gpuMemcpyHostToDevice, g->side), "install");
    }
    uint32_t *bad = g->flags + FLAG_EXPERT + 3 * i;
    (void)gpu_ok(g, k_experts_retile(g->side, slot, source, s.hidden, s.inner, bad), "install");
    (void)gpu_ok(g, gpuMemcpyAsync(g->install_bad + 3 * i, bad, 3 * sizeof *bad, gpuMemcpyDeviceToHost, g->side),
                 "install");
    (void)gpu_ok(g, gpuEventRecord(in->done, g->side), "install");
    o->installs = o->slot_install[mark] = in->number = number;
    if (g->failure.code != MS_OK) return be->sync(be, err);
    in->shape = s;
    in->open = true;
    *ticket = i;
    return MS_OK;
}

ms_status install_end(ms_backend *be, uint32_t ticket, bool wait, bool *done, ms_error *err) {
    static const char *const names[] = {"w1", "w3", "w2"}; // by ms_expert_matrix
    gpu_backend *g = gpu_of(be);
    gpu_install *in = &g->install[ticket % MS_INSTALLS];
    *done = true;
    if (!in->open) return ms_fail(err, MS_ERR_INTERNAL, "install %u is not open", ticket);
    gpuError_t e = wait ? gpuEventSynchronize(in->done) : gpuEventQuery(in->done);
    if (e == gpuErrorNotReady) {
        (void)gpuGetLastError(); // it was no error
        *done = false;
        return MS_OK;
    }
    in->open = false;
    if (!gpu_ok(g, e, "install")) return be->sync(be, err);
    if (in->number > g->order.installs_done) g->order.installs_done = in->number;
    uint32_t bad[3], row, group;
    ms_expert_matrix m;
    memcpy(bad, g->install_bad + 3 * (ticket % MS_INSTALLS), sizeof bad);
    if (!experts_bad_scale(bad, in->shape.hidden, in->shape.inner, &m, &row, &group)) return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT, "expert %s scale of row %u group %u: expected a byte 0..254, found 255 (NaN)",
                   names[m], row, group);
}

ms_status install(ms_backend *be, void *slot, const uint8_t *staging, ms_expert_shape s, ms_error *err) {
    uint32_t ticket;
    bool done;
    MS_TRY(install_begin(be, slot, staging, s, &ticket, err));
    return install_end(be, ticket, true, &done, err);
}

} // namespace

void set_install_members(ms_backend *be) {
    be->install = install;
    be->install_begin = install_begin;
    be->install_end = install_end;
}
