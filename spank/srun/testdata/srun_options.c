/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Prints the options of the installed srun, as it gives them to getopt: each
 * name with 0 (no value), 1 (a value) or 2 (a value behind "="), then the
 * letters. Argument: the path of libslurmfull.so.
 *
 * A plugin stack could add options at this place of Slurm; this one prints.
 */
#include <dlfcn.h>
#include <getopt.h>
#include <stdio.h>

struct option *spank_option_table_create(const struct option *options);
struct option *spank_option_table_create(const struct option *options)
{
	for (; options->name; options++)
		printf("%s %d\n", options->name, options->has_arg);
	return NULL;
}

int main(int argc, char **argv)
{
	/* Slurm's own type is not public: its first members are pointers to what
	 * salloc, sbatch, scrontab and srun have of their own. */
	static void *commands[4096], *srun[4096];
	struct option *(*create)(void *options, char **letters);
	char *letters = NULL;
	void *library = argc == 2 ? dlopen(argv[1], RTLD_LAZY | RTLD_GLOBAL) : NULL;

	if (library)
		*(void **)&create = dlsym(library, "slurm_option_table_create");
	if (!library || !create) {
		fprintf(stderr, "srun_options: %s\n", argc == 2 ? dlerror() : "usage: FILE");
		return 1;
	}
	commands[3] = srun;
	create(commands, &letters);
	printf("letters %s\n", letters);
	return 0;
}
