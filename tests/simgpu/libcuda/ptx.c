// SPDX-License-Identifier: Apache-2.0
/*
 * ptx.c - what the simulation reads from a module's text.
 *
 * Kernels are not executed. Their names and parameters are read from
 * `.entry`, the size of global variables from `.global`, and what a kernel
 * costs from a comment that a real assembler ignores:
 *
 *   // simgpu: entry=<name> ns_per_unit=<float> unit_param=<index>
 *
 * The kernel takes ns_per_unit times the unsigned argument unit_param.
 * count_param=<index>: argument is the address of a u32 that each finished
 * launch increments. wait_param=<index>: the kernel spins, keeping the card,
 * until the u32 at that address is not 0. Without the comment a kernel takes
 * the card's kernel_us.
 */
#define _GNU_SOURCE
#include "local.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool name_char(int c)
{
	return isalnum(c) || c == '_' || c == '$' || c == '%';
}

static const char *read_name(const char *p, char *out)
{
	size_t n = 0;

	while (isspace((unsigned char)*p))
		p++;
	while (name_char((unsigned char)p[n]))
		n++;
	snprintf(out, NAME_MAX_LEN, "%.*s", (int)n, p);
	return p + n;
}

static unsigned type_size(const char *type)
{
	static const struct {
		const char *name;
		unsigned size;
	} types[] = {{".b8", 1},  {".u8", 1},  {".s8", 1},  {".b16", 2}, {".u16", 2},
		     {".s16", 2}, {".f16", 2}, {".b32", 4}, {".u32", 4}, {".s32", 4},
		     {".f32", 4}, {".b64", 8}, {".u64", 8}, {".s64", 8}, {".f64", 8}};

	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++)
		if (strcmp(types[i].name, type) == 0)
			return types[i].size;
	return 0;
}

/* Reads `[.align N] .type name[count]` and returns its size; 0: not a declaration. */
static uint64_t read_declaration(const char **text, char *name, unsigned *align)
{
	const char *p = *text;
	uint64_t size = 0;

	*align = 0;
	for (;;) {
		char word[32];
		size_t n = 1;

		while (isspace((unsigned char)*p))
			p++;
		if (*p != '.')
			break;
		while (isalnum((unsigned char)p[n]) || p[n] == '_')
			n++;
		snprintf(word, sizeof(word), "%.*s", (int)n, p);
		p += n;
		if (strcmp(word, ".align") == 0)
			*align = (unsigned)strtoul(p, (char **)&p, 10);
		else if (type_size(word))
			size = type_size(word);
	}
	if (!size)
		return 0;
	if (!*align)
		*align = (unsigned)size;
	p = read_name(p, name);
	while (*p == '[') {
		uint64_t count = strtoull(p + 1, (char **)&p, 10);

		size *= count ? count : 1;
		p += strcspn(p, "]\n");
		p += *p == ']';
	}
	*text = p;
	return *name ? size : 0;
}

static void read_params(const char *p, CUfunction f)
{
	unsigned at = 0;

	while (*p && *p != ')' && f->nparams < MAX_PARAMS) {
		char name[NAME_MAX_LEN];
		unsigned align;
		uint64_t size;

		if (strncmp(p, ".param", 6) != 0) {
			p++;
			continue;
		}
		p += 6;
		size = read_declaration(&p, name, &align);
		if (!size || size > sizeof(f->buffer))
			continue;
		at = (at + align - 1) / align * align;
		f->offset[f->nparams] = at;
		f->size[f->nparams++] = (unsigned)size;
		at += (unsigned)size;
	}
}

static CUfunction add_function(CUmodule m, const char *name)
{
	CUfunction f = calloc(1, sizeof(*f));

	if (!f)
		return NULL;
	f->magic = MAGIC_FUNC;
	f->module = m;
	snprintf(f->name, sizeof(f->name), "%s", name);
	f->unit_param = f->count_param = f->wait_param = -1;
	f->next = m->functions;
	m->functions = f;
	return f;
}

CUfunction ptx_function(CUmodule m, const char *name)
{
	for (CUfunction f = m->functions; f; f = f->next)
		if (strcmp(f->name, name) == 0)
			return f;
	return m->opaque ? add_function(m, name) : NULL;
}

static bool value_of(const char *line, const char *key, char *out)
{
	const char *end = line + strcspn(line, "\n");
	const char *p = strstr(line, key);

	if (!p || p >= end)
		return false;
	p += strlen(key);
	snprintf(out, NAME_MAX_LEN, "%.*s", (int)strcspn(p, " \t\r\n"), p);
	return true;
}

static void read_cost(const char *line, CUmodule m)
{
	char v[NAME_MAX_LEN];
	CUfunction f = value_of(line, " entry=", v) ? ptx_function(m, v) : NULL;

	if (!f)
		return;
	if (value_of(line, " ns_per_unit=", v))
		f->ns_per_unit = strtod(v, NULL);
	if (value_of(line, " unit_param=", v))
		f->unit_param = atoi(v);
	if (value_of(line, " count_param=", v))
		f->count_param = atoi(v);
	if (value_of(line, " wait_param=", v))
		f->wait_param = atoi(v);
}

static bool read_global(const char *p, CUmodule m)
{
	struct global *g = calloc(1, sizeof(*g));
	unsigned align;

	if (!g)
		return false;
	g->size = read_declaration(&p, g->name, &align);
	if (!g->size) {
		free(g);
		return true;
	}
	g->next = m->globals;
	m->globals = g;
	return true;
}

/* A word counts only outside of comments: at the start of a line or after a
 * space, on a line that does not begin with //. */
static const char *keyword(const char *line, const char *word)
{
	const char *end = line + strcspn(line, "\n");
	const char *p = line + strspn(line, " \t");

	if (strncmp(p, "//", 2) == 0)
		return NULL;
	p = strstr(p, word);
	return p && p < end && isspace((unsigned char)p[strlen(word)]) ? p + strlen(word) : NULL;
}

bool ptx_parse(const char *text, CUmodule m)
{
	const char *p;
	bool ok = true;

	if (!strstr(text, ".version") || !strstr(text, ".target"))
		return false;
	for (const char *line = text; line && *line && ok;
	     line = strchr(line, '\n'), line += line != NULL) {
		if ((p = keyword(line, ".entry")) != NULL) {
			char name[NAME_MAX_LEN];
			CUfunction f;

			p = read_name(p, name);
			f = *name ? add_function(m, name) : NULL;
			ok = f != NULL;
			p += strspn(p, " \t\r\n");
			if (f && *p == '(')
				read_params(p, f);
		} else if ((p = keyword(line, ".global")) != NULL) {
			ok = read_global(p, m);
		}
	}
	m->uses_heap = strstr(text, ".func") && strstr(text, "malloc");
	for (const char *line = strstr(text, "// simgpu:"); line;
	     line = strstr(line + 1, "// simgpu:"))
		read_cost(line, m);
	return ok;
}
