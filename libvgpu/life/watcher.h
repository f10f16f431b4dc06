/* SPDX-License-Identifier: Apache-2.0 */
/* watcher.h - one thread a process. */
#ifndef VGPU_LIFE_WATCHER_H
#define VGPU_LIFE_WATCHER_H

/* Starts the watcher once. Does nothing without a grant. If no thread can be started, sets
 * vgpu_unwatched. */
void vgpu_watcher_start(void);
/* After a fork, in the child: no watcher runs. */
void vgpu_watcher_in_child(void);

#endif
