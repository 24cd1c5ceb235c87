/* memory_cap.h: puts this process into a memory cgroup of its own, where the system lets it.
 *
 * v1: a child of the process's memory cgroup.  v2: a sibling, because a cgroup that holds processes cannot hand the
 * memory controller to a child; the parent must have handed it down.  The usual mount points are expected.  Memory that
 * the process already has stays counted where it was.
 *
 * Owns: the folder, until ms_memory_cap_leave.  A process that dies before leaves an empty cgroup "moonshine-cap-PID".
 * Threads: call before other threads start, or all of them move along (a cgroup holds processes).
 * Errors: MS_ERR_UNSUPPORTED (no memory controller), MS_ERR_IO naming the file; the process is then where it was.
 */
#ifndef MS_BASE_MEMORY_CAP_H
#define MS_BASE_MEMORY_CAP_H

#include "base/error.h"

typedef struct ms_memory_cap {
    char folder[4096]; /* of the new cgroup; "": none */
    char home[4096];   /* of the cgroup that the process came from */
} ms_memory_cap;

/* `root` is put in front of every path (NULL: the running system); tests give a made-up tree. */
ms_status ms_memory_cap_enter(ms_memory_cap *out, const char *root, uint64_t bytes, ms_error *err);
/* Back to where the process came from; removes the cgroup.  Nothing to do after a failed enter. */
void ms_memory_cap_leave(ms_memory_cap *c);

#endif
