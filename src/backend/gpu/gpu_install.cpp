// gpu_install.cpp - the side stream: raw expert bytes of the staging memory into slots, beside the operations.
//
// An install is a copy to the device (where the host's memory is not its own), then the re-tiling.
// Order: what uses slots on the compute stream has a number, and so have installs; slot_use and slot_install remember
//   the last of each slot.  An install waits for the last use of its slot, experts_run for the last install of its
//   slots. Slots that share a mark wait for a little more.  Waits are the device's; the host waits in finish
//   alone.
// Threads and errors: as gpu_internal.h says.
#include "backend/gpu/gpu_internal.h"

#include "backend/gpu/k_install.h"
#include "backend/gpu/k_mzg2.h"

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
    if (number <= g->order.works_done) return;
    (void)gpu_ok(g, gpuStreamWaitEvent(g->stream, g->work[number % MS_TICKETS].done), "install");
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
        fresh |= o->slot_install[m] > g->fetch_works;
    }
    if (fresh) (void)event_after(g, o->uses);
}

void memory_use(gpu_backend *g) {
    settle(g);
    g->held = {};
    g->wrote.known = false;
    wait_install(g, g->order.works);
    g->order.all_slots = ++g->order.uses;
}

uint32_t *side_flags(gpu_backend *g, uint32_t ticket) { return g->flags + FLAG_SIDE + 3 * ticket; }

gpu_side_work *side_begin(gpu_backend *g, uint64_t use, uint32_t *ticket, ms_error *err) {
    gpu_order *o = &g->order;
    *ticket = (uint32_t)((o->works + 1) % MS_TICKETS);
    gpu_side_work *work = &g->work[*ticket];
    if (work->open) {
        (void)ms_fail(err, MS_ERR_INTERNAL, "more than %d tickets are open", (int)MS_TICKETS);
        return nullptr;
    }
    if (o->all_slots > use) use = o->all_slots;
    if (use > o->uses_done) (void)gpu_ok(g, gpuStreamWaitEvent(g->side, event_after(g, use)), "wait");
    work->number = ++o->works;
    work->weight = nullptr;
    return work;
}

ms_status side_end(gpu_backend *g, gpu_side_work *work, uint32_t *bad, ms_error *err) {
    size_t at = (size_t)(bad - (g->flags + FLAG_SIDE));
    (void)gpu_ok(g, gpuMemcpyAsync(g->side_bad + at, bad, 3 * sizeof *bad, gpuMemcpyDeviceToHost, g->side), "download");
    (void)gpu_ok(g, gpuEventRecord(work->done, g->side), "record");
    if (g->failure.code != MS_OK) return g->base.sync(&g->base, err);
    work->open = true;
    return MS_OK;
}

bool wait_all(gpu_backend *g, const char *op) {
    gpu_order *o = &g->order;
    settle(g);
    bool ok = gpu_ok(g, gpuStreamSynchronize(g->stream), op);
    if (o->works > o->works_done) ok = gpu_ok(g, gpuStreamSynchronize(g->side), op) && ok;
    o->works_done = o->works;
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
    uint32_t mark = mark_of(slot);
    gpu_side_work *work = side_begin(g, o->slot_use[mark], ticket, err);
    if (!work) return MS_ERR_INTERNAL;
    size_t bytes = ms_expert_bytes(s);
    const uint8_t *source = staging;
    if (g->scratch.source && bytes <= ms_expert_bytes(g->scratch.need.expert)) {
        source = g->scratch.source;
        (void)gpu_ok(g, gpuMemcpyAsync(g->scratch.source, staging, bytes, gpuMemcpyHostToDevice, g->side), "install");
    }
    uint32_t *bad = side_flags(g, *ticket);
    (void)gpu_ok(g, k_experts_retile(g->side, slot, source, s, bad), "install");
    work->shape = s;
    o->slot_install[mark] = work->number;
    return side_end(g, work, bad, err);
}

ms_status report_scale(const gpu_side_work *work, const uint32_t bad[3], ms_error *err) {
    static const char *const names[] = {"w1", "w3", "w2"}; // by ms_expert_matrix
    uint32_t row, group;
    ms_expert_matrix m;
    if (!experts_bad_scale(bad, work->shape.hidden, work->shape.inner, &m, &row, &group)) return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT, "expert %s scale of row %u group %u: expected a byte 0..254, found 255 (NaN)",
                   names[m], row, group);
}

ms_status finish(ms_backend *be, uint32_t ticket, bool wait, bool *done, ms_error *err) {
    gpu_backend *g = gpu_of(be);
    gpu_side_work *work = &g->work[ticket % MS_TICKETS];
    *done = true;
    if (!work->open) return ms_fail(err, MS_ERR_INTERNAL, "ticket %u is not open", ticket);
    gpuError_t e = wait ? gpuEventSynchronize(work->done) : gpuEventQuery(work->done);
    if (e == gpuErrorNotReady) {
        (void)gpuGetLastError(); // it was no error
        *done = false;
        return MS_OK;
    }
    work->open = false;
    if (!gpu_ok(g, e, "finish")) return be->sync(be, err);
    if (work->number > g->order.works_done) g->order.works_done = work->number;
    uint32_t bad[3];
    memcpy(bad, g->side_bad + 3 * (ticket % MS_TICKETS), sizeof bad);
    if (!work->weight) return report_scale(work, bad, err);
    return bad[0] == NO_ROW ? MS_OK : report_bad(work->weight, work->host, work->source, work->first, bad[0], err);
}

ms_status install(ms_backend *be, void *slot, const uint8_t *staging, ms_expert_shape s, ms_error *err) {
    uint32_t ticket;
    bool done;
    MS_TRY(install_begin(be, slot, staging, s, &ticket, err));
    return finish(be, ticket, true, &done, err);
}

// On the compute stream, in call order with everything else.
void decode_blocks(ms_backend *be, void *const *slots, const uint8_t *const *dev_blocks, uint32_t count,
                   const ms_mzg2_tables *dev_tables, ms_expert_shape s, uint32_t *dev_bad) {
    gpu_backend *g = gpu_of(be);
    if (!need(g, count <= MZG2_BATCH && ms_expert_shape_valid(s) && experts_fit(s.hidden, s.inner), "decode_blocks",
              "experts"))
        return;
    if (count == 0) return;
    mzg2_batch b = {};
    for (uint32_t i = 0; i < count; i++) {
        b.slot[i] = (uint8_t *)slots[i];
        b.block[i] = dev_blocks[i];
    }
    b.tables = dev_tables;
    b.hidden = s.hidden;
    b.inner = s.inner;
    b.bad = dev_bad;
    memory_use(g);
    (void)gpu_ok(g, k_mzg2_launch(g->stream, b, count), "decode_blocks");
}

} // namespace

void set_install_members(ms_backend *be) {
    be->install = install;
    be->decode_blocks = decode_blocks;
    be->install_begin = install_begin;
    be->finish = finish;
}
