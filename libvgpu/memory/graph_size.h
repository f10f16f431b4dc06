/* SPDX-License-Identifier: Apache-2.0 */
/*
 * graph_size.h - the memory that a graph allocates. The driver gives each allocation node its
 * addresses when the node is made. Nodes that never have memory at the same time can have the same
 * addresses. A graph takes memory once for each address, so its size is the union of the address
 * ranges of its nodes, child graphs included.
 */
#ifndef VGPU_MEMORY_GRAPH_SIZE_H
#define VGPU_MEMORY_GRAPH_SIZE_H

#include "../base/util.h"
#include "../driver/cuda_abi.h"

/* On one card. */
struct vgpu_graph_size {
	uint64_t bytes;
	CUdevice dev;
};

/* False: the driver does not say, or there is no memory to find out. */
bool vgpu_graph_size(CUgraph graph, struct vgpu_graph_size on[VGPU_MAX_CARDS]);

#endif
