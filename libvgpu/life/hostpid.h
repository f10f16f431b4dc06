/* SPDX-License-Identifier: Apache-2.0 */
/* hostpid.h - which pid this process has outside its PID namespace. */
#ifndef VGPU_LIFE_HOSTPID_H
#define VGPU_LIFE_HOSTPID_H

/* Writes it to this process's slot, 0 when it cannot be learned. May wait for gresd for a second
 * or two. */
void vgpu_host_pid(void);

#endif
