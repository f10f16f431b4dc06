/* SPDX-License-Identifier: Apache-2.0 */
/*
 * entry.c - how callers get hooks: the tables made from hooks.def, dlsym and
 * cuGetProcAddress. Nothing is loaded before a caller asks for a CUDA or NVML
 * name; a program that never does pays one comparison per dlsym.
 */
#ifdef VGPU_PRELOAD
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "vgpu.h"

struct vgpu_real vgpu_real;
void *(*vgpu_real_dlsym)(void *handle, const char *name);

enum sym {
#define CU(name, params) SYM_##name,
#define NV(name, params) SYM_##name,
#define CU_USE(name, params) SYM_##name,
#define NV_USE(name, params) SYM_##name,
#include "hooks.def"
#undef CU
#undef NV
#undef CU_USE
#undef NV_USE
	SYM_COUNT
};

/* hook is NULL for functions that are only called. */
static const struct symbol {
	const char *name;
	void *hook;
} symbols[SYM_COUNT] = {
#define CU(name, params) {#name, (void *)name},
#define NV(name, params) {#name, (void *)name},
#define CU_USE(name, params) {#name, NULL},
#define NV_USE(name, params) {#name, NULL},
#include "hooks.def"
#undef CU
#undef NV
#undef CU_USE
#undef NV_USE
};

_Static_assert(sizeof(struct vgpu_real) == SYM_COUNT * sizeof(void *), "table of real functions");

static void **real_at(unsigned sym)
{
	return (void **)&vgpu_real + sym;
}

/* ----------------------------------------------------------- sorted indexes */
static unsigned short by_name[SYM_COUNT], by_pointer[SYM_COUNT];
static unsigned pointers; /* entries of by_pointer */
static pthread_once_t names_once = PTHREAD_ONCE_INIT;

static int compare_names(const void *a, const void *b)
{
	return strcmp(symbols[*(const unsigned short *)a].name,
		      symbols[*(const unsigned short *)b].name);
}

static int compare_pointers(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t)*real_at(*(const unsigned short *)a);
	uintptr_t y = (uintptr_t)*real_at(*(const unsigned short *)b);

	return x < y ? -1 : x > y;
}

static void sort_names(void)
{
	for (unsigned short i = 0; i < SYM_COUNT; i++)
		by_name[i] = i;
	qsort(by_name, SYM_COUNT, sizeof by_name[0], compare_names);
}

static int symbol_named(const char *name)
{
	int lo = 0, hi = SYM_COUNT - 1;

	pthread_once(&names_once, sort_names);
	while (lo <= hi) {
		int mid = (lo + hi) / 2, c = strcmp(name, symbols[by_name[mid]].name);

		if (c == 0)
			return by_name[mid];
		if (c < 0)
			hi = mid - 1;
		else
			lo = mid + 1;
	}
	return -1;
}

/* ------------------------------------------------------------- the libraries */
struct library {
	const char *soname, *prefix;
	bool resolved; /* under load_lock */
	int loaded;    /* set last, with release order */
};
static struct library cuda = {"libcuda.so.1", "cu", false, 0};
static struct library nvml = {"libnvidia-ml.so.1", "nvml", false, 0};
static pthread_mutex_t load_lock = PTHREAD_MUTEX_INITIALIZER;
static __thread bool loading; /* the library's constructors may call dlsym */

VGPU_EARLY void vgpu_need_dlsym(void)
{
	static const char *const versions[] = {"GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.34"};
	void *found = (void *)__atomic_load_n(&vgpu_real_dlsym, __ATOMIC_RELAXED);

	for (size_t i = 0; i < sizeof versions / sizeof *versions && !found; i++)
		found = dlvsym(RTLD_NEXT, "dlsym", versions[i]);
	/* Of threads that ask at the same time, all find the same. */
	if (found)
		__atomic_store_n((void **)&vgpu_real_dlsym, found, __ATOMIC_RELAXED);
}

static void resolve(struct library *lib, void *handle)
{
	int (*transport)(int, unsigned long, void *);

	if (lib == &cuda)
		pointers = 0; /* a child may have been forked in the middle */
	for (unsigned i = 0; i < SYM_COUNT; i++)
		if (strncmp(symbols[i].name, lib->prefix, strlen(lib->prefix)) == 0)
			*real_at(i) = vgpu_real_dlsym(handle, symbols[i].name);
	if (lib != &cuda)
		return;
	/* Only a simulated driver has this: it answers ioctls in user space. */
	transport =
		(int (*)(int, unsigned long, void *))vgpu_real_dlsym(handle, "vgpu_rm_transport");
	if (transport)
		vgpu_rm_set_transport(transport);
	/* Only CUDA's: NVML's pointers may still change under the order. */
	for (unsigned short i = 0; i < SYM_COUNT; i++)
		if (*real_at(i) && strncmp(symbols[i].name, lib->prefix, strlen(lib->prefix)) == 0)
			by_pointer[pointers++] = i;
	qsort(by_pointer, pointers, sizeof by_pointer[0], compare_pointers);
}

