/* SPDX-License-Identifier: Apache-2.0 */
/* plugin.c - a library that calls the driver: linked to it (-DLINKED), or by dlopen and dlsym;
 * -DAT_ONCE: also when it is loaded. */
#include <dlfcn.h>
#include <string.h>

void *plugin_find(const char *name);

#ifdef LINKED
#define NAMES(X)               \
	X(cuInit)              \
	X(cuDeviceGet)         \
	X(cuMemGetInfo_v2)     \
	X(cuCtxCreate_v2)      \
	X(cuMemAlloc_v2)       \
	X(cuModuleLoadData)    \
	X(cuModuleGetFunction) \
	X(cuLaunchKernel)      \
	X(cuCtxSynchronize)
/* Whatever its type is: only its address is taken. */
#define DECLARE(function) extern char linked_##function[] __asm__(#function);
NAMES(DECLARE)
void *plugin_find(const char *name)
{
#define IF_NAMED(function)                \
	if (strcmp(name, #function) == 0) \
		return linked_##function;
	NAMES(IF_NAMED)
	return NULL;
}
#else
void *plugin_find(const char *name)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);

	return driver ? dlsym(driver, name) : NULL;
}
#endif

#ifdef AT_ONCE
static __attribute__((constructor)) void at_once(void)
{
	plugin_find("cuInit");
}
#endif
