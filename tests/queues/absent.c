/* SPDX-License-Identifier: Apache-2.0 */
/* absent.c - a program without OpenCL, Vulkan and OpenGL finds none of their functions: 0, or the first it finds. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
	static const char *const names[] = {"clFinish",         "clEnqueueNDRangeKernel",
					    "vkQueueSubmit",    "vkGetInstanceProcAddr",
					    "glFlush",          "glXGetProcAddressARB",
					    "eglGetProcAddress"};

	for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
		if (dlsym(RTLD_DEFAULT, names[i]) || dlsym(dlopen(NULL, RTLD_NOW), names[i]) ||
		    dlsym(RTLD_NEXT, names[i])) {
			printf("{\"found\":\"%s\"}\n", names[i]);
			return 1;
		}
	printf("{}\n");
	return 0;
}
