/* SPDX-License-Identifier: Apache-2.0 */
/* atomic.h - what threads and processes share is read and written in sequentially consistent steps. */
#ifndef VGPU_ATOMIC_H
#define VGPU_ATOMIC_H

#define LOAD(p) __atomic_load_n((p), __ATOMIC_SEQ_CST)
#define STORE(p, v) __atomic_store_n((p), (v), __ATOMIC_SEQ_CST)
#define EXCHANGE(p, v) __atomic_exchange_n((p), (v), __ATOMIC_SEQ_CST)
/* These return the new value. */
#define ADD(p, n) __atomic_add_fetch((p), (n), __ATOMIC_SEQ_CST)
#define SUB(p, n) __atomic_sub_fetch((p), (n), __ATOMIC_SEQ_CST)
/* False: *p is not *old, and *old becomes *p. */
#define CAS(p, old, new) \
	__atomic_compare_exchange_n((p), (old), (new), 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)

#endif
