/* SPDX-License-Identifier: Apache-2.0 */
/* util.h - what every file may need. */
#ifndef VGPU_BASE_UTIL_H
#define VGPU_BASE_UTIL_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "../region_ops.h"

#define VGPU_EXPORT __attribute__((visibility("default")))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
/* What runs before the runtime of a sanitizer is ready; nothing in a plain build. */
#define VGPU_EARLY __attribute__((no_sanitize("address", "thread", "undefined")))

/* State of one process: a forked child finds zeros in it, and locks that are open. */
#define VGPU_PRIVATE __attribute__((section("vgpu_private")))

/* A thread that is cancelled while it waits in the library would leave locks and counters
 * behind. Returns what vgpu_cancel_as() puts back. */
static inline int vgpu_no_cancel(void)
{
	int before;

	pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &before);
	return before;
}
static inline void vgpu_cancel_as(int before)
{
	pthread_setcancelstate(before, NULL);
}

/* VGPU_NO_CANCEL; does so until the end of the block. */
static inline void vgpu_restore_cancel(const int *before)
{
	vgpu_cancel_as(*before);
}
#define VGPU_NO_CANCEL \
	__attribute__((cleanup(vgpu_restore_cancel), unused)) const int cancel_ = vgpu_no_cancel()

/* VGPU_LOCK(mutex); holds a mutex until the end of the block. VGPU_HOLD takes a locked mutex. */
static inline pthread_mutex_t *vgpu_locked(pthread_mutex_t *mutex)
{
	pthread_mutex_lock(mutex);
	return mutex;
}
static inline void vgpu_unlock(pthread_mutex_t **held)
{
	pthread_mutex_unlock(*held);
}
#define VGPU_HOLD(locked) \
	__attribute__((cleanup(vgpu_unlock), unused)) pthread_mutex_t *held_ = (locked)
#define VGPU_LOCK(mutex) VGPU_HOLD(vgpu_locked(mutex))

/* A hash of two numbers, all of whose bits are good; never 0. A driver's handles
 * differ in few bits, so they are multiplied into all of them (xorshift-multiply). */
static inline uint64_t vgpu_mix(uint64_t a, uint64_t b)
{
	a ^= b + 0x9e3779b97f4a7c15ull + (a << 6) + (a >> 2);
	a = (a ^ a >> 32) * 0xd6e8feb86659fd93ull;
	a ^= a >> 32;
	return a ? a : 1;
}

#endif
