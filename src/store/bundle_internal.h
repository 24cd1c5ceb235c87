/* bundle_internal.h: names and lists shared by the maker and the reader of bundles. */
#ifndef MS_STORE_BUNDLE_INTERNAL_H
#define MS_STORE_BUNDLE_INTERNAL_H

#include "store/bundle.h"
#include "store/mzg2_work.h"

enum { BUNDLE_VERSION = 1, BUNDLE_NAME = 320 };
static const char bundle_json[] = "bundle.json", bundle_format[] = "moonshine-bundle", bundle_seal[] = "bundle_sha256",
                  bundle_static[] = "model-static.safetensors", bundle_index[] = "model.safetensors.index.json";

typedef struct bundle_file {
    char name[BUNDLE_NAME]; /* inside the bundle */
    uint64_t bytes;
    uint8_t sha[MS_SHA256_BYTES];
} bundle_file;

typedef struct bundle_files {
    bundle_file *list;
    size_t count, cap;
} bundle_files;

ms_status bundle_files_add(bundle_files *f, const bundle_file *one, ms_error *err);
void bundle_files_free(bundle_files *f);

/* MS_ERR_FORMAT when the folder holds a file that is neither listed nor bundle.json. */
ms_status bundle_nothing_more(const char *dir, const bundle_files *files, ms_error *err);

/* files may be NULL.  *found: there is a bundle.json. */
ms_status bundle_read_json(ms_bundle *out, bundle_files *files, const char *dir, bool *found,
                           uint8_t sha[MS_SHA256_BYTES], ms_error *err);

/* The static tensors of a checkpoint as one file, and the index of that file. */
typedef struct bundle_statics {
    const ms_tensor **tensors; /* by type and name */
    size_t count;
    ms_text header; /* with its length and padding */
    uint64_t bytes; /* of the file */
} bundle_statics;
ms_status bundle_statics_list(bundle_statics *out, const ms_mzg2_source *s, ms_error *err);
void bundle_statics_free(bundle_statics *b);
ms_status bundle_statics_write(const bundle_statics *b, const ms_checkpoint *c, const char *path,
                               uint8_t sha[MS_SHA256_BYTES], ms_error *err);
/* The index's text, with the metadata of the checkpoint's own index. */
ms_status bundle_statics_index(const bundle_statics *b, const ms_checkpoint *c, ms_text *out, ms_error *err);

#endif
