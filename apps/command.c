#include "command.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_CLOSED = 141 }; /* what a shell shows for a program that SIGPIPE ended */

static const char *const precisions[] = {"fast", "reference", NULL};
static const char *const switches[] = {"on", "off", NULL};
const char *const ms_range_backends[] = {"default", "blas", "kda-blas", NULL};
static const char *const formats[] = {"q8", "bf16", NULL};

#define FIELD(f) offsetof(ms_model_flags, f)
const ms_option ms_model_option_table[] = {
    {.name = "context",
     .type = MS_OPTION_U64,
     .offset = FIELD(context),
     .arg = "N",
     .min = 1,
     .max = 1048576,
     .env = "MOONSHINE_CONTEXT",
     .help = "Longest conversation in tokens (default: 8192, or the model's maximum if that is less)."},
    {.name = "experts",
     .type = MS_OPTION_U32,
     .offset = FIELD(experts),
     .arg = "N",
     .max = 65536,
     .help = "Cache slots a routed layer, 0 to all (default: 32 or all; on a device with its own memory what fits)."},
    {.name = "staging",
     .type = MS_OPTION_U32,
     .offset = FIELD(staging),
     .arg = "N",
     .min = 1,
     .max = 1024,
     .help = "Expert read buffers (default: 16)."},
    {.name = "depth",
     .type = MS_OPTION_U32,
     .offset = FIELD(depth),
     .arg = "N",
     .min = 1,
     .max = 1024,
     .help = "Expert reads in flight (default: as many as buffers, but few for a single token)."},
    {.name = "range",
     .type = MS_OPTION_U32,
     .offset = FIELD(range),
     .arg = "N",
     .min = 1,
     .max = 1048576,
     .word = "auto",
     .help = "Most tokens of one layer-major pass (default: 512); auto: as many as fit into memory beside the "
             "rest, which may borrow cache slots. Every expert is read once a pass at most. Never changes a result."},
    {.name = "precision",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(precision),
     .arg = "P",
     .choices = precisions,
     .help = "Arithmetic (default: fast)."},
    {.name = "static",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(static_format),
     .arg = "F",
     .choices = formats,
     .help = "Storage of the resident weights (default: q8)."},
    {.name = "threads",
     .type = MS_OPTION_U32,
     .offset = FIELD(threads),
     .arg = "N",
     .min = 1,
     .max = 256,
     .help = "Compute threads (default: all processors)."},
    {.name = "memory",
     .type = MS_OPTION_BYTES,
     .offset = FIELD(memory_bytes),
     .arg = "BYTES",
     .min = 1,
     .max = UINT64_MAX,
     .help =
         "Memory to take for available, the reserve included; only plan takes more than there is (default: all that "
         "is)."},
    {.name = "reserve",
     .type = MS_OPTION_BYTES,
     .offset = FIELD(reserve_bytes),
     .arg = "BYTES",
     .max = UINT64_MAX - 1,
     .help = "Memory to leave free (default: 4G, or 10 % of what is available if that is less)."},
    {.name = "kernels",
     .type = MS_OPTION_STRING,
     .filled = true,
     .offset = FIELD(kernels),
     .arg = "NAME",
     .help = "CPU kernels: scalar, avx2, avx512 or neon (default: the best this CPU has)."},
    {.name = "backend",
     .type = MS_OPTION_STRING,
     .filled = true,
     .offset = FIELD(backend),
     .arg = "NAME",
     .env = "MOONSHINE_BACKEND",
     .help = "cpu, hip, cuda, or auto: a GPU if one opens, else the CPU (default: cpu)."},
    {.name = "range-backend",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(range_backend),
     .arg = "B",
     .choices = ms_range_backends,
     .help = "Diagnostic, GPUs only: blas makes products of more than 16 rows with cuBLASLt or hipBLASLt (default: "
             "default). Changes results, also with how prompts are cut. kda-blas is another name of it."},
    {.name = "store",
     .type = MS_OPTION_STRING,
     .filled = true,
     .offset = FIELD(store),
     .arg = "DIR",
     .help =
         "Folder of a compressed expert store; raw: experts from the checkpoint; auto: $MOONSHINE_MZG2_STORE, mzg2 in "
         "the "
         "model's folder or MODEL.mzg2 beside it, if it is faster here (default: $MOONSHINE_MZG2_STORE, else raw)."},
    {.name = "read-limit",
     .type = MS_OPTION_REAL,
     .offset = FIELD(read_limit),
     .arg = "GB/S",
     .low = 0.001,
     .high = 1000,
     .help = "Read experts no faster than a drive of this rate would (for measurements)."},
    {.name = "no-direct",
     .type = MS_OPTION_FLAG,
     .offset = FIELD(no_direct),
     .help = "Read experts through the page cache."},
    {.name = "no-uring", .type = MS_OPTION_FLAG, .offset = FIELD(no_uring), .help = "Read experts with pread."},
    {.name = "expert-dirs",
     .type = MS_OPTION_STRING,
     .filled = true,
     .offset = FIELD(expert_dirs),
     .arg = "A,B",
     .help = "Folders on other drives with copies of the model's files: experts are read from all of them."},
    {.name = "lookahead",
     .type = MS_OPTION_CHOICE,
     .offset = FIELD(lookahead),
     .arg = "L",
     .choices = switches,
     .help = "Guess the experts of the next layer and read them early, while guesses are good (default: on). "
             "Never changes a result."},
};
const size_t ms_model_option_count = sizeof ms_model_option_table / sizeof ms_model_option_table[0];

