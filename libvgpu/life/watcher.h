/* SPDX-License-Identifier: Apache-2.0 */
/* watcher.h - one thread a process. */
#ifndef VGPU_LIFE_WATCHER_H
#define VGPU_LIFE_WATCHER_H

/* Starts it, once; does nothing without a grant. Sets vgpu_unwatched where no thread is to be
 * had. */
void vgpu_watcher_start(void);
/* After a fork, in the child: no watcher runs. */
void vgpu_watcher_in_child(void);

#endif
