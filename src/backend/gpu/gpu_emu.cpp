// gpu_emu.cpp - compile this file WITHOUT -fsanitize=thread, also when the kernels have it: it tells
// the race detector by hand what orders what (launch, gpu_sync, gpu_fence, gates; a shuffle orders nothing).
#include "backend/gpu/gpu_emu.h"
#include <atomic>
#include <deque>
#include <map>
#include <mutex>
#include <thread>
#include <vector>
#include <stdio.h>
#include <unistd.h>
#include <sys/mman.h>
#if !defined(__x86_64__) && !defined(GPU_EMU_UCONTEXT)
#define GPU_EMU_UCONTEXT 1
#endif
#ifdef GPU_EMU_UCONTEXT
#include <ucontext.h>
#endif

extern "C" { // present when the program is linked with -fsanitize=thread or =address, else null
__attribute__((weak)) void *__tsan_get_current_fiber(void);
__attribute__((weak)) void *__tsan_create_fiber(unsigned);
__attribute__((weak)) void __tsan_switch_to_fiber(void *, unsigned);
__attribute__((weak)) void __tsan_acquire(void *);
__attribute__((weak)) void __tsan_release(void *);
__attribute__((weak)) void __sanitizer_start_switch_fiber(void **, const void *, size_t);
__attribute__((weak)) void __sanitizer_finish_switch_fiber(void *, const void **, size_t *);
}
#define TSAN (__tsan_create_fiber != nullptr)
#define ASAN (__sanitizer_start_switch_fiber != nullptr)
static void acquire(void *p) {
    if (TSAN) __tsan_acquire(p);
}
static void release(void *p) {
    if (TSAN) __tsan_release(p);
}

enum { MAXT = 1024, WAVE = 32, STACK = 256 << 10, SHARED = 48 << 10, SHARED_WIDE = 227 << 10 };

struct Fiber {
    void *sp, *stack, *tsan, *fake;
    size_t size;
    unsigned tid;
    int tag;                  // what it waits at
    unsigned parity;          // which exchange slot its next wave operation uses
    const gpu_emu_gate *gate; // that it waits for
#ifdef GPU_EMU_UCONTEXT
    ucontext_t uc;
#endif
};
struct Block {
    gpu_emu_ctx c;
    Fiber f[MAXT], host, *cur;
    unsigned made, ready[MAXT], head, count; // ring of runnable threads
    unsigned done, at_sync, at_wave[MAXT / WAVE], order[MAXT], lanes[WAVE];
    uint32_t slot[2][MAXT], ballot[2][MAXT / WAVE];
    gpu_emu_words words[2][MAXT];
    bool fifo;                                     // released lanes go behind the other waves
    char *shared, tok_start, tok_end, tok_sync[2]; // addresses that stand for orderings (race detector)
    unsigned phase;
    const std::function<void()> *fn;
};
__thread gpu_emu_ctx *gpu_emu_c;
static __thread Block *B;
static char fence_token;

[[noreturn]] static void die(const char *why) {
    Block *b = B;
    unsigned gates = 0;
    for (unsigned i = 0; i < b->c.nt; i++) gates += b->f[i].gate != nullptr;
    fprintf(stderr, "gpu_emu: %s: block (%u,%u), thread %u; %u threads done, %u at gpu_sync, %u at gates\n", why,
            b->c.bx, b->c.by, b->cur->tid, b->done, b->at_sync, gates);
    for (unsigned w = 0; w < (b->c.nt + WAVE - 1) / WAVE; w++)
        if (b->at_wave[w]) fprintf(stderr, "gpu_emu:   wave %u has %u lanes at a wave operation\n", w, b->at_wave[w]);
    __builtin_trap();
}

// ---- fiber switch
#ifndef GPU_EMU_UCONTEXT
extern "C" void gpu_emu_swap(void **save, void *load);
asm(".text\n.globl gpu_emu_swap\n.hidden gpu_emu_swap\n.type gpu_emu_swap,@function\ngpu_emu_swap:\n"
    "pushq %rbp\npushq %rbx\npushq %r12\npushq %r13\npushq %r14\npushq %r15\n"
    "movq %rsp,(%rdi)\nmovq %rsi,%rsp\n"
    "popq %r15\npopq %r14\npopq %r13\npopq %r12\npopq %rbx\npopq %rbp\nret\n.size gpu_emu_swap,.-gpu_emu_swap\n");
