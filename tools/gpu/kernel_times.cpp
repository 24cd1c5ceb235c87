// kernel_times.cpp - what the kernels of a run on an NVIDIA GPU take, by CUPTI, without a wait in between.
//
//   g++ -O1 -shared -fPIC tools/gpu/kernel_times.cpp -I$CUDA/include -L$CUDA/lib64 -lcupti -o kernel_times.so
//   CUDA_INJECTION64_PATH=$PWD/kernel_times.so KERNEL_TIMES=times.txt moonshine bench shape --backend cuda
//
// KERNEL_TIMES_LAST: how many of the last kernels and copies count (default 6000: some tokens of the official shape).
// Prints how much of that time some kernel was at work, and by kernel and grid: the time from the end of the kernel
// before it to its own end, which sums up to the whole, and its own duration, which does not: kernels overlap.
// Owns: its records, for the life of the program.  Threads: CUPTI's own and the one that exits.
#include <cupti.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <stdio.h>
#include <stdlib.h>
#include <string>
#include <vector>

namespace {

struct record {
    uint64_t begin, end;
    std::string what;
};
struct total {
    unsigned long calls;
    double from_end, duration; // us
};
constexpr size_t BUFFER = (size_t)8 << 20;

std::vector<record> &records = *new std::vector<record>;
std::mutex lock;

void CUPTIAPI give_buffer(uint8_t **buffer, size_t *size, size_t *most) {
    *buffer = (uint8_t *)aligned_alloc(8, BUFFER);
    *size = *buffer ? BUFFER : 0;
    *most = 0;
}

std::string kernel_name(const CUpti_ActivityKernel10 *k) {
    char text[256];
    (void)snprintf(text, sizeof text, "%.60s %dx%d of %d, %u registers", k->name, k->gridX, k->gridY, k->blockX,
                   (unsigned)k->registersPerThread);
    return text;
}

void CUPTIAPI take_buffer(CUcontext, uint32_t, uint8_t *buffer, size_t, size_t valid) {
    std::lock_guard<std::mutex> held(lock);
    CUpti_Activity *a = nullptr;
    while (cuptiActivityGetNextRecord(buffer, valid, &a) == CUPTI_SUCCESS) {
        if (a->kind == CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) {
            const auto *k = (const CUpti_ActivityKernel10 *)a;
            records.push_back({k->start, k->end, kernel_name(k)});
        } else if (a->kind == CUPTI_ACTIVITY_KIND_MEMCPY) {
            const auto *c = (const CUpti_ActivityMemcpy6 *)a;
            records.push_back({c->start, c->end, "copy"});
        }
    }
    free(buffer);
}

void print(FILE *to, size_t first) {
    std::map<std::string, total> by;
    uint64_t end = records[first].begin, idle = 0;
    for (size_t i = first; i < records.size(); i++) {
        const record &r = records[i];
        total &t = by[r.what];
        if (r.begin > end) idle += r.begin - end;
        t.calls++;
        t.from_end += r.end > end ? (double)(r.end - end) * 1e-3 : 0.0;
        t.duration += (double)(r.end - r.begin) * 1e-3;
        end = std::max(end, r.end);
    }
    const double span = (double)(end - records[first].begin);
    fprintf(to, "%zu kernels and copies in %.1f us, one of them at work %.2f %% of it\n", records.size() - first,
            span * 1e-3, 100 * (span - (double)idle) / span);
    std::vector<std::pair<double, std::string>> order;
    for (const auto &each : by) order.push_back({-each.second.from_end, each.first});
    std::sort(order.begin(), order.end());
    fprintf(to, "   all us    calls  us from end to end  us each\n");
    for (const auto &each : order) {
        const total &t = by[each.second];
        fprintf(to, "%9.1f %8lu %19.2f %8.2f  %s\n", t.from_end, t.calls, t.from_end / (double)t.calls,
                t.duration / (double)t.calls, each.second.c_str());
    }
}

void finish() {
    (void)cuptiActivityFlushAll(1);
    std::lock_guard<std::mutex> held(lock);
    const char *path = getenv("KERNEL_TIMES"), *last = getenv("KERNEL_TIMES_LAST");
    const size_t count = last ? (size_t)atol(last) : 6000;
    FILE *to = path ? fopen(path, "w") : stderr;
    if (!to || records.empty()) return;
    std::sort(records.begin(), records.end(), [](const record &a, const record &b) { return a.begin < b.begin; });
    print(to, records.size() > count ? records.size() - count : 0);
    if (to != stderr) (void)fclose(to);
}

} // namespace

extern "C" int InitializeInjection(void) {
    bool ok = cuptiActivityRegisterCallbacks(give_buffer, take_buffer) == CUPTI_SUCCESS &&
              cuptiActivityEnable(CUPTI_ACTIVITY_KIND_CONCURRENT_KERNEL) == CUPTI_SUCCESS &&
              cuptiActivityEnable(CUPTI_ACTIVITY_KIND_MEMCPY) == CUPTI_SUCCESS;
    if (!ok) fprintf(stderr, "kernel_times: CUPTI does not start\n");
    return atexit(finish) == 0;
}
