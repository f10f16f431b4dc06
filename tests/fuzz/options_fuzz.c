/* SPDX-License-Identifier: Apache-2.0 */
/*
 * options_fuzz.c - what users type behind --vgpu-…, and what an administrator writes
 * behind the plugin in plugstack.conf. A value is sent with the job as it was typed, or
 * refused with a line about it; a wrong argument is kept, and said.
 */
#define _GNU_SOURCE
#include "spank.h"

#define take take_option
#include "../../spank/plugin/options.c"
#undef take

static struct spank_option registered[OPTIONS];
static unsigned count, published;

spank_err_t spank_option_register(spank_t spank, struct spank_option *option)
{
	(void)spank;
	CHECK(count < OPTIONS);
	registered[count++] = *option;
	return ESPANK_SUCCESS;
}

spank_err_t spank_job_control_setenv(spank_t spank, const char *name, const char *value, int over)
{
	(void)spank;
	CHECK(over == 1 && !strncmp(name, "VGPU_", 5) && *value);
	published++;
	return ESPANK_SUCCESS;
}

static void check_number(const char *text, bool valid, unsigned most)
{
	char again[64];
	unsigned long n = strtoul(text, NULL, 10);

	if (!valid)
		return;
	snprintf(again, sizeof again, "%lu", n);
	CHECK(n >= 1 && n <= most && !strcmp(again, text));
}

static void check_option(unsigned i, const char *text)
{
	const struct spank_option *o = &registered[i];
	unsigned before = said;

	given[i][0] = '\0';
	if (o->cb(o->val, text, 0) == 0) {
		CHECK(said == before && !strcmp(given[i], text) && table[i].valid(text));
	} else {
		CHECK(said == before + 1 && !given[i][0]);
	}
	CHECK(o->cb(o->val, text, 1) == 0); /* in slurmstepd nothing may fail */
	published = 0;
	CHECK(vgpu_options_publish(NULL) == 0 && published <= OPTIONS);
}

static void check_config(struct input *in)
{
	struct vgpu_config c;
	char *argv[8];
	int argc = 0;

	for (unsigned n = (unsigned)take(in, 1) % 8; n; n--)
		argv[argc++] = take_text(in);
	vgpu_config_read(&c, argc, argv);
	CHECK(c.run_dir[0] == '/' && c.library[0] == '/' && c.prolog[0] == '/');
	CHECK(c.enforce <= VGPU_ENFORCE_OFF);
	CHECK(strnlen(c.wrong.text, sizeof c.wrong.text) < sizeof c.wrong.text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {.at = data, .left = size};
	char out[64];
	const char *text;
	size_t most;

	if (count == 0)
		CHECK(vgpu_options_register(NULL) == 0 && count == OPTIONS);
	most = 1 + take(&in, 1) % sizeof out;
	check_config(&in);
	text = take_text(&in);
	for (unsigned i = 0; i < OPTIONS; i++)
		check_option(i, text);
	check_number(text, vgpu_is_percent(text), 100);
	check_number(text, vgpu_is_cards(text), 16);
	vgpu_printable(out, most, text);
	check_line(out, most);
	give_back(&in);
	return 0;
}
