/* mzg2_probe.h: what a store of a checkpoint would save, and whether this host decodes faster than its drive reads.
 *
 * Threads: `threads` of its own while decoding is measured.  Errors: those of reading the source.
 */
#ifndef MS_STORE_MZG2_PROBE_H
#define MS_STORE_MZG2_PROBE_H

#include "store/mzg2_manifest.h"

enum { MS_MZG2_PROBE_FITS = 3 };
extern const uint32_t ms_mzg2_probe_tables[MS_MZG2_PROBE_FITS]; /* 1, 4, 8 */

typedef struct ms_mzg2_probe {
    uint32_t layers, experts;       /* looked at */
    double nibble_bits, scale_bits; /* order 0, negative zeros cleared */
    double order0_saving;
    uint64_t group_max[8];                /* groups by their largest magnitude */
    double saving[MS_MZG2_PROBE_FITS][2]; /* of the payload; [1]: with column classes */
    double stored_saving;                 /* of whole 4 KiB blocks, as read: most tables, with column classes */
    double encode_rate;                   /* canonical bytes a second, one thread */
    double decode_rate;                   /* one thread, hash included */
    double decode_rate_all;               /* all threads together */
    double read_rate;                     /* source bytes a second from the drive; 0: not measured */
    unsigned threads;
    const char *decoder;
} ms_mzg2_probe;

typedef struct ms_mzg2_probe_options {
    unsigned threads; /* 0: all processors */
    bool no_read;     /* leave read_rate 0 */
    bool buffered, no_uring;
} ms_mzg2_probe_options;

ms_status ms_mzg2_probe_run(ms_mzg2_probe *out, const ms_mzg2_source *s, const ms_mzg2_probe_options *o, ms_error *err);

#endif
