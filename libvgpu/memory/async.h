/* SPDX-License-Identifier: Apache-2.0 */
/* async.h - which pool an asynchronous allocation takes from. */
#ifndef VGPU_MEMORY_ASYNC_H
#define VGPU_MEMORY_ASYNC_H

/* Which one is current on a device may have changed. */
void vgpu_pools_forget_current(void);

#endif
