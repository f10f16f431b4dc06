/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/spank.h>

#include "plugin.h"

enum {
#define OPTION(id, ...) id,
#include "../options/options.def"
#undef OPTION
	OPTIONS
};

/* One option: how slurm shows it, what it takes, and under which name its
 * value goes to Prolog and job_submit.lua (there with SPANK_ before it). inherited: under
 * which name an option goes with a job by Slurm. */
static const struct {
	char *name;
	char *takes;
	char *usage;
	const char *variable, *inherited;
	bool (*valid)(const char *text);
	const char *want;
	const char *example;
} table[OPTIONS] = {
#define OPTION(id, name, takes, usage, valid, want, example)       \
	[id] = {"vgpu-" name,                                      \
		takes,                                             \
		"vgpu: " usage,                                    \
		"SLURM_SPANK_VGPU_" #id,                           \
		"SLURM_SPANK__SLURM_SPANK_OPTION_vgpu_vgpu_" name, \
		valid,                                             \
		want,                                              \
		example},
#include "../options/options.def"
#undef OPTION
};

/* How much of a wrong value is repeated; as in gresd/request and job_submit.lua. */
#define VGPU_SHOWN 64

/* What this process was given. sbatch runs the callback for the script's own
 * options and for the command line, in slurm's order: the last one counts. */
static char given[OPTIONS][64];

/* Runs in the client for what the user typed, and again in slurmstepd. There
 * (remote) a failure would drain the node, and the value is not used. */
static int take(int which, const char *value, int remote)
{
	char line[VGPU_SHOWN + 1], shown[VGPU_SHOWN + 1];
	char *p;

	if (remote)
		return 0;
	if (!value)
		value = "";
	if (!strcmp(value, "none")) { /* takes an option of the script back */
		given[which][0] = '\0';
		return 0;
	}
	if (strlen(value) < sizeof(given[0]) && table[which].valid(value)) {
		/* It takes the options of plugins, and sends none of them. */
		if (!strcmp(program_invocation_short_name, "scrontab")) {
			slurm_error("vgpu: --%s: \"%s\": scrontab sends no option of a plugin: "
				    "want --comment=vgpu(%s=%s)",
				    table[which].name, value, table[which].name + strlen("vgpu-"),
				    value);
			return -1;
		}
		snprintf(given[which], sizeof(given[which]), "%s", value);
		return 0;
	}
	snprintf(line, sizeof(line), "%s", value);
	for (p = line; *p; p++)
		*p = *p == '\n' ? '?' : *p;
	vgpu_printable(shown, sizeof(shown), line);
	slurm_error("vgpu: --%s: \"%s\": want %s, for example --%s=%s", table[which].name, shown,
		    table[which].want, table[which].name, table[which].example);
	return -1;
}

int vgpu_options_register(spank_t spank)
{
	int i;

	for (i = 0; i < OPTIONS; i++) {
		struct spank_option option = {
			.name = table[i].name,
			.arginfo = table[i].takes,
			.usage = table[i].usage,
			.has_arg = 1,
			.val = i,
			.cb = take,
		};
		spank_err_t err = spank_option_register(spank, &option);

		if (err != ESPANK_SUCCESS) {
			slurm_error("vgpu: --%s: register: %s", table[i].name, spank_strerror(err));
			return -1;
		}
	}
	return 0;
}

/* Inside a job the environment names the options of that job, and sbatch and
 * salloc would take them as if they had been typed for the new one, and hand
 * them on to its steps. */
void vgpu_options_forget_inherited(void)
{
	int i;

	for (i = 0; i < OPTIONS; i++) {
		unsetenv(table[i].inherited);
		unsetenv(table[i].variable);
	}
}

/* A step has the limits of its job, and inherits the options of the job: what differs
 * from those was typed, and would be taken for granted. It is not sent: the first step
 * on a node may be what brings the options of the job there. */
void vgpu_options_keep_job(void)
{
	const char *job = getenv("SLURM_JOB_ID");
	int i;

	for (i = 0; job && i < OPTIONS; i++) {
		const char *of_job = getenv(table[i].variable);

		if (of_job && (strlen(of_job) >= sizeof(given[0]) || !table[i].valid(of_job)))
			of_job = NULL; /* the user's own words */
		if (given[i][0] && (!of_job || strcmp(of_job, given[i])))
			slurm_info("vgpu: --%s: no effect: a step has the limits of its job %s; "
				   "give it to sbatch or salloc",
				   table[i].name, job);
		snprintf(given[i], sizeof(given[i]), "%s", of_job ? of_job : "");
	}
}

/* Sends the values with the job. The raw option variables that slurm itself
 * sends are not usable: slurmd drops every second one when any plugin of the
 * site has a job_prolog. */
int vgpu_options_publish(spank_t spank)
{
	int i;

	for (i = 0; i < OPTIONS; i++) {
		spank_err_t err;

		if (!given[i][0])
			continue;
		err = spank_job_control_setenv(spank, table[i].variable + strlen("SLURM_SPANK_"),
					       given[i], 1);
		if (err != ESPANK_SUCCESS) {
			slurm_error("vgpu: --%s: send with the job: %s", table[i].name,
				    spank_strerror(err));
			return -1;
		}
	}
	return 0;
}
