/* SPDX-License-Identifier: Apache-2.0 */
/* hooks.h - after a fork, in the child: no contexts, no captures. */
#ifndef VGPU_HOOKS_HOOKS_H
#define VGPU_HOOKS_HOOKS_H

void vgpu_contexts_in_child(void);
void vgpu_primary_in_child(void);
void vgpu_origins_in_child(void);

#endif
