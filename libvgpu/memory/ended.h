/* SPDX-License-Identifier: Apache-2.0 */
/* ended.h - memory of processes that have ended, given back when it is needed. */
#ifndef VGPU_MEMORY_ENDED_H
#define VGPU_MEMORY_ENDED_H

#include <stdbool.h>
#include <stdint.h>

/* Before an allocation is refused: frees what processes of other PID
 * namespaces have held, if bytes may fit then. True when it is worth to try again. Takes
 * a millisecond or two where gresd answers that none has ended, and up to VGPU_GRACE_NS
 * more where one has just; 0.75 s at most, where gresd is slow. */
bool vgpu_ended_make_room(int card, uint64_t bytes);

#endif
