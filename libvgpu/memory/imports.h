/* SPDX-License-Identifier: Apache-2.0 */
/* imports.h - who pays for memory of other processes. */
#ifndef VGPU_MEMORY_IMPORTS_H
#define VGPU_MEMORY_IMPORTS_H

#include <stdbool.h>
#include <stdint.h>

/* So many bytes of other processes' memory more, or less: 0, or -ENOMEM if this process has to pay
 * for them and has no room. */
int vgpu_imports_more(int card, uint64_t bytes);
void vgpu_imports_less(int card, uint64_t bytes);
/* Charges the imports that other processes no longer pay for. True: there were some. */
bool vgpu_imports_settle(int card);
void vgpu_imports_in_child(void);

#endif
