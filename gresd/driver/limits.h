/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VGPU_INVENTORY_LIMITS_H
#define VGPU_INVENTORY_LIMITS_H

/* What NVML answers, or LIMITS_MISSING where it has no such function. */
#define LIMITS_MISSING (-1)

/* Limits what the processes of a cgroup have of a card. library has been started. */
int limits_set(const char *library, const char *uuid, const char *folder, unsigned long long most);

#endif
