// SPDX-License-Identifier: Apache-2.0
/*
 * direct.c - a function of the driver itself, past whatever stands before it. A
 * preloaded library answers dlsym and cuGetProcAddress; the driver's own table of
 * symbols it does not touch.
 */
#define _GNU_SOURCE
#include "load.h"

#include <elf.h>
#include <link.h>
#include <string.h>

struct search {
	const char *symbol;
	void *found;
};

/* A table of GNU hashes says nothing of how many symbols there are: the last of the
 * longest chain does. */
static uint32_t symbols_of(const uint32_t *hash)
{
	uint32_t nbuckets = hash[0], first = hash[1], words = hash[2], last = 0;
	const uint32_t *bucket = hash + 4 + words * (sizeof(ElfW(Addr)) / sizeof(uint32_t));
	const uint32_t *chain = bucket + nbuckets;

	for (uint32_t i = 0; i < nbuckets; i++)
		if (bucket[i] > last)
			last = bucket[i];
	if (last < first)
		return 0;
	while (!(chain[last - first] & 1))
		last++;
	return last + 1;
}

static int look(struct dl_phdr_info *info, size_t size, void *data)
{
	const char *strings = NULL;
	const ElfW(Sym) *symbols = NULL;
	const uint32_t *hash = NULL;
	struct search *s = data;

	(void)size;
	if (!strstr(info->dlpi_name, "libcuda.so"))
		return 0;
	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Dyn) *d = (const void *)(info->dlpi_addr + info->dlpi_phdr[i].p_vaddr);

		if (info->dlpi_phdr[i].p_type != PT_DYNAMIC)
			continue;
		for (; d->d_tag != DT_NULL; d++) {
			if (d->d_tag == DT_SYMTAB)
				symbols = (const void *)d->d_un.d_ptr;
			else if (d->d_tag == DT_STRTAB)
				strings = (const void *)d->d_un.d_ptr;
			else if (d->d_tag == DT_GNU_HASH)
				hash = (const void *)d->d_un.d_ptr;
		}
	}
	for (uint32_t i = 0, n = hash && symbols && strings ? symbols_of(hash) : 0; i < n; i++)
		if (symbols[i].st_value && strcmp(strings + symbols[i].st_name, s->symbol) == 0)
			s->found = (void *)(info->dlpi_addr + symbols[i].st_value);
	return s->found != NULL;
}

void *direct(const char *symbol)
{
	struct search s = {symbol, NULL};

	dl_iterate_phdr(look, &s);
	return s.found;
}