ms_model_flags ms_model_flags_default(void) {
    return (ms_model_flags){.experts = MS_DEFAULT_EXPERTS, .reserve_bytes = MS_DEFAULT_RESERVE};
}

ms_engine_options ms_model_flags_engine(const ms_model_flags *f, const char *model) {
    ms_engine_options o;
    ms_engine_options_default(&o, model);
    o.context = f->context;
    o.experts = f->experts;
    o.staging = f->staging;
    o.read_depth = f->depth;
    o.range_rows = f->range;
    o.precision = f->precision ? MS_PRECISION_REFERENCE : MS_PRECISION_FAST;
    o.static_format = f->static_format ? MS_STATIC_BF16 : MS_STATIC_Q8;
    o.threads = f->threads;
    o.memory_bytes = f->memory_bytes;
    o.reserve_bytes = f->reserve_bytes;
    o.kernels = f->kernels;
    o.range_blas = f->range_backend != 0;
    o.backend = f->backend;
    o.buffered_reads = f->no_direct;
    o.no_uring = f->no_uring;
    o.expert_dirs = f->expert_dirs;
    o.no_lookahead = f->lookahead != 0;
    const char *env = getenv("MOONSHINE_MZG2_STORE");
    if (env && (!*env || !strcmp(env, "off"))) env = NULL;
    o.store = f->store ? f->store : env;
    o.auto_store = env;
    o.read_limit = (uint64_t)(f->read_limit * 1e9);
    return o;
}

void ms_command_begin(void) {
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);
    /* Takes the free numbers up to 2: reading or writing there then fails, as it would have. */
    for (int fd = 0; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && errno == EBADF) (void)open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY);
}

int ms_command_parse(const ms_option_set *set, int argc, char **argv, ms_option_result *result) {
    ms_error err;
    if (ms_options_parse(set, argc, argv, result, &err) != MS_OK) return ms_command_fail(set->program, &err);
    if (result->version) {
        printf("%s %s\n", set->program, MS_VERSION);
        return ms_command_finish(set->program);
    }
    if (!result->help) return -1;
    ms_text text = {0};
    ms_options_help(set, &text);
    if (!text.failed && text.data) fputs(text.data, stdout);
    ms_text_free(&text);
    return ms_command_finish(set->program);
}

void ms_command_log(void *program, const char *line) {
    fprintf(stderr, "%s: %s\n", (const char *)program, line);
}

int ms_command_fail(const char *program, const ms_error *err) {
    fprintf(stderr, "%s: %s\n", program, err->message);
    if (err->code == MS_ERR_USAGE) return 2;
    return err->code == MS_ERR_NO_FIT ? 3 : 1;
}

static bool pipe_is_closed(int fd) {
    struct pollfd p = {.fd = fd, .events = POLLOUT};
    return poll(&p, 1, 0) == 1 && (p.revents & POLLERR) != 0;
}

int ms_command_finish(const char *program) {
    errno = 0;
    if (fflush(stdout) == 0 && !ferror(stdout)) return 0;
    int cause = errno; /* 0: an earlier write failed */
    if (cause == EPIPE || (cause == 0 && pipe_is_closed(STDOUT_FILENO))) return EXIT_CLOSED;
    fprintf(stderr, "%s: standard output: %s\n", program, strerror(cause ? cause : EIO));
    return 1;
}

/* An empty variable counts as unset. */
static bool check_store_variables(const char *program) {
    const char *store = getenv("MOONSHINE_MZG2_STORE"), *older = getenv("MOONSHINE_EXPERT_STORE");
    if (older && *older) {
        fprintf(stderr,
                "%s: MOONSHINE_EXPERT_STORE: expected unset, found %s: that format is not read; build a store with "
                "`moonshine store build` and set MOONSHINE_MZG2_STORE\n",
                program, older);
        return false;
    }
    if (store && *store && *store != '/' && strcmp(store, "off") != 0) {
        fprintf(stderr, "%s: MOONSHINE_MZG2_STORE: expected an absolute path or off, found %s\n", program, store);
        return false;
    }
    return true;
}

const char *ms_command_model(const char *program, const ms_option_result *result, size_t index) {
    if (!check_store_variables(program)) return NULL;
    if (result->arg_count > index && *result->args[index]) return result->args[index];
    if (result->arg_count > index) {
        fprintf(stderr, "%s: MODEL: expected a checkpoint directory, found an empty string\n", program);
        return NULL;
    }
    const char *env = getenv("MOONSHINE_MODEL");
    if (env && *env) return env;
    fprintf(stderr, "%s: no model: give a checkpoint directory or set MOONSHINE_MODEL\n", program);
    return NULL;
}
