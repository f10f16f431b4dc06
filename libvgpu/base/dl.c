/* SPDX-License-Identifier: Apache-2.0 */
/* dl.c - see dl.h. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <link.h>

#include "dl.h"

void *(*vgpu_real_dlsym)(void *handle, const char *name);
void *(*vgpu_real_dlvsym)(void *handle, const char *name, const char *version);
void *(*vgpu_real_dlopen)(const char *file, int mode);
void *(*vgpu_real_dlmopen)(long ns, const char *file, int mode);

/* A function of an object by its table of symbols: dlsym and dlvsym cannot be asked for
 * themselves. All versions of one are the same function. */
VGPU_EARLY static void *function_in(const struct link_map *map, const char *name)
{
	const ElfW(Sym) *symbols = NULL;
	const char *strings = NULL;
	const uint32_t *gnu = NULL, *bucket, *chain;
	uint32_t hash = 5381, i;

	for (const ElfW(Dyn) *d = map->l_ld; d->d_tag != DT_NULL; d++) {
		if (d->d_tag == DT_SYMTAB)
			symbols = (const void *)d->d_un.d_ptr;
		else if (d->d_tag == DT_STRTAB)
			strings = (const void *)d->d_un.d_ptr;
		else if (d->d_tag == DT_GNU_HASH)
			gnu = (const void *)d->d_un.d_ptr;
	}
	if (!symbols || !strings || !gnu || !gnu[0])
		return NULL;
	for (const char *p = name; *p; p++)
		hash = hash * 33 + (unsigned char)*p;
	/* Buckets, first symbol with a hash, words of the filter and its shift. */
	bucket = gnu + 4 + gnu[2] * (sizeof(ElfW(Addr)) / sizeof *gnu);
	chain = bucket + gnu[0];
	i = bucket[hash % gnu[0]];
	if (i < gnu[1])
		return NULL;
	do {
		if (symbols[i].st_shndx != SHN_UNDEF && (symbols[i].st_info & 0xf) == STT_FUNC &&
		    vgpu_same(strings + symbols[i].st_name, name))
			return (void *)(map->l_addr + symbols[i].st_value);
	} while (!(chain[i++ - gnu[1]] & 1));
	return NULL;
}

/* Before glibc 2.34 some are in libdl, which a program may not have. No lock holds the list of objects:
 * those that it was started with stay, and the walk ends with the one that is looked for. */
VGPU_EARLY void *vgpu_of_libc(const char *name)
{
	static const char *const files[] = {"libc.so.6", "libdl.so.2"};
	void *found = NULL;

	for (unsigned i = 0; i < 2 && !found; i++) {
		const struct link_map *m = _r_debug.r_map;

		while (m && !(m->l_name && vgpu_same(vgpu_base_of(m->l_name), files[i])))
			m = m->l_next;
		found = m ? function_in(m, name) : NULL;
	}
	return found;
}

VGPU_EARLY void vgpu_need_dlsym(void)
{
	/* Of threads that ask at the same time, all find the same. */
	if (!LOAD(&vgpu_real_dlvsym))
		STORE((void **)&vgpu_real_dlvsym, vgpu_of_libc("dlvsym"));
	if (!LOAD(&vgpu_real_dlsym))
		STORE((void **)&vgpu_real_dlsym, vgpu_of_libc("dlsym"));
}

/* The next ones in the order, which may be another preload's. */
void vgpu_need_dlopen(void)
{
	if (!LOAD(&vgpu_real_dlsym))
		vgpu_need_dlsym();
	if (!vgpu_real_dlsym || LOAD(&vgpu_real_dlopen))
		return;
	STORE((void **)&vgpu_real_dlmopen, vgpu_real_dlsym(RTLD_NEXT, "dlmopen"));
	STORE((void **)&vgpu_real_dlopen, vgpu_real_dlsym(RTLD_NEXT, "dlopen"));
}

void *vgpu_dlopen(const char *file, int mode)
{
	vgpu_need_dlopen();
	return vgpu_real_dlopen ? vgpu_real_dlopen(file, mode) : NULL;
}

uintptr_t vgpu_extent(const struct dl_phdr_info *info, size_t *size)
{
	uintptr_t low = UINTPTR_MAX, high = 0;

	for (int i = 0; i < info->dlpi_phnum; i++) {
		const ElfW(Phdr) *p = &info->dlpi_phdr[i];
		uintptr_t begin = info->dlpi_addr + p->p_vaddr;

		if (p->p_type != PT_LOAD)
			continue;
		low = begin < low ? begin : low;
		high = begin + p->p_memsz > high ? begin + p->p_memsz : high;
	}
	*size = high - low;
	return low;
}
