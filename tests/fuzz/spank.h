/* SPDX-License-Identifier: Apache-2.0 */
/* spank.h - Slurm's side of the plugin, as far as the targets need it: what a job may
 * choose comes from the fuzzer. Include once. */
#ifndef FUZZ_SPANK_H
#define FUZZ_SPANK_H

#include <stdarg.h>
#include <stdio.h>

#include <slurm/spank.h>

#include "input.h"

#define MOST_VARIABLES_SEEN 32

/* The environment of the task: name, value. */
static struct {
	const char *name, *value;
} task_environ[MOST_VARIABLES_SEEN];
static unsigned task_variables;
static uint32_t task_job, task_uid;
static unsigned said;

static void say_line(const char *format, va_list args)
{
	char line[4096];

	CHECK(vsnprintf(line, sizeof line, format, args) > 0);
	said++;
}

void slurm_error(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say_line(format, args);
	va_end(args);
}

void slurm_info(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say_line(format, args);
	va_end(args);
}

void slurm_verbose(const char *format, ...)
{
	va_list args;

	va_start(args, format);
	say_line(format, args);
	va_end(args);
}

spank_err_t spank_getenv(spank_t spank, const char *name, char *to, int size)
{
	(void)spank;
	for (unsigned i = 0; i < task_variables; i++) {
		if (strcmp(task_environ[i].name, name))
			continue;
		if (strlen(task_environ[i].value) >= (size_t)size)
			return ESPANK_NOSPACE;
		strcpy(to, task_environ[i].value);
		return ESPANK_SUCCESS;
	}
	return ESPANK_ENV_NOEXIST;
}

spank_err_t spank_setenv(spank_t spank, const char *name, const char *value, int overwrite)
{
	(void)spank;
	CHECK(overwrite == 1 && strlen(name) < 65536 && strlen(value) < 65536);
	CHECK(!strchr(name, '='));
	return *name ? ESPANK_SUCCESS : ESPANK_BAD_ARG;
}

spank_err_t spank_get_item(spank_t spank, spank_item_t item, ...)
{
	va_list args;

	(void)spank;
	va_start(args, item);
	*va_arg(args, uint32_t *) = item == S_JOB_ID ? task_job : item == S_TASK_ID ? 0 : task_uid;
	va_end(args);
	return ESPANK_SUCCESS;
}

const char *spank_strerror(spank_err_t err)
{
	return err == ESPANK_SUCCESS ? "none" : "some error";
}

#endif
