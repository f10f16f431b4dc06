/* SPDX-License-Identifier: Apache-2.0 */
/* late_test.c - the late Prolog of a task, without slurm. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/spank.h>

#include "plugin.h"

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
	(void)spank;
	(void)item;
	return ESPANK_NOT_AVAIL;
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *value, int size)
{
	(void)spank;
	(void)name;
	(void)value;
	(void)size;
	return ESPANK_ENV_NOEXIST;
}

static const struct {
	const char *script;
	bool ignored; /* SIGCHLD: waitpid fails */
	int want;
	const char *says;
} cases[] = {
	{"exit 0", false, 0, ""},
	{"exit 3", false, 1, ""},
	{"echo no room; exit 1", false, -1, "no room"},
	{"kill -9 $$", false, -1, "without a word"},
	{"exit 1", true, -1, "wait for "},
};

int main(void)
{
	char path[] = "/tmp/vgpu-late-XXXXXX";
	int fd = mkstemp(path), failures = 0;
	size_t i;

	if (fd < 0 || fchmod(fd, 0700) || close(fd)) {
		perror(path);
		return 2;
	}
	for (i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		struct vgpu_why why = {""};
		FILE *program = fopen(path, "w");
		int got;

		if (!program || fprintf(program, "#!/bin/sh\n%s\n", cases[i].script) < 0 ||
		    fclose(program)) {
			perror(path);
			return 2;
		}
		signal(SIGCHLD, cases[i].ignored ? SIG_IGN : SIG_DFL);
		got = vgpu_late_prolog(NULL, path, &why);
		if (got == cases[i].want && strstr(why.text, cases[i].says))
			continue;
		fprintf(stderr, "%s: got %d, \"%s\"; want %d\n", cases[i].script, got, why.text,
			cases[i].want);
		failures++;
	}
	unlink(path);
	return failures != 0;
}