#endif
static void swap_to(Fiber *to) {
    Fiber *from = B->cur;
    B->cur = to;
    B->c.tid = to->tid;
    if (TSAN) __tsan_switch_to_fiber(to->tsan, 1 /* no synchronization */);
    if (ASAN) __sanitizer_start_switch_fiber(&from->fake, to->stack, to->size);
#ifdef GPU_EMU_UCONTEXT
    swapcontext(&from->uc, &to->uc);
#else
    gpu_emu_swap(&from->sp, to->sp);
#endif
    if (ASAN) __sanitizer_finish_switch_fiber(from->fake, nullptr, nullptr);
}
static void push(unsigned t) { B->ready[(B->head + B->count++) % MAXT] = t; }
static void push_front(unsigned t) {
    B->ready[B->head = (B->head + MAXT - 1) % MAXT] = t;
    B->count++;
}
static void run_next(void) { // hand the processor to the next runnable thread
    if (!B->count) {
        if (B->done < B->c.nt)
            die("some threads wait for others that never come (divergent gpu_sync, wave operation or gate)");
        swap_to(&B->host);
        return;
    }
    unsigned t = B->ready[B->head];
    B->head = (B->head + 1) % MAXT;
    B->count--;
    swap_to(&B->f[t]);
}
static void fiber_main(void) {
    if (ASAN) {
        const void *s;
        size_t n;
        __sanitizer_finish_switch_fiber(nullptr, &s, &n);
        if (!B->host.stack) {
            B->host.stack = (void *)s;
            B->host.size = n;
        }
    }
    for (;;) {
        acquire(&B->tok_start);
        (*B->fn)();
        release(&B->tok_end);
        B->done++;
        run_next();
    }
}
static void make_fibers(Block *b, unsigned n) {
    for (; b->made < n; b->made++) {
        Fiber *f = &b->f[b->made];
        f->tid = b->made;
        char *m = (char *)mmap(0, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (m == MAP_FAILED || mprotect(m, 4096, PROT_NONE)) {
            perror("gpu_emu: stack");
            __builtin_trap();
        }
        f->stack = m + 4096;
        f->size = STACK - 4096;
        f->tsan = TSAN ? __tsan_create_fiber(0) : nullptr;
#ifdef GPU_EMU_UCONTEXT
        getcontext(&f->uc);
        f->uc.uc_stack.ss_sp = f->stack;
        f->uc.uc_stack.ss_size = f->size;
        f->uc.uc_link = nullptr;
        makecontext(&f->uc, fiber_main, 0);
#else
        // entry finds the stack as after a call; tops are staggered so as not to share cache sets
        void **s = (void **)(m + STACK - f->tid % 61 * 320) - 2;
        *s = (void *)fiber_main;
        f->sp = s - 6;
#endif
    }
}

// ---- what kernels call
void gpu_emu_sync(void) {
    char *tok = &B->tok_sync[B->phase];
    release(tok);
    if (++B->at_sync == B->c.nt) {
        B->at_sync = 0;
        B->phase ^= 1;
        unsigned self = B->cur->tid;
        for (unsigned i = 0; i < B->c.nt; i++)
            if (B->order[i] != self) push(B->order[i]);
    } else
        run_next();
    acquire(tok);
}
uint32_t gpu_emu_wave(int op, int arg, uint32_t v) {
    Fiber *me = B->cur;
    unsigned t = me->tid, w = t / WAVE, base = w * WAVE, p = me->parity ^= 1;
    B->slot[p][t] = v;
    me->tag = op == GPU_EMU_XOR || op == GPU_EMU_SHARE ? op << 8 | arg : op << 8;
    if (++B->at_wave[w] == WAVE) {
        uint32_t m = 0;
        for (unsigned i = 0; i < WAVE; i++) {
            if (B->f[base + i].tag != me->tag) die("lanes of one wave are at different wave operations");
            m |= (uint32_t)(B->slot[p][base + i] & 1) << i;
        }
        B->ballot[p][w] = m;
        B->at_wave[w] = 0;
        for (unsigned i = 0; i < WAVE; i++) {
            unsigned l = base + B->lanes[B->fifo ? i : WAVE - 1 - i];
            if (l != t) B->fifo ? push(l) : push_front(l);
        }
    } else
        run_next();
    switch (op) {
    case GPU_EMU_XOR:
        return B->slot[p][base + ((t ^ (unsigned)arg) & (WAVE - 1))];
    case GPU_EMU_IDX:
        return B->slot[p][base + ((unsigned)arg & (WAVE - 1))];
    default:
        return B->ballot[p][w];
    }
}
const gpu_emu_words *gpu_emu_share(const uint32_t *mine, unsigned count) {
    unsigned p = B->cur->parity ^ 1, t = B->cur->tid; // the slot that gpu_emu_wave is going to use
    for (unsigned i = 0; i < count; i++) B->words[p][t].v[i] = mine[i];
    (void)gpu_emu_wave(GPU_EMU_SHARE, (int)count, 0);
    return B->words[p] + t / WAVE * WAVE;
}
void gpu_emu_fence(void) {
    release(&fence_token);
    acquire(&fence_token);
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void gpu_emu_gate_init(gpu_emu_gate *g, uint32_t arrivals) { *g = {arrivals, arrivals, 0}; }
void gpu_emu_gate_arrive(gpu_emu_gate *g) {
    release(g);
    if (g->pending == 0 || g->pending > g->arrivals) die("a gate that nobody has made");
    if (--g->pending) return;
    g->pending = g->arrivals;
    g->turn++;
    for (unsigned i = 0; i < B->c.nt; i++) {
        Fiber *f = &B->f[B->order[i]];
        if (f->gate != g) continue;
        f->gate = nullptr;
        push(f->tid);
    }
}
void gpu_emu_gate_wait(gpu_emu_gate *g, uint32_t turn) {
    while (((g->turn ^ turn) & 1u) == 0) { // as mbarriers do, which know the last bit only
        B->cur->gate = g;
        run_next();
    }
    acquire(g);
}
void *gpu_emu_shared(size_t n) {
    if (n > SHARED) die("more than 48 KiB of shared memory");
    return B->shared;
}
void *gpu_emu_shared_wide(size_t n) {
    if (n > SHARED_WIDE) die("more than 227 KiB of shared memory");
    return B->shared;
}

// ---- launch
static const char *order_kind(void) {
    const char *s = getenv("GPU_EMU_ORDER");
    return s ? s : "fwd";
}
static void set_order(Block *b, unsigned n, uint64_t seed) {
    const char *k = order_kind();
    b->fifo = k[0] == 'r' && k[1] == 'a';
    for (unsigned i = 0; i < n; i++) b->order[i] = k[0] == 'r' && k[1] == 'e' ? n - 1 - i : i;
    if (k[0] == 'r' && k[1] == 'a')
        for (unsigned i = n - 1; i; i--) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            unsigned j = (unsigned)(seed >> 33) % (i + 1), x = b->order[i];
            b->order[i] = b->order[j];
            b->order[j] = x;
        }
    for (unsigned i = 0, k2 = 0; i < n; i++)
        if (b->order[i] < WAVE) b->lanes[k2++] = b->order[i];
}
static void run_block(Block *b, unsigned i, uint64_t seed) {
    b->c.bx = i % b->c.nbx;
    b->c.by = i / b->c.nbx;
    b->done = b->at_sync = b->head = b->count = 0;
    memset(b->at_wave, 0, sizeof b->at_wave);
    memset(b->shared, 0xff, SHARED_WIDE); // NaNs: reading before writing shows
    set_order(b, b->c.nt, seed + i);
    for (unsigned k = 0; k < b->c.nt; k++) push(b->order[k]);
    b->cur = &b->host;
    b->host.tsan = TSAN ? __tsan_get_current_fiber() : nullptr;
    release(&b->tok_start);
    run_next();
    acquire(&b->tok_end);
}
static std::mutex pool_lock;
static std::vector<Block *> &pool = *new std::vector<Block *>; // kept for the life of the program
void gpu_emu_launch(gpuDim3 g, gpuDim3 blk, const std::function<void()> &fn) {
    if (blk.y != 1 || blk.z != 1 || g.z != 1 || !blk.x || blk.x > MAXT || blk.x % WAVE) {
        fprintf(stderr, "gpu_emu: bad launch\n");
        __builtin_trap();
    }
    const char *ws = getenv("GPU_EMU_WORKERS"), *ss = getenv("GPU_EMU_SEED");
    unsigned total = g.x * g.y, workers = ws ? (unsigned)atoi(ws) : std::thread::hardware_concurrency();
    uint64_t seed = ss ? strtoull(ss, 0, 10) * 1000003 : 1;
    std::atomic<unsigned> next{0};
    auto work = [&] {
        Block *b;
        {
            std::lock_guard<std::mutex> l(pool_lock);
            if (pool.empty())
                b = nullptr;
            else {
                b = pool.back();
                pool.pop_back();
            }
        }
        if (!b) {
            b = (Block *)calloc(1, sizeof *b);
            b->shared = (char *)aligned_alloc(1024, SHARED_WIDE);
        }
        make_fibers(b, blk.x);
        b->c.nt = blk.x;
        b->c.nbx = g.x;
        b->c.nby = g.y;
        b->fn = &fn;
        b->host.stack = nullptr;
        B = b;
        gpu_emu_c = &b->c;
        for (unsigned i; (i = next++) < total;) run_block(b, i, seed);
        B = nullptr;
        gpu_emu_c = nullptr;
        std::lock_guard<std::mutex> l(pool_lock);
        pool.push_back(b);
    };
    std::vector<std::thread> th;
    for (unsigned i = 1; i < workers && i < total; i++) th.emplace_back(work);
    work();
    for (auto &t : th) t.join();
}

// ---- memory
static std::mutex memory_lock;
static std::map<void *, size_t> &owned = *new std::map<void *, size_t>; // kept for the life of the program
static size_t owned_bytes;
static size_t bytes_of(const char *name, size_t otherwise) {
    const char *s = getenv(name);
    return s ? (size_t)strtoull(s, nullptr, 10) : otherwise;
}
// exactly n bytes, so that the address checker sees the end; filled with NaNs, so that reading before writing shows
static void *take(size_t n) {
    void *p;
    if (n >> 40 || posix_memalign(&p, 4096, n ? n : 1) != 0) return nullptr;
    memset(p, 0xff, n);
    return p;
}
gpuError_t gpuMalloc(void **p, size_t n) {
    std::lock_guard<std::mutex> l(memory_lock);
    size_t all = bytes_of("GPU_EMU_MEMORY", SIZE_MAX);
    bool fits = n <= all && owned_bytes <= all - n;
    *p = fits ? take(n) : nullptr;
    if (!*p) return 2;
    owned[*p] = n;
    owned_bytes += n;
    return gpuSuccess;
}
gpuError_t gpuFree(void *p) {
    std::lock_guard<std::mutex> l(memory_lock);
    auto at = owned.find(p);
    if (at != owned.end()) {
        owned_bytes -= at->second;
        owned.erase(at);
    }
    free(p);
    return gpuSuccess;
}
gpuError_t gpuMemGetInfo(size_t *free_bytes, size_t *total_bytes) {
    std::lock_guard<std::mutex> l(memory_lock);
    *total_bytes = bytes_of("GPU_EMU_MEMORY_SAID", bytes_of("GPU_EMU_MEMORY", 0));
    *free_bytes = *total_bytes > owned_bytes ? *total_bytes - owned_bytes : 0;
    return gpuSuccess;
}
gpuError_t gpuHostAllocMapped(void **p, size_t n) {
    *p = take(n);
    return *p ? gpuSuccess : 2;
}

// ---- streams and events
struct gpu_emu_stream {
    bool lazy;
    uint64_t done; // things that have run
    std::deque<std::function<void()>> work;
};
static void run_to(gpu_emu_stream *s, uint64_t at) {
    while (s->done < at) {
        std::function<void()> fn = std::move(s->work.front());
        s->work.pop_front();
        fn();
        s->done++;
    }
}
static uint64_t end_of(const gpu_emu_stream *s) { return s->done + s->work.size(); }
void gpu_emu_enqueue(gpuStream_t s, std::function<void()> fn) {
    if (s && s->lazy)
        s->work.push_back(std::move(fn));
    else
        fn();
}
gpuError_t gpuStreamCreate(gpuStream_t *s) {
    *s = new gpu_emu_stream();
    (*s)->lazy = getenv("GPU_EMU_LAZY") != nullptr;
    return gpuSuccess;
}
gpuError_t gpuStreamDestroy(gpuStream_t s) {
    if (s) run_to(s, end_of(s));
    delete s;
    return gpuSuccess;
}
gpuError_t gpuStreamSynchronize(gpuStream_t s) {
    if (s) run_to(s, end_of(s));
    return gpuSuccess;
}
gpuError_t gpuStreamWaitEvent(gpuStream_t s, gpuEvent_t e) {
    gpu_emu_event what = *e; // a later record does not count
    if (what.stream && what.stream != s) gpu_emu_enqueue(s, [=] { run_to(what.stream, what.at); });
    return gpuSuccess;
}
gpuError_t gpuEventCreate(gpuEvent_t *e) {
    *e = new gpu_emu_event();
    return gpuSuccess;
}
gpuError_t gpuEventDestroy(gpuEvent_t e) {
    delete e;
    return gpuSuccess;
}
gpuError_t gpuEventRecord(gpuEvent_t e, gpuStream_t s) {
    *e = {s, s ? end_of(s) : 0};
    return gpuSuccess;
}
gpuError_t gpuEventSynchronize(gpuEvent_t e) {
    if (e->stream) run_to(e->stream, e->at);
    return gpuSuccess;
}
gpuError_t gpuEventQuery(gpuEvent_t e) { return e->stream && e->stream->done < e->at ? gpuErrorNotReady : gpuSuccess; }
