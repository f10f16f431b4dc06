/* SPDX-License-Identifier: Apache-2.0 */
/* atomics.h - reads and writes of the grant and the cache, which processes share. */
#ifndef VGPU_ATOMICS_H
#define VGPU_ATOMICS_H

#define LOAD(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
#define CAS(p, old, new) \
	__atomic_compare_exchange_n((p), (old), (new), false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

#endif
