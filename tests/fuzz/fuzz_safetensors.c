/* Fuzzes SafeTensors headers: the input is the header; the file's size is taken from the input's last data_offsets when
 * possible, so that the checks behind the bounds are reached too. */
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "store/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* What a valid header promises must hold. */
static void check(const ms_safetensors *s, uint64_t payload) {
    uint64_t at = 0;
    for (size_t i = 0; i < s->count; i++) {
        const ms_safetensors_entry *e = &s->entries[i];
        uint64_t bytes = ms_dtype_bytes((ms_dtype)e->dtype);
        for (unsigned d = 0; d < e->dims; d++) bytes *= e->shape[d];
        if (e->begin != at || e->end - e->begin != bytes || strlen(e->name) != e->name_len) abort();
        at = e->end;
    }
    if (at != payload) abort();
}

/* The largest plain number of the text, up to a limit: most likely the last tensor's end. */
static uint64_t guess_payload(const uint8_t *data, size_t size) {
    uint64_t best = 0, n = 0;
    for (size_t i = 0; i < size; i++) {
        n = data[i] >= '0' && data[i] <= '9' && n < (UINT64_C(1) << 56) ? n * 10 + (uint64_t)(data[i] - '0') : 0;
        if (n > best) best = n;
    }
    return best;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const uint64_t payloads[] = {0, guess_payload(data, size)};
    for (int i = 0; i < 2; i++) {
        ms_safetensors s = {0};
        ms_error err = {0};
        ms_status status = ms_safetensors_parse(&s, (const char *)data, size, 8 + size + payloads[i], "fuzz", &err);
        if (status == MS_OK) check(&s, payloads[i]);
        else if (err.code != status || !err.message[0]) abort();
        ms_safetensors_free(&s);
    }
    return 0;
}