/* mode: RTLD_NOLOAD takes the library only if somebody else has loaded it. */
static bool need(struct library *lib, int mode)
{
	void *handle;

	if (likely(__atomic_load_n(&lib->loaded, __ATOMIC_ACQUIRE)))
		return true;
	if (loading)
		return false;
	loading = true;
	vgpu_need_dlsym();
	/* Not under load_lock: dlopen runs constructors and takes the linker's lock. */
	handle = dlopen(lib->soname, RTLD_LAZY | mode);
	if (handle && vgpu_real_dlsym) {
		vgpu_attach();
		pthread_mutex_lock(&load_lock);
		if (!lib->resolved)
			resolve(lib, handle);
		lib->resolved = true;
		__atomic_store_n(&lib->loaded, 1, __ATOMIC_RELEASE);
		pthread_mutex_unlock(&load_lock);
	}
	loading = false;
	return lib->loaded;
}

void vgpu_entry_in_child(void)
{
	pthread_mutex_init(&load_lock, NULL); /* whoever held it is not here */
	cuda.loaded = 0;
	loading = false;
}

void vgpu_need_cuda(void)
{
	need(&cuda, 0);
}

void vgpu_need_nvml(void)
{
	need(&nvml, 0);
}

void *vgpu_hook_of(void *real)
{
	int lo = 0, hi = (int)pointers - 1;

	while (real && lo <= hi) {
		int mid = (lo + hi) / 2;
		uintptr_t p = (uintptr_t)*real_at(by_pointer[mid]);

		if (p == (uintptr_t)real) {
			void *hook = symbols[by_pointer[mid]].hook;

			return hook ? hook : real;
		}
		if ((uintptr_t)real < p)
			hi = mid - 1;
		else
			lo = mid + 1;
	}
	return real;
}

/* -------------------------------------------------------------------- dlsym */
/* The hook for a name that may be one of ours, or NULL. */
static __attribute__((noinline)) void *hook_for(struct library *lib, void *handle, const char *name)
{
	void *found;
	int sym;

	if (loading)
		return NULL;
	sym = symbol_named(name);
	if (sym < 0 || !symbols[sym].hook || !need(lib, RTLD_NOLOAD) || !*real_at((unsigned)sym))
		return NULL;
	/* Ours only when the caller's question leads to the driver's function. */
	/* Found, or need() would have loaded nothing. NOLINTNEXTLINE(clang-analyzer-core.CallAndMessage) */
	found = vgpu_real_dlsym(handle, name);
	return found && (found == *real_at((unsigned)sym) || found == symbols[sym].hook)
		       ? symbols[sym].hook
		       : NULL;
}

/* Returns the hook, or NULL when the caller is to get what dlsym gives. Calls no
 * function for any other name: the runtime of a sanitizer asks for its own before it is ready. */
__attribute__((used)) void *vgpu_dlsym_lookup(void *handle, const char *name);
VGPU_EARLY __attribute__((used)) void *vgpu_dlsym_lookup(void *handle, const char *name)
{
	if (unlikely(!__atomic_load_n(&vgpu_real_dlsym, __ATOMIC_RELAXED)))
		vgpu_need_dlsym();
	if (!name)
		return NULL;
	if (name[0] == 'c' && name[1] == 'u')
		return hook_for(&cuda, handle, name);
	if (name[0] == 'n' && name[1] == 'v' && name[2] == 'm' && name[3] == 'l')
		return hook_for(&nvml, handle, name);
	return NULL;
}

/* A tail jump: the C library sees our caller's return address, so RTLD_NEXT
 * and RTLD_DEFAULT keep their meaning for every name that is not ours. */
#if defined(__x86_64__)
__asm__(".pushsection .text\n"
	".globl dlsym\n"
	".type dlsym, @function\n"
	"dlsym:\n"
	"	.cfi_startproc\n"
	"	endbr64\n"
	"	push %rdi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	push %rsi\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	sub $8, %rsp\n"
	"	.cfi_adjust_cfa_offset 8\n"
	"	call vgpu_dlsym_lookup\n"
	"	add $8, %rsp\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	pop %rsi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	pop %rdi\n"
	"	.cfi_adjust_cfa_offset -8\n"
	"	test %rax, %rax\n"
	"	jnz 1f\n"
	"	mov vgpu_real_dlsym(%rip), %rax\n"
	"	jmp *%rax\n"
	"1:	ret\n"
	"	.cfi_endproc\n"
	".size dlsym, . - dlsym\n"
	".popsection\n");
#else
#error "dlsym's tail jump is written for x86-64 only"
#endif

/* --------------------------------------------------------- cuGetProcAddress */
/* The driver answers first; only then is the pointer mapped, so versions,
 * per-thread streams and status are the driver's own decisions. */
CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, uint64_t flags)
{
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuGetProcAddress)
		return CUDA_ERROR_NO_DEVICE;
	r = vgpu_real.cuGetProcAddress(symbol, pfn, version, flags);
	if (r == CUDA_SUCCESS && pfn)
		*pfn = vgpu_hook_of(*pfn);
	return r;
}

CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, uint64_t flags,
			     int *status)
{
	CUresult r;

	vgpu_need_cuda();
	if (!vgpu_real.cuGetProcAddress_v2)
		return CUDA_ERROR_NO_DEVICE;
	r = vgpu_real.cuGetProcAddress_v2(symbol, pfn, version, flags, status);
	if (r == CUDA_SUCCESS && pfn)
		*pfn = vgpu_hook_of(*pfn);
	return r;
}
#endif
