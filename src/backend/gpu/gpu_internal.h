// gpu_internal.h - what the source files of a GPU backend library share: the backend object, its scratch, kept failure.
//
// gpu_backend.cpp has life, memory, streams and scratch; gpu_weights.cpp weights; gpu_install.cpp experts into slots;
// gpu_dense.cpp, gpu_moe.cpp, gpu_attention.cpp and gpu_gqa.cpp launch the operations of k_*.h and set them in the
// object; gpu_blaslt.cpp has the diagnostic that leaves products of many rows to a matrix library.
// Errors: kept in the object (need, gpu_ok, launched) and given by sync().
#pragma once
#include "backend/gpu/gpu_backend.h"
#include "backend/gpu/k_common.h"

enum { PIECES = 2, TABLES = 8, RUNS = 8, EVENTS = PIECES + TABLES + RUNS + MS_TICKETS + 1, SLOT_MARKS = 1024 };
constexpr size_t PIECE_BYTES = (size_t)4 << 20;
enum { FLAG_ROUTER, FLAG_WEIGHT, FLAG_SIDE, FLAG_COUNT = FLAG_SIDE + 3 * MS_TICKETS };
constexpr uint32_t NO_ROW = UINT32_MAX;
enum { FETCH_HEAD = 64 }; // of gpu_scratch.fetched: the router's word
// A router failure is (call << 20 | row), so that the lowest word is the first failure; later calls share the last
// number.
enum { ROUTER_ROW_BITS = 20, ROUTER_CALLS = 4094 };

// Pointers into one arena; [rows][dim] areas are dense.
struct gpu_scratch {
    ms_scratch_need need;
    void *base;
    int8_t *x_q;   // [rows][groups of input_cols * 128]
    float *x_s;    // [rows][groups of input_cols]
    float *gate;   // [rows][mlp_width]
    float *up;     // [rows][mlp_width]
    int8_t *act_q; // [rows][groups of mlp_width * 128], fast only, as all of *_q and *_s
    float *act_s;
    float *router; // [rows][router_experts]
    float *mix;    // [rows][K_MIX_SOURCES]
    float *mla;    // as k_mla.h lays it out
    float *gqa;    // as k_gqa.h lays it out
    float *z;      // [rows][hidden], reference only
    int8_t *z_q;
    float *z_s;   // [rows][hidden / 32]
    float *e_act; // [pairs][inner], reference only
    int8_t *e_q;
    float *e_s;          // [pairs][inner / 32]
    uint8_t *z_h, *e_h;  // rows of halves (k_experts_wide.h), on a device of wide tiles
    float *z_hs, *e_hs;
    void *table;         // of one experts_run
    uint8_t *table_host; // pinned, outside the arena: TABLES of them
    uint8_t *fetched;    // pinned, outside the arena: FLAG_ROUTER, then what fetch_begin asked for
    uint8_t *blas_in, *blas_weight, *blas_work; // as gpu_blaslt.cpp uses them; NULL without it
    uint8_t *source;     // of the install at work; NULL where the device reads the host's memory as fast as its own
};

// Work of the side stream that finish() ends; the words that its kernel lowers are in `flags` and, when it is done, in
// `side_bad`.
struct gpu_side_work {
    gpuEvent_t done;
    uint64_t number;
    bool open;
    ms_expert_shape shape;   // an install
    const ms_weight *weight; // a fill; else NULL
    const void *host;        // its rows
    ms_format source;
    uint32_t first;
};

// Uses of slots on the compute stream are numbered, and so is the work of the side stream; see gpu_install.cpp.
struct gpu_order {
    uint64_t uses, uses_done; // begun; known to have run
    uint64_t all_slots;       // the last use that may be of any slot
    uint64_t marked[RUNS];    // use that an event of `run` follows
    unsigned next_run;
    uint64_t works, works_done;
    uint64_t slot_use[SLOT_MARKS], slot_install[SLOT_MARKS]; // the last of each; slots may share a mark
};

// Rows whose int8 form is in scratch.x_q; x == NULL: none.
struct gpu_held {
    const float *x;
    uint32_t n, cols;
};

// A sum that the next operation makes: a mix makes those of its own rows by the way.
struct gpu_sum {
    float *sum;
    const float *a, *b;
    size_t count;
};
enum { SUMS = 2, WROTE = 8, DECAY_COLS = 128 };

