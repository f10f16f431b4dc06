// SPDX-License-Identifier: Apache-2.0

// Package topology judges how the cards of a node are joined: a tree of PCIe
// levels, NVLink over it, NUMA nodes and processors. It is pure: what the
// driver says comes in as [Facts], and what follows from it is a [Topology].
// Others that only ask what is near take a [Matrix].
//
// Anything may be unknown. A driver that does not know a call, or does not
// answer, makes the picture poorer and never an error.
package topology
