// SPDX-License-Identifier: Apache-2.0
/*
 * limits.c - the driver's own memory limits for cgroups, from r615 on; go-nvml does not have
 * them. The function and its structure are as NVIDIA documents them:
 * docs.nvidia.com/deploy/nvml-api/api/structnvmlSetMemoryLimits__v1__t.html and
 * docs.nvidia.com/deploy/mps/latest/mpsv3-memory-partitioning.html. No such driver was at hand.
 */
#include <dlfcn.h>
#include <stddef.h>

#include "limits.h"

struct set_limits {
	const char *name_space; /* the cgroup's folder */
	unsigned long long soft, hard;
};

int limits_set(const char *library, const char *uuid, const char *folder, unsigned long long most)
{
	void *lib = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
	int (*handle_of)(const char *, void **) = NULL;
	int (*set)(void *, struct set_limits *) = NULL;
	/* Without a soft limit nothing is reserved in the folders above, and nothing is left of
	 * it there when Slurm removes this one. */
	struct set_limits limits = {folder, 0, most};
	void *card = NULL;
	int rc = LIMITS_MISSING;

	if (!lib)
		return rc;
	handle_of = (int (*)(const char *, void **))dlsym(lib, "nvmlDeviceGetHandleByUUID");
	set = (int (*)(void *, struct set_limits *))dlsym(lib, "nvmlDeviceSetMemoryLimits_v1");
	if (handle_of && set) {
		rc = handle_of(uuid, &card);
		if (!rc)
			rc = set(card, &limits);
	}
	dlclose(lib);
	return rc;
}
