/* SPDX-License-Identifier: Apache-2.0 */
/*
 * loader.c - dlopen, dlmopen, dlsym and dlvsym as this library exports them, and what becomes
 * of a caller's dlopen. They have the C library's versions too: a preload of the user's that
 * asks for the next dlsym, by whatever version, finds this library's.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../base/dl.h"
#include "../base/util.h"
#include "loader.h"

/* The search reads this part of a library. The names of the libraries that it needs are at its
 * beginning, and most often its other texts. */
#define LOOK_BYTES (16u << 20)

/* The file contains the name of the driver's library: it needs or opens this library. */
static bool mentions_driver(const char *path)
{
	static const char name[] = "libcuda.so";
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	bool found = false;
	struct stat st;
	size_t size;
	void *p;

	if (fd < 0)
		return false;
	if (fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && st.st_size > 0) {
		size = (uint64_t)st.st_size < LOOK_BYTES ? (size_t)st.st_size : LOOK_BYTES;
		p = mmap(NULL, size, PROT_READ, MAP_PRIVATE, fd, 0);
		if (p != MAP_FAILED) {
			found = memmem(p, size, name, sizeof name - 1);
			munmap(p, size);
		}
	}
	close(fd);
	return found;
}

/* A library that calls the driver, or is NVIDIA's. */
static bool for_cuda(const char *file)
{
	static const char *const prefixes[] = {"libcu", "libnv", "libnccl"};

	if (!file)
		return false;
	for (unsigned i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
		if (strncmp(vgpu_base_of(file), prefixes[i], strlen(prefixes[i])) == 0)
			return true;
	return strchr(file, '/') && mentions_driver(file);
}

/* What such a library calls is to be found here first, as if it had been linked: with
 * RTLD_DEEPBIND, or in a namespace of its own, it would find the driver and the C library
 * itself. Others keep what they ask for, since they may depend on it. */
__attribute__((used)) int vgpu_dlopen_mode(const char *file, int mode);
VGPU_EARLY __attribute__((used)) int vgpu_dlopen_mode(const char *file, int mode)
{
	vgpu_need_dlopen();
	return (mode & RTLD_DEEPBIND) && for_cuda(file) ? mode & ~RTLD_DEEPBIND : mode;
}

__attribute__((used)) Lmid_t vgpu_dlmopen_space(Lmid_t ns, const char *file);
__attribute__((used)) Lmid_t vgpu_dlmopen_space(Lmid_t ns, const char *file)
{
	vgpu_need_dlopen();
	return ns != LM_ID_BASE && for_cuda(file) ? LM_ID_BASE : ns;
}

/* By address, or NULL: which of the four the C library's function is. Not for RTLD_NEXT: the
 * caller may be the next one after this library, and would then call itself. */
VGPU_EARLY void *vgpu_loader_hook(void *handle, const char *name, const char *version)
{
	const struct {
		const char *name;
		void *real, *hook;
	} all[] = {
		{"dlsym", (void *)vgpu_real_dlsym, (void *)vgpu_dlsym},
		{"dlvsym", (void *)vgpu_real_dlvsym, (void *)vgpu_dlvsym},
		{"dlopen", (void *)vgpu_real_dlopen, (void *)vgpu_own_dlopen},
		{"dlmopen", (void *)vgpu_real_dlmopen, (void *)vgpu_own_dlmopen},
	};
	void *found;

	if (handle == RTLD_NEXT)
		return NULL;
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
		if (!vgpu_same(name, all[i].name))
			continue;
		found = version ? vgpu_real_dlvsym(handle, name, version)
				: vgpu_real_dlsym(handle, name);
		return found && found == all[i].real ? all[i].hook : NULL;
	}
	return NULL;
}

/* Tail jumps: the C library sees our caller's return address, so RTLD_NEXT, RTLD_DEFAULT, and
 * the caller's own paths and namespace, keep their meaning. */
/* clang-format off */
#define FUNCTION(name, symbol, old, body) \
	__asm__(".pushsection .text\n" \
		".globl " name ", " name "_old, " name "_new\n" \
		".type " name ", %function\n" \
		".balign 16\n" \
		name ":\n" \
		"	.cfi_startproc\n" \
		body \
		"	.cfi_endproc\n" \
		".size " name ", . - " name "\n" \
		".set " name "_old, " name "\n" \
		".set " name "_new, " name "\n" \
		".symver " name "_old, " symbol "@" old "\n" \
		".symver " name "_new, " symbol "@@GLIBC_2.34\n" \
		".popsection\n")
