/* mzg2_build.h: making a store of a checkpoint's experts, checking one, and giving the source bytes back.
 *
 * A build works in NAME.partial/ and may be killed at any moment: the next one of the same checkpoint and parameters
 * keeps every finished layer.  The finished store appears as NAME at once or not at all.  Its bytes depend on the
 * source and the parameters alone.
 *
 * Owns: what it creates.  Threads: `jobs` of its own; progress is called from any of them, one at a time.
 * Errors: MS_ERR_USAGE (the target exists, another build runs, other parameters), MS_ERR_NO_FIT (free space, with the
 *   numbers), MS_ERR_FORMAT (source or store is not what it must be), MS_ERR_IO, MS_ERR_CANCELLED.
 */
#ifndef MS_STORE_MZG2_BUILD_H
#define MS_STORE_MZG2_BUILD_H

#include "store/mzg2_manifest.h"

typedef struct ms_mzg2_job_options {
    unsigned jobs;   /* layers worked on at a time; 0: all processors */
    bool signs;      /* build: keep the signs of zeros in cold/ */
    bool recheck;    /* build: hash the layers that a resumed build keeps */
    bool fast;       /* verify: file digests only */
    uint32_t tables; /* build: nibble tables a matrix kind, 1..16; 0: 8 */
    bool (*progress)(void *arg, uint64_t done_bytes, uint64_t total_bytes); /* of experts; false cancels; may be NULL */
    void *progress_arg;
} ms_mzg2_job_options;

typedef struct ms_mzg2_report {
    uint32_t layers, kept_layers; /* kept: from an earlier, unfinished build */
    uint64_t experts, canonical_bytes, payload_bytes, stored_bytes;
    uint8_t manifest_sha[MS_SHA256_BYTES];
} ms_mzg2_report;


ms_status ms_mzg2_build(const char *dir, const ms_mzg2_source *source, const ms_mzg2_job_options *o,
                        ms_mzg2_report *report, ms_error *err);
/* One layer (index among the routed ones) into a file that appears whole; an existing target is refused. */
ms_status ms_mzg2_build_layer(const char *path, const ms_mzg2_source *source, uint32_t moe_layer,
                              const ms_mzg2_job_options *o, ms_mzg2_layer_record *record, ms_error *err);

/* Every file digest, and unless `fast` every block decoded and compared: with the digests, and with the source when it
 * is given.  The first damage is the error, naming layer, expert and tile. */
ms_status ms_mzg2_verify(const char *dir, const ms_mzg2_source *source, const ms_mzg2_job_options *o,
                         ms_mzg2_report *report, ms_error *err);

/* Writes the source bytes of a layer's experts, one behind the other, to a new file: with the signs of zeros when the
 * store has them and `canonical` is false; checked against the SHA-256 in the layer's header. */
ms_status ms_mzg2_restore(const char *dir, uint32_t layer, const char *path, bool canonical, ms_error *err);

#endif
