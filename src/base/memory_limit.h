/* memory_limit.h: how much memory this process may still use.
 *
 * The smaller of MemAvailable (/proc/meminfo) and the room of every memory cgroup from the process's own up to
 * the top of what is mounted.  A cgroup's room is its limit less its usage plus the inactive file pages counted
 * in that usage, which the kernel gives back before it refuses.  cgroup v2 (memory.max, and memory.high, beyond
 * which the kernel only throttles and reclaims), v1 (memory.limit_in_bytes) and both at once are understood.
 *
 * Threads: any.  Owns nothing.
 * Errors: MS_ERR_FORMAT naming the file and what was expected; a missing cgroup file means no limit there.
 */
#ifndef MS_BASE_MEMORY_LIMIT_H
#define MS_BASE_MEMORY_LIMIT_H

#include "base/error.h"

#define MS_MEMORY_UNLIMITED UINT64_MAX

typedef struct ms_memory_limit {
    uint64_t limit_bytes;     /* what this process may still use: the smaller of the next two */
    uint64_t available_bytes; /* MemAvailable */
    uint64_t cgroup_bytes;    /* least room of any cgroup level; MS_MEMORY_UNLIMITED when none limits */
    char source[512];         /* "MemAvailable", or the folder of the cgroup that decides; may be cut short */
} ms_memory_limit;

/* `root` is put in front of every path ("" or NULL: the running system); tests give a folder with a made-up
 * proc/meminfo, proc/self/cgroup, proc/self/mountinfo and cgroup tree. */
ms_status ms_memory_limit_read(ms_memory_limit *out, const char *root, ms_error *err);

#endif
