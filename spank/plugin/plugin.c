/* SPDX-License-Identifier: Apache-2.0 */
/*
 * vgpu.so - the SPANK plugin of slurm-vgpu: which callback does what.
 *
 *   client (sbatch, salloc, srun)  init           register options
 *                                  option         check the value (options.c)
 *                                  init_post_opt  send the values with the job
 *   slurmstepd                     init           register options
 *     task                         task_init_privileged  grant, limits (taskenv.c)
 *                                  task_init      variables (jobenv.c)
 *
 * There is no job_prolog or job_epilog on purpose: each would start one more
 * process per job, and clear the options before Prolog sees them.
 */
#include <dlfcn.h>

#include <slurm/slurm_version.h>
#include <slurm/spank.h>

#include "plugin.h"

const char plugin_name[] = "vgpu";
const char plugin_type[] = "spank";
unsigned int plugin_version = SLURM_VERSION_NUMBER;

static struct vgpu_config config;

/* What slurm_api_version() says of a release, and the release. Slurm loads a
 * plugin only when plugin_version names the running release, but the SPANK
 * interface used here is the same in all of these. */
static const struct {
	unsigned int api;
	unsigned int release;
} releases[] = {
	{38, SLURM_VERSION_NUM(22, 5, 0)},  {39, SLURM_VERSION_NUM(23, 2, 0)},
	{40, SLURM_VERSION_NUM(23, 11, 0)}, {41, SLURM_VERSION_NUM(24, 5, 0)},
	{42, SLURM_VERSION_NUM(24, 11, 0)}, {43, SLURM_VERSION_NUM(25, 5, 0)},
	{44, SLURM_VERSION_NUM(25, 11, 0)}, {45, SLURM_VERSION_NUM(26, 5, 0)},
};

/* The loader runs this before slurm reads plugin_version. A release that is not
 * in the table keeps the version of the headers that this was compiled with. */
__attribute__((constructor)) static void set_plugin_version(void)
{
	long (*api_version)(void);
	size_t i;

	*(void **)&api_version = dlsym(RTLD_DEFAULT, "slurm_api_version");
	if (!api_version)
		return;
	for (i = 0; i < sizeof(releases) / sizeof(releases[0]); i++) {
		if (releases[i].api == (((unsigned long)api_version() >> 16) & 0xff))
			plugin_version = releases[i].release;
	}
}

static bool is_client(void)
{
	spank_context_t context = spank_context();

	return context == S_CTX_LOCAL || context == S_CTX_ALLOCATOR;
}

int slurm_spank_init(spank_t spank, int argc, char **argv)
{
	if (!is_client() && spank_context() != S_CTX_REMOTE)
		return 0;
	if (spank_context() == S_CTX_ALLOCATOR)
		vgpu_options_forget_inherited();
	vgpu_config_read(&config, argc, argv);
	/* slurmstepd needs the options too, or it calls them unknown. */
	if (vgpu_options_register(spank) && is_client())
		return -1;
	return 0;
}

int slurm_spank_init_post_opt(spank_t spank, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	if (spank_context() == S_CTX_LOCAL)
		vgpu_options_keep_job();
	return is_client() ? vgpu_options_publish(spank) : 0;
}

int slurm_spank_task_init_privileged(spank_t spank, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	vgpu_task_prepare(spank, &config);
	return 0;
}

int slurm_spank_task_init(spank_t spank, int argc, char **argv)
{
	(void)argc;
	(void)argv;
	vgpu_task_environment(spank, &config);
	return 0;
}
