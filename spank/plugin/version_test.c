/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plays the loader of a slurm release: version_test vgpu.so. Each release is
 * tried in a child, because plugin_version is set once, when the plugin loads.
 */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <slurm/slurm_version.h>

static long api;
long slurm_api_version(void);
long slurm_api_version(void)
{
	return api << 16 | 0x0300;
}

/* What slurm would give the plugin; none of it is called here. */
#define STUB(name)       \
	void name(void); \
	void name(void)  \
	{                \
		abort(); \
	}
STUB(slurm_error)
STUB(slurm_info)
STUB(slurm_verbose)
STUB(spank_context)
STUB(spank_get_item)
STUB(spank_getenv)
STUB(spank_job_control_setenv)
STUB(spank_option_register)
STUB(spank_setenv)
STUB(spank_strerror)

static unsigned int version_of(const char *plugin)
{
	void *handle = dlopen(plugin, RTLD_LAZY);
	unsigned int *version = handle ? dlsym(handle, "plugin_version") : NULL;

	if (!version)
		fprintf(stderr, "%s\n", dlerror());
	return version ? *version : 0;
}

int main(int argc, char **argv)
{
	static const struct {
		long api;
		unsigned int want;
	} releases[] = {
		{38, 0x160500},
		{39, 0x170200},
		{40, 0x170b00},
		{41, 0x180500},
		{42, 0x180b00},
		{43, 0x190500},
		{44, 0x190b00},
		{45, 0x1a0500},
		{99, SLURM_VERSION_NUMBER}, /* not known: as compiled */
	};
	int failed = 0, status;
	size_t i;

	if (argc != 2)
		return 2;
	for (i = 0; i < sizeof(releases) / sizeof(releases[0]); i++) {
		pid_t child = fork();

		if (child == 0) {
			api = releases[i].api;
			_exit(version_of(argv[1]) != releases[i].want);
		}
		if (waitpid(child, &status, 0) != child || status != 0) {
			fprintf(stderr, "API %ld: want version %#x\n", releases[i].api,
				releases[i].want);
			failed = 1;
		}
	}
	return failed;
}
