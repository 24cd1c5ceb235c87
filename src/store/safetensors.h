/* safetensors.h: the header of one SafeTensors file, parsed from memory with every bound checked.
 *
 * A file is an 8-byte little-endian header length, the header (a JSON object), and the payload.  Accepted headers:
 *   at most 100 MB and inside the file; "__metadata__", if there, an object of strings; every other member a tensor
 *   with exactly dtype, shape and data_offsets; names once each and without U+0000; shape times element size equals the
 *   offsets' span; the tensors cover the payload from its first byte to the end of the file without holes or
 *   overlap, as the format demands.
 *
 * Owns: a ms_safetensors owns its entries; their names point into its JSON document.
 * Threads: a parsed header may be read by many threads.
 * Errors: MS_ERR_FORMAT naming file, tensor, field, expected, found.
 */
#ifndef MS_STORE_SAFETENSORS_H
#define MS_STORE_SAFETENSORS_H

#include "base/json.h"

typedef enum ms_dtype {
    MS_DTYPE_F32, MS_DTYPE_F16, MS_DTYPE_BF16, MS_DTYPE_F8_E4M3, MS_DTYPE_U8, MS_DTYPE_I8, MS_DTYPE_I16, MS_DTYPE_I32,
    MS_DTYPE_I64, MS_DTYPE_F64, MS_DTYPE_BOOL
} ms_dtype;
const char *ms_dtype_name(ms_dtype t);
unsigned ms_dtype_bytes(ms_dtype t);

enum { MS_TENSOR_MAX_DIMS = 6 };

#define MS_SAFETENSORS_PREFIX_BYTES 8u
#define MS_SAFETENSORS_MAX_HEADER_BYTES UINT64_C(100000000)

typedef struct ms_safetensors_entry {
    const char *name; /* NUL-terminated */
    size_t name_len;
    uint64_t begin, end; /* in the payload */
    uint64_t shape[MS_TENSOR_MAX_DIMS];
    uint8_t dims;
    uint8_t dtype; /* ms_dtype */
} ms_safetensors_entry;

typedef struct ms_safetensors {
    ms_json_doc *doc;
    ms_safetensors_entry *entries; /* in payload order */
    size_t count;
    uint64_t data_offset; /* payload's place in the file */
} ms_safetensors;

/* Checks the header length against the limits; the file has file_bytes. */
ms_status ms_safetensors_check_length(uint64_t header_bytes, uint64_t file_bytes, const char *file, ms_error *err);

/* Parses the JSON text of a header; it must stay until ms_safetensors_free.  `file` is for messages. */
ms_status ms_safetensors_parse(ms_safetensors *out, const char *header, size_t header_bytes, uint64_t file_bytes,
                               const char *file, ms_error *err);
void ms_safetensors_free(ms_safetensors *s);

/* Reads and parses the header of an open regular file.  *text holds the header: free() it after ms_safetensors_free. */
ms_status ms_safetensors_read(ms_safetensors *out, char **text, int fd, uint64_t file_bytes, const char *file,
                              ms_error *err);

#endif
