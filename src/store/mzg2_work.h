/* mzg2_work.h: what the jobs of a build or a verification share: buffers of one job, one common outcome, output files.
 */
#ifndef MS_STORE_MZG2_WORK_H
#define MS_STORE_MZG2_WORK_H

#include <pthread.h>

#include "store/mzg2_build.h"
#include "store/mzg2_encode.h"
#include "store/mzg2_signs.h"

/* ------------------------------------------------------------------ outcome of all jobs */

typedef struct mzg2_outcome {
    pthread_mutex_t lock;
    ms_status status; /* the first failure */
    ms_error error;
    uint64_t done_bytes, total_bytes;
    const ms_mzg2_job_options *options;
} mzg2_outcome;

void mzg2_outcome_init(mzg2_outcome *o, const ms_mzg2_job_options *options, uint64_t total_bytes);
void mzg2_outcome_fini(mzg2_outcome *o);
/* Whether to go on. */
bool mzg2_outcome_good(mzg2_outcome *o);
void mzg2_outcome_fail(mzg2_outcome *o, ms_status status, const ms_error *err);
/* So many bytes of experts more are done. */
void mzg2_outcome_progress(mzg2_outcome *o, uint64_t bytes);

/* ------------------------------------------------------------------ one job */

typedef struct mzg2_worker {
    uint8_t *source, *canonical, *block, *slot, *image, *signs;
    ms_mzg2_fit *fit; /* build only; made for each layer */
    ms_mzg2_tables *tables;
} mzg2_worker;

ms_status mzg2_worker_init(mzg2_worker *w, ms_expert_shape s, ms_error *err);
void mzg2_worker_free(mzg2_worker *w);

/* Reads an expert's source bytes, in the store's order, and checks its scales. */
ms_status mzg2_read_source(uint8_t *out, const ms_mzg2_source *s, uint32_t moe_layer, uint32_t expert, ms_error *err);

/* ------------------------------------------------------------------ files */

/* DIR/NAME; MS_ERR_USAGE when it is too long. */
enum { MZG2_PATH = 4096 };
ms_status mzg2_path(char out[MZG2_PATH], const char *dir, const char *name, ms_error *err);

/* A new file, written from front to back, that is there under its temporary name until it is finished. */
typedef struct mzg2_output {
    char temporary[MZG2_PATH], path[MZG2_PATH];
    int fd;
    uint64_t at;
} mzg2_output;
ms_status mzg2_output_open(mzg2_output *o, const char *path, ms_error *err);
ms_status mzg2_output_write(mzg2_output *o, const void *data, size_t length, ms_error *err);
ms_status mzg2_output_patch(mzg2_output *o, uint64_t at, const void *data, size_t length, ms_error *err);
/* Syncs, hashes what the disk gives back, and renames; an existing target is refused unless `replace`. */
ms_status mzg2_output_finish(mzg2_output *o, bool replace, uint8_t sha[MS_SHA256_BYTES], ms_error *err);
/* Length of a file's name without what marks it as temporary. */
size_t mzg2_output_name(const char *name);
void mzg2_output_drop(mzg2_output *o); /* closes; removes the temporary file when it is still there */

ms_status mzg2_sync_dir(const char *dir, ms_error *err);

/* Writes a layer file, and the file of signs when signs_path is not NULL. */
ms_status mzg2_write_layer(mzg2_worker *w, const ms_mzg2_source *s, uint32_t moe_layer, const ms_mzg2_parameters *p,
                           const char *path, const char *signs_path, bool replace, mzg2_outcome *outcome,
                           ms_mzg2_layer_record *record, ms_error *err);

#endif
