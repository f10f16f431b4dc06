/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nvidia-smi.c - what INSTALL.md asks of NVIDIA's tool, for the simulated driver:
 * nvidia-smi --query-gpu=memory.total --format=csv
 */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct memory {
	unsigned long long total, free, used;
};

int main(int argc, char **argv)
{
	void *lib = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	int (*init)(void), (*count)(unsigned *), (*card)(unsigned, void **);
	int (*memory)(void *, struct memory *);
	unsigned n;

	if (argc != 3 || strcmp(argv[1], "--query-gpu=memory.total") != 0 ||
	    strcmp(argv[2], "--format=csv") != 0) {
		fprintf(stderr, "nvidia-smi: want --query-gpu=memory.total --format=csv\n");
		return 2;
	}
	if (!lib) {
		fprintf(stderr, "nvidia-smi: %s\n", dlerror());
		return 1;
	}
	*(void **)&init = dlsym(lib, "nvmlInit_v2");
	*(void **)&count = dlsym(lib, "nvmlDeviceGetCount_v2");
	*(void **)&card = dlsym(lib, "nvmlDeviceGetHandleByIndex_v2");
	*(void **)&memory = dlsym(lib, "nvmlDeviceGetMemoryInfo");
	if (!init || !count || !card || !memory || init() != 0 || count(&n) != 0)
		return 1;
	printf("memory.total [MiB]\n");
	for (unsigned i = 0; i < n; i++) {
		struct memory m;
		void *handle;

		if (card(i, &handle) != 0 || memory(handle, &m) != 0)
			return 1;
		printf("%llu MiB\n", m.total >> 20);
	}
	return 0;
}
