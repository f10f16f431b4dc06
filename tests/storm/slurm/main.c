/* SPDX-License-Identifier: Apache-2.0 */
/*
 * scontrol, squeue and scancel for a storm of jobs without a Slurm: the jobs that
 * live are the files of the folder "jobs" beside the program, each the text that
 * scontrol prints of it. It is written in C because gresd starts one for each
 * grant, and the storm measures gresd. As "slurmstepd: [7.batch]" it is a process of job 7.
 */
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static int list(void)
{
	DIR *dir = opendir("jobs");
	struct dirent *entry;

	if (!dir) {
		perror("jobs");
		return 1;
	}
	while ((entry = readdir(dir)) != NULL)
		if (entry->d_name[0] != '.')
			puts(entry->d_name);
	closedir(dir);
	return fflush(stdout) != 0;
}

static int is_down(void)
{
	if (access("down", F_OK) != 0)
		return 0;
	fputs("slurm_load_jobs error: Unable to contact slurm controller (connect failure)\n",
	      stderr);
	return 1;
}

static int show(const char *job)
{
	char path[64], text[8192];
	ssize_t n;
	int fd;

	snprintf(path, sizeof(path), "jobs/%s", job);
	fd = open(path, O_RDONLY);
	if (fd < 0) {
		fputs("slurm_load_jobs error: Invalid job id specified\n", stderr);
		return 1;
	}
	n = read(fd, text, sizeof(text));
	close(fd);
	return n <= 0 || write(STDOUT_FILENO, text, (size_t)n) != n;
}

int main(int argc, char **argv)
{
	char *slash = strrchr(argv[0], '/');

	if (strncmp(argv[0], "slurmstepd:", 11) == 0)
		return getchar(); /* until the caller ends */
	if (!slash || argc < 2)
		return 1;
	*slash = '\0';
	if (chdir(argv[0]) != 0) {
		perror(argv[0]);
		return 1;
	}
	if (is_down())
		return 1;
	if (strcmp(slash + 1, "squeue") == 0)
		return list();
	/* scontrol [--local] show … ID */
	for (int i = 1; i < argc && strcmp(slash + 1, "scontrol") == 0; i++)
		if (strcmp(argv[i], "show") == 0)
			return show(argv[argc - 1]);
	return 0;
}
