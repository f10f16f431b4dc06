/* SPDX-License-Identifier: Apache-2.0 */
/*
 * forward.c - a libcuda that passes each call to the driver whose path is in FORWARD_TO, as a wrapper of
 * the driver does.
 */
#include <dlfcn.h>
#include <stdlib.h>

#define CU(name, params) void *forward_##name;
#include "../../../libvgpu/driver/hooks.def"
void *forward_cuModuleGetFunction;

#ifdef __x86_64__
#define JUMP(name) "	jmp *forward_" name "(%rip)\n"
#else
#define JUMP(name)                                                                  \
	"	adrp x16, forward_" name "\n	ldr x16, [x16, :lo12:forward_" name \
	"]\n	br x16\n"
#endif
#define FORWARD(name)                                                                        \
	__asm__(".pushsection .text\n.hidden forward_" name "\n.globl " name "\n.type " name \
		", %function\n" name ":\n" JUMP(name) ".size " name ", . - " name            \
						      "\n.popsection\n");
#define CU(name, params) FORWARD(#name)
#define NV(name, params)
#include "../../../libvgpu/driver/hooks.def"
FORWARD("cuModuleGetFunction")

static int not_found(void)
{
	return 500;
}

static void *of(void *driver, const char *name)
{
	void *found = driver ? dlsym(driver, name) : NULL;

	return found ? found : (void *)not_found;
}

static __attribute__((constructor)) void open_driver(void)
{
	const char *path = getenv("FORWARD_TO");
	void *driver = path ? dlopen(path, RTLD_NOW) : NULL;

#define CU(name, params) forward_##name = of(driver, #name);
#define NV(name, params)
#include "../../../libvgpu/driver/hooks.def"
	forward_cuModuleGetFunction = of(driver, "cuModuleGetFunction");
}
