/* SPDX-License-Identifier: Apache-2.0 */
/*
 * replay.c - runs a fuzz target over the files of its corpus, with any compiler.
 * Usage: TARGET FOLDER. It fails where the folder has no file.
 */
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "input.h"

/* In memory of just its size, so that the sanitizer sees its end. */
static void run(const char *path)
{
	FILE *file = fopen(path, "rb");
	struct stat st;
	uint8_t *data;

	CHECK(file && stat(path, &st) == 0);
	data = malloc((size_t)st.st_size + !st.st_size);
	CHECK(data && fread(data, 1, (size_t)st.st_size, file) == (size_t)st.st_size);
	fclose(file);
	LLVMFuzzerTestOneInput(data, (size_t)st.st_size);
	free(data);
}

int main(int argc, char **argv)
{
	const char *name = strrchr(argv[0], '/');
	DIR *dir = opendir(argc == 2 ? argv[1] : "");
	const struct dirent *entry;
	char path[4096];
	int n = 0;

	while (dir && (entry = readdir(dir))) {
		if (entry->d_name[0] == '.')
			continue;
		snprintf(path, sizeof path, "%s/%s", argv[1], entry->d_name);
		run(path);
		n++;
	}
	if (dir)
		closedir(dir);
	if (n == 0) {
		fprintf(stderr, "%s: no corpus: usage: %s FOLDER\n", argv[0], argv[0]);
		return 2;
	}
	printf("%s: %d inputs\n", name ? name + 1 : argv[0], n);
	return 0;
}