/*
 * CALL      calls a function with the arguments, which are kept, and the caller's address as the fourth.
 * OR_RETURN returns what it found; VGPU_NOTHING becomes NULL, and for NULL the C library is to say.
 * FIRST, SECOND  make the answer the first or second argument.
 * JUMP      goes on in the C library's function; without one, the answer is NULL.
 */
#if defined(__x86_64__)
#define OLDEST "GLIBC_2.2.5"
#define OLDEST_DLMOPEN "GLIBC_2.3.4"
#define CALL(function) \
		"	endbr64\n" \
		"	push %rdi\n" \
		"	.cfi_adjust_cfa_offset 8\n" \
		"	push %rsi\n" \
		"	.cfi_adjust_cfa_offset 8\n" \
		"	push %rdx\n" \
		"	.cfi_adjust_cfa_offset 8\n" \
		"	mov 24(%rsp), %rcx\n" \
		"	call " function "\n" \
		"	pop %rdx\n" \
		"	.cfi_adjust_cfa_offset -8\n" \
		"	pop %rsi\n" \
		"	.cfi_adjust_cfa_offset -8\n" \
		"	pop %rdi\n" \
		"	.cfi_adjust_cfa_offset -8\n"
#define FIRST "	mov %rax, %rdi\n"
#define SECOND "	mov %eax, %esi\n"
#define OR_RETURN \
		"	test %rax, %rax\n" \
		"	jz 2f\n" \
		"	cmp $-1, %rax\n" \
		"	jne 1f\n" \
		"	xor %eax, %eax\n" \
		"1:	ret\n" \
		"2:\n"
#define JUMP(real) \
		"	mov " real "(%rip), %rax\n" \
		"	test %rax, %rax\n" \
		"	jz 1f\n" \
		"	jmp *%rax\n" \
		"1:	ret\n"
#elif defined(__aarch64__)
#define OLDEST "GLIBC_2.17"
#define OLDEST_DLMOPEN "GLIBC_2.17"
#define CALL(function) \
		"	hint #34\n" /* bti c */ \
		"	stp x29, x30, [sp, #-48]!\n" \
		"	.cfi_adjust_cfa_offset 48\n" \
		"	.cfi_rel_offset x30, 8\n" \
		"	stp x0, x1, [sp, #16]\n" \
		"	str x2, [sp, #32]\n" \
		"	mov x3, x30\n" \
		"	bl " function "\n" \
		"	mov x9, x0\n" \
		"	ldr x2, [sp, #32]\n" \
		"	ldp x0, x1, [sp, #16]\n" \
		"	ldp x29, x30, [sp], #48\n" \
		"	.cfi_restore x30\n" \
		"	.cfi_adjust_cfa_offset -48\n"
#define FIRST "	mov x0, x9\n"
#define SECOND "	mov w1, w9\n"
#define OR_RETURN \
		"	cbz x9, 2f\n" \
		"	cmn x9, #1\n" \
		"	csel x0, xzr, x9, eq\n" \
		"	ret\n" \
		"2:\n"
#define JUMP(real) \
		"	adrp x9, " real "\n" \
		"	ldr x9, [x9, :lo12:" real "]\n" \
		"	cbz x9, 1f\n" \
		"	br x9\n" \
		"1:	mov x0, xzr\n" \
		"	ret\n"
#else
#error "the tail jumps are written for x86-64 and arm64"
#endif

FUNCTION("vgpu_dlsym", "dlsym", OLDEST, CALL("vgpu_dlsym_lookup") OR_RETURN JUMP("vgpu_real_dlsym"));
FUNCTION("vgpu_dlvsym", "dlvsym", OLDEST,
	 CALL("vgpu_dlvsym_lookup") OR_RETURN JUMP("vgpu_real_dlvsym"));
/* With another mode, with another namespace. */
FUNCTION("vgpu_own_dlopen", "dlopen", OLDEST, CALL("vgpu_dlopen_mode") SECOND JUMP("vgpu_real_dlopen"));
FUNCTION("vgpu_own_dlmopen", "dlmopen", OLDEST_DLMOPEN,
	 CALL("vgpu_dlmopen_space") FIRST JUMP("vgpu_real_dlmopen"));
/* clang-format on */
