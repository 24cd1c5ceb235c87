// gpu_install.cpp - raw expert bytes of the staging memory into slots.
//
// Threads and errors: as gpu_internal.h says.
#include "backend/gpu/gpu_internal.h"

#include "backend/gpu/k_install.h"

namespace {

// Waits: the staging memory is the caller's again, and a bad scale is this call's error.
ms_status install(ms_backend *be, void *slot, const uint8_t *staging, ms_expert_shape s, ms_error *err) {
    static const char *const names[] = {"w1", "w3", "w2"}; // by ms_expert_matrix
    gpu_backend *g = gpu_of(be);
    if (!ms_expert_shape_valid(s) || !experts_fit(s.hidden, s.inner))
        return ms_fail(err, MS_ERR_INTERNAL, "expert of %u x %u: expected multiples of 32", s.hidden, s.inner);
    uint32_t bad[3] = {NO_ROW, NO_ROW, NO_ROW}, row, group;
    ms_expert_matrix m;
    (void)gpu_ok(g, k_experts_retile(g->stream, slot, staging, s.hidden, s.inner, g->flags + FLAG_EXPERT), "install");
    be->download(be, bad, g->flags + FLAG_EXPERT, sizeof bad);
    if (g->failure.code != MS_OK) return be->sync(be, err);
    if (!experts_bad_scale(bad, s.hidden, s.inner, &m, &row, &group)) return MS_OK;
    return ms_fail(err, MS_ERR_FORMAT, "expert %s scale of row %u group %u: expected a byte 0..254, found 255 (NaN)",
                   names[m], row, group);
}

} // namespace

void set_install_members(ms_backend *be) { be->install = install; }
