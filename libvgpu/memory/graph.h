/* SPDX-License-Identifier: Apache-2.0 */
/* graph.h - memory that graphs allocate while they run. */
#ifndef VGPU_MEMORY_GRAPH_H
#define VGPU_MEMORY_GRAPH_H

#include "../driver/cuda_abi.h"

/* A graph launch, with the memory that it allocates. */
CUresult vgpu_graph_launch(CUresult (*real)(CUgraphExec, CUstream), CUgraphExec graph,
			   CUstream stream);
void vgpu_graph_forget(CUgraphExec graph);
/* Brings the charge to what the graphs of a card hold. */
void vgpu_graphs_settle(int card, CUdevice dev);

#endif