// A router's choice for one row that waits for company: its products for other products of the same input, the choice
// itself for the experts' input.  Then it, or a fetch of its ids, is no launch of its own.
struct gpu_choice {
    bool open;
    bool made;    // its products have been launched
    bool fetched; // its ids are what the open fetch asked for
    const float *x;
    ms_product product;
    uint32_t *ids;
    float *weights;
    const float *bias;
    uint32_t top_k, renormalize, bad_base;
    float scale;
};

// An exact product of one row that waits for a kda_range whose decay inputs it makes.
struct gpu_decay {
    bool open;
    const float *x;
    ms_product product;
};

// What the kernel that was launched last writes, where that is known: the next one may read all else before it ends.
struct gpu_wrote {
    bool known;
    uint32_t count;
    struct {
        const float *p;
        size_t bytes;
    } to[WROTE];
};

struct gpu_backend {
    ms_backend base;          // first: the public object is this one
    gpuStream_t stream, side; // side: installs
    ms_error failure;         // code MS_OK: none kept
    char kernels[64];
    bool shares_memory;     // the device's memory is the host's
    bool wide;              // it has wide tiles (gpu_wide.h)
    uint8_t *piece[PIECES]; // pinned
    gpuEvent_t piece_free[PIECES];
    gpuEvent_t table_free[TABLES]; // the table's last upload is done
    gpuEvent_t run[RUNS];
    gpu_side_work work[MS_TICKETS];
    uint32_t *side_bad; // pinned, behind piece[0]: [MS_TICKETS][3]
    gpu_order order;
    gpuEvent_t fetch_done;
    uint64_t fetch_uses, fetch_works; // order.uses and .works when the fetch began
    size_t fetch_bytes;               // of the open fetch; 0: none
    uint32_t fetch_calls;             // router_calls when it began
    unsigned events;                  // made so far, in the order of event_of()
    unsigned next_piece, next_table;
    uint32_t experts_n; // rows prepared by experts_begin
    ms_expert_shape experts_shape;
    uint8_t *raw;    // device, PIECE_BYTES for each stream
    uint32_t *flags; // device, FLAG_COUNT words; all ones: nothing found
    uint32_t router_calls;
    gpu_scratch scratch;
    gpu_held held;
    gpu_sum sums[SUMS]; // waiting, in this order
    uint32_t sum_count;
    gpu_choice choice; // open only while sum_count is 0
    struct gpu_blas *blas; // NULL: all products are those of k_*.h
    gpu_decay decay;   // open only while sum_count is 0 and choice is not open
    gpu_wrote wrote;
};

static inline gpu_backend *gpu_of(ms_backend *be) { return (gpu_backend *)be; }
static inline bool is_fast(const gpu_backend *g) { return g->base.precision == MS_PRECISION_FAST; }

// ---------------------------------------------------------------- kept failure (gpu_backend.cpp)

__attribute__((format(printf, 3, 4))) void keep_failure(gpu_backend *g, ms_status code, const char *fmt, ...);
// Keeps MS_ERR_INTERNAL when not ok; gives ok.
bool need(gpu_backend *g, bool ok, const char *op, const char *what);
// Keeps an error of the runtime; gives whether there was none.
bool gpu_ok(gpu_backend *g, gpuError_t e, const char *op);
// After the launches of an operation.
void launched(gpu_backend *g, const char *op);

// ---------------------------------------------------------------- memory (gpu_backend.cpp)

void *device_new(gpu_backend *g, size_t bytes, bool zeroed); // NULL: there is none left
void device_free(gpu_backend *g, void *p);
ms_status refuse_memory(gpu_backend *g, const char *what, size_t bytes, ms_error *err); // the error of such a NULL
// Sends up to PIECE_BYTES; the host memory may change as soon as this returns.
void upload_piece(gpu_backend *g, void *dev, const void *host, size_t bytes);

// ---------------------------------------------------------------- order of slot uses (gpu_install.cpp)

// Before and after the launches of experts_run.
void slots_use(gpu_backend *g, const ms_expert_batch *batches, uint32_t count);
void slots_used(gpu_backend *g, const ms_expert_batch *batches, uint32_t count);
// Before the stream touches device memory that may be a slot.
void memory_use(gpu_backend *g);
// Begins work `*number` of the side stream, which follows use `use`: NULL and an error when too much is open.  The
// caller puts the work into the stream and calls side_end, which gives its ticket.
gpu_side_work *side_begin(gpu_backend *g, uint64_t use, uint32_t *ticket, ms_error *err);
ms_status side_end(gpu_backend *g, gpu_side_work *work, uint32_t *bad, ms_error *err);
// The three words of a ticket on the device.
uint32_t *side_flags(gpu_backend *g, uint32_t ticket);
// Waits for both streams.
bool wait_all(gpu_backend *g, const char *op);

