/* bundle.h: a folder that holds everything a model needs, and nothing else: experts as a store, all other tensors in
 * one file at source precision, tokenizer, config and licence files.
 *
 *   bundle.json                    what is here: every file with length and SHA-256, and what it was made from
 *   config.json, tokenizer files, licences, ...   byte for byte from the checkpoint
 *   model-static.safetensors       the tensors that are not routed experts, sorted by name within a type
 *   model.safetensors.index.json   their index, with the metadata of the original
 *   mzg2/                          the store
 *
 * A bundle is made in NAME.partial/ and appears as NAME at once.  Its bytes depend on the checkpoint alone.
 * Threads: those of the store's build.  Errors: as in mzg2_build.h.
 */
#ifndef MS_STORE_BUNDLE_H
#define MS_STORE_BUNDLE_H

#include "store/mzg2_build.h"

extern const char ms_bundle_store_name[]; /* "mzg2" */

typedef struct ms_bundle {
    uint64_t layout_digest;             /* of the checkpoint it was made from */
    uint8_t store_sha[MS_SHA256_BYTES]; /* of the store's manifest */
} ms_bundle;

/* Whether DIR is a bundle, by its bundle.json, which is checked as far as opening needs. */
ms_status ms_bundle_read(ms_bundle *out, const char *dir, bool *found, ms_error *err);

typedef struct ms_bundle_report {
    ms_mzg2_report store;
    uint64_t static_bytes, files, bytes; /* of the static tensors' file; of all files */
    uint32_t static_tensors;
    bool linked;                  /* the store's files are hard links */
    uint8_t sha[MS_SHA256_BYTES]; /* of bundle.json */
} ms_bundle_report;

/* reuse: NULL, or a finished store of this checkpoint, whose files are linked (one file system, else MS_ERR_USAGE). */
ms_status ms_bundle_build(const char *dir, const ms_mzg2_source *source, const char *reuse,
                          const ms_mzg2_job_options *o, ms_bundle_report *report, ms_error *err);
/* Every file against bundle.json, no file more, and the store as in ms_mzg2_verify. */
ms_status ms_bundle_verify(const char *dir, const ms_mzg2_job_options *o, ms_bundle_report *report, ms_error *err);

#endif
