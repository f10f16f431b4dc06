/* SPDX-License-Identifier: Apache-2.0 */
/* gate.h - the gates, one for each card. */
#ifndef VGPU_COMPUTE_GATE_H
#define VGPU_COMPUTE_GATE_H

#include "gates.h"

extern struct gate vgpu_gates[VGPU_MAX_CARDS];

#endif
