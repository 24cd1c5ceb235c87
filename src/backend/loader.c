#include "backend/loader.h"

#include "backend/gpu/gpu_backend.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static const char *const libraries[][2] = {
    {"cuda", "libmoonshine_cuda.so"}, {"hip", "libmoonshine_hip.so"}, {"emu", "libmoonshine_emu.so"}};
enum { LIBRARIES = sizeof libraries / sizeof libraries[0], AUTO_LIBRARIES = 2 };

/* The folder of the running program, with its slash; false when it is not known or too long. */
static bool program_folder(char *out, size_t bytes) {
    ssize_t n = readlink("/proc/self/exe", out, bytes - 1);
    if (n <= 0 || (size_t)n >= bytes - 1) return false;
    out[n] = 0;
    char *slash = strrchr(out, '/');
    if (!slash) return false;
    slash[1] = 0;
    return true;
}

/* A file that exists but does not load is an error of its own: looking further would hide it. */
static void *open_library(const char *name, const char *file, ms_error *err) {
    char folder[PATH_MAX], path[PATH_MAX + 64];
    static const char *const places[] = {"", "../lib/"};
    if (program_folder(folder, sizeof folder)) {
        for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
            (void)snprintf(path, sizeof path, "%s%s%s", folder, places[i], file);
            if (access(path, F_OK) != 0) continue;
            void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
            if (!library) (void)ms_fail(err, MS_ERR_UNSUPPORTED, "%s", dlerror());
            return library;
        }
    }
    void *library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (!library) (void)ms_fail(err, MS_ERR_UNSUPPORTED, "%s (make GPU=%s builds it)", dlerror(), name);
    return library;
}

static ms_status open_gpu(ms_backend **out, const char *const of[2], const ms_backend_options *o, ms_error *err) {
    const char *file = of[1];
    void *library = open_library(of[0], file, err);
    if (!library) return MS_ERR_UNSUPPORTED;
    ms_backend_gpu_create_fn *create;
    void *symbol = dlsym(library, MS_GPU_CREATE_SYMBOL);
    if (!symbol) return ms_fail(err, MS_ERR_UNSUPPORTED, "%s: symbol " MS_GPU_CREATE_SYMBOL " is missing", file);
    memcpy(&create, &symbol,
           sizeof create); /* POSIX lets a function travel as an object pointer, ISO C has no cast for it */
    ms_gpu_options go = {.interface = MS_GPU_INTERFACE,
                         .backend_bytes = sizeof(ms_backend),
                         .version = MS_VERSION,
                         .precision = o->precision,
                         .device = o->device,
                         .range_blas = o->range_blas};
    ms_status status = create(out, &go, err);
    return status == MS_OK ? MS_OK : ms_error_context(err, "%s", file);
}

static ms_status open_cpu(ms_backend **out, const ms_backend_options *o, ms_error *err) {
    if (o->range_blas)
        return ms_fail(err, MS_ERR_USAGE, "range backend blas: expected a GPU (--backend hip or cuda), found the CPU");
    ms_cpu_options co = {.precision = o->precision, .threads = o->threads, .kernels = o->kernels};
    return ms_backend_cpu_create(out, &co, err);
}

static ms_status open_auto(ms_backend **out, const ms_backend_options *o, ms_error *err) {
    char line[2 * sizeof err->message] = "no GPU is used:";
    for (size_t i = 0; i < AUTO_LIBRARIES; i++) {
        ms_error why = {0};
        if (open_gpu(out, libraries[i], o, &why) == MS_OK) return MS_OK;
        size_t at = strlen(line);
        (void)snprintf(line + at, sizeof line - at, "%s %s", i ? ";" : "", why.message);
    }
    if (o->range_blas) return ms_fail(err, MS_ERR_UNSUPPORTED, "range backend blas: %s", line);
    if (o->log) o->log(o->log_arg, line);
    return open_cpu(out, o, err);
}

ms_status ms_backend_open(ms_backend **out, const ms_backend_options *options, ms_error *err) {
    const char *name = options->name ? options->name : "cpu";
    *out = NULL;
    if (!strcmp(name, "cpu")) return open_cpu(out, options, err);
    if (!strcmp(name, "auto")) return open_auto(out, options, err);
    for (size_t i = 0; i < LIBRARIES; i++)
        if (!strcmp(name, libraries[i][0])) return open_gpu(out, libraries[i], options, err);
    return ms_fail(err, MS_ERR_USAGE, "backend \"%s\": expected auto, cpu, hip or cuda", name);
}