// ---------------------------------------------------------------- weights (gpu_weights.cpp)

static inline bool has_scales(ms_format f) { return f == MS_FORMAT_Q8 || f == MS_FORMAT_FP8; }
// The error of row `first` + i of a fill.
ms_status report_bad(const ms_weight *w, const void *host, ms_format source, uint32_t first, uint32_t i, ms_error *err);
// How a weight's product is computed; `quantised`: with an int8 input.
uint32_t mode_of(const ms_weight *w, bool quantised);
// A vector weight of `dim` entries; data == NULL, and a kept failure, when it is not one.
k_vector vector_of(gpu_backend *g, const ms_weight *w, uint32_t dim, const char *op);
// F32 data of a weight with at least `count` elements; NULL and a kept failure otherwise.
const float *f32_of(gpu_backend *g, const ms_weight *w, uint64_t count, const char *op, const char *what);

// ---------------------------------------------------------------- operations

// An input of products: f32 rows, and their int8 form where a product wants it.
struct product_input {
    const float *x;
    const int8_t *q;
    const float *scales;
    uint32_t n, cols;
};
void run_products(gpu_backend *g, const product_input *in, const ms_product *products, uint32_t count);

// ---------------------------------------------------------------- products of a matrix library (gpu_blaslt.cpp)

ms_status blas_open(gpu_backend *g, ms_error *err); // blas_close also after a failure
void blas_close(gpu_backend *g);
// Whether products of so many input rows are the library's; it takes them unquantised.
bool blas_takes(const gpu_backend *g, uint32_t n);
// Makes those that are; returns how many are left, in front.
uint32_t run_blas(gpu_backend *g, const product_input *in, ms_product *products, uint32_t count);
// Of scratch.blas_in, a row; of blas_weight and blas_work, all.
uint64_t blas_input_bytes(const gpu_backend *g, const ms_scratch_need *n);
uint64_t blas_weight_bytes(const ms_scratch_need *n);
uint64_t blas_work_bytes(void);

// Makes what waits, sums, a choice, decay inputs: whatever reads or writes device memory calls it first.
void settle(gpu_backend *g);
// Launches what is left of the choice that waits, if there is one (gpu_moe.cpp).
void choice_settle(gpu_backend *g);
// Whether products of such an input, with such results, may take the choice's along; then `made` is to be set.
bool choice_joins(const gpu_backend *g, const float *x, uint32_t n, const ms_product *products, uint32_t count);
// Makes the decay inputs that wait, if any do (gpu_dense.cpp).
void decay_settle(gpu_backend *g);
// Whether the kernel that was launched last does not write there: the next one may read it at once.
bool untouched(const gpu_backend *g, const void *p, size_t bytes);
// The choice that waits answers a fetch of `bytes` at `dev`, if it is of its ids.
bool choice_fetch(gpu_backend *g, const void *dev, size_t bytes);
// After writing there: held rows that lie there are held no more.
void rows_written(gpu_backend *g, const void *p, size_t bytes);
// Whether the int8 form of such rows has room; the operation that writes it tells rows_held.
bool rows_fit(const gpu_backend *g, uint32_t n, uint32_t cols);
void rows_held(gpu_backend *g, const float *x, uint32_t n, uint32_t cols);
bool overlap(const void *a, size_t a_bytes, const void *b, size_t b_bytes);

// To pinned memory: `bytes` from dev, and the router's flag to `flag` unless NULL (gpu_moe.cpp).
void fetch_words(gpu_backend *g, void *to, const void *dev, size_t bytes, void *flag);

uint64_t halves_groups(uint32_t cols);               // groups of such a row of gpu_scratch.z_h, .e_h (gpu_moe.cpp)
uint64_t mix_scratch_need(const ms_scratch_need *n); // floats a row of gpu_scratch.mix (gpu_dense.cpp)
uint64_t mla_scratch_need(const ms_scratch_need *n); // bytes of gpu_scratch.mla (gpu_attention.cpp)
uint64_t gqa_scratch_need(const ms_scratch_need *n); // bytes of gpu_scratch.gqa (gpu_gqa.cpp)
uint64_t
table_scratch_need(const ms_scratch_need *n); // bytes of gpu_scratch.table and each of table_host (gpu_moe.cpp)

// Each sets the operations of its file.
void set_weight_members(ms_backend *be);
void set_install_members(ms_backend *be);
void set_dense_members(ms_backend *be);
void set_moe_members(ms_backend *be);
void set_attention_members(ms_backend *be);
void set_gqa_members(ms_backend *be);
