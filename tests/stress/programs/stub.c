/* SPDX-License-Identifier: Apache-2.0 */
/*
 * stub.c - a libcuda with two functions, which tells when the second is looked up: its address
 * is computed then.
 */
int stub_resolving;
int cuInit(unsigned flags);
int cuDevicePrimaryCtxRetain(void **ctx, int dev);

int cuInit(unsigned flags)
{
	(void)flags;
	return 0;
}

static int retain(void **ctx, int dev)
{
	(void)ctx;
	return dev;
}

static int (*resolve_retain(void))(void **, int)
{
	__atomic_store_n(&stub_resolving, 1, __ATOMIC_RELEASE);
	return retain;
}
int cuDevicePrimaryCtxRetain(void **ctx, int dev) __attribute__((ifunc("resolve_retain")));
