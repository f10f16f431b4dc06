/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The form of the option values. gresd/request is the authority; the plugin
 * repeats the form so that a mistake is told at once, where it was typed, and
 * testdata/options.txt holds both, job_submit.lua and cli_filter.lua to the
 * same answers.
 */
#include <string.h>
#include <strings.h>

#include "../../libvgpu/region.h"
#include "plugin.h"

/* Reads decimal digits from *text and moves it behind them. Leading zeros are
 * refused: elsewhere 010 means eight. False too where the number passes max. */
static bool read_number(const char **text, uint64_t max, uint64_t *number)
{
	const char *p = *text;
	uint64_t n = 0;

	if (*p < '1' || *p > '9')
		return false;
	for (; *p >= '0' && *p <= '9'; p++) {
		uint64_t digit = (uint64_t)(*p - '0');

		if (n > (max - digit) / 10)
			return false;
		n = n * 10 + digit;
	}
	*text = p;
	*number = n;
	return true;
}

static bool is_number_upto(const char *text, uint64_t max)
{
	uint64_t n;

	return read_number(&text, max, &n) && *text == '\0';
}

static bool is_one_of(const char *text, const char *const *words)
{
	while (*words && strcmp(text, *words))
		words++;
	return *words;
}
#define IS_ONE_OF(name, ...)                                                      \
	bool name(const char *text)                                               \
	{                                                                         \
		return is_one_of(text, (const char *const[]){__VA_ARGS__, NULL}); \
	}

/* A size in bytes that fits 64 bits, or a percentage of the card. */
bool vgpu_is_memory(const char *text)
{
	static const char units[] = "KMGT";
	const char *unit;
	uint64_t n;

	if (!read_number(&text, UINT64_MAX, &n))
		return false;
	if (!strcmp(text, "%"))
		return n <= 100;
	if (*text == '\0')
		return true;
	unit = strchr(units, *text & ~0x20);
	if (!unit || (text[1] && strcasecmp(text + 1, "iB")))
		return false;
	return n <= UINT64_MAX >> (10 * (unit - units + 1));
}

bool vgpu_is_percent(const char *text)
{
	return is_number_upto(text, 100);
}

bool vgpu_is_cards(const char *text)
{
	return is_number_upto(text, VGPU_MAX_CARDS);
}

bool vgpu_is_mode(const char *text)
{
	if (!strncmp(text, "soft:", 5))
		return vgpu_is_percent(text + 5);
	return is_one_of(text, (const char *const[]){"hard", "soft", "off", NULL});
}

IS_ONE_OF(vgpu_is_priority, "high", "normal", "low")
IS_ONE_OF(vgpu_is_policy, "binpack", "spread", "topology", "exclusive")
IS_ONE_OF(vgpu_is_engine, "time", "mps", "concurrent", "auto")
