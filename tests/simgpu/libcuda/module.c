// SPDX-License-Identifier: Apache-2.0
/* module.c - modules, libraries, functions. Global variables take device memory. */
#define _GNU_SOURCE
#include "local.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FATBIN_MAGIC 0xba55ed50u
#define FATBIN_WRAPPER_MAGIC 0x466243b1u

struct CUlib_st {
	uint32_t magic;
	CUmodule module;
};

static void module_free(CUmodule m)
{
	while (m->functions) {
		CUfunction f = m->functions;

		m->functions = f->next;
		f->magic = 0;
		free(f);
	}
	while (m->globals) {
		struct global *g = m->globals;

		m->globals = g->next;
		free(g);
	}
	m->magic = 0;
	free(m);
}

static CUresult module_parse(const void *image, CUmodule *out)
{
	CUmodule m = calloc(1, sizeof(*m));
	uint32_t magic;

	if (!m)
		return CUDA_ERROR_OUT_OF_MEMORY;
	m->magic = MAGIC_MODULE;
	memcpy(&magic, image, sizeof(magic));
	if (memcmp(image, "\177ELF", 4) == 0 || magic == FATBIN_MAGIC ||
	    magic == FATBIN_WRAPPER_MAGIC) {
		m->opaque = true;
	} else if (!ptx_parse(image, m)) {
		module_free(m);
		return CUDA_ERROR_INVALID_IMAGE;
	}
	*out = m;
	return CUDA_SUCCESS;
}

static void drop_globals(CUmodule m)
{
	for (struct global *g = m->globals; g; g = g->next) {
		if (g->block)
			mem_free(g->block);
		g->block = NULL;
	}
}

CUresult module_into_context(CUmodule m)
{
	CUresult rc = CUDA_SUCCESS;

	if (m->ctx)
		return CUDA_SUCCESS;
	if (m->uses_heap && !drv_current()->uses_heap) {
		drv_current()->uses_heap = true;
		rc = limits_charge(drv_current());
		drv_current()->uses_heap = rc == CUDA_SUCCESS;
	}
	for (struct global *g = m->globals; g && !rc; g = g->next)
		rc = mem_alloc(drv_current(), g->size, BLOCK_MODULE, &g->block);
	if (rc)
		drop_globals(m);
	else
		m->ctx = drv_current();
	return rc;
}

static CUresult load(CUmodule *module, const void *image)
{
	CUresult rc = module && image ? capture_unsafe() : CUDA_ERROR_INVALID_VALUE;
	CUmodule m = NULL;

	if (!rc)
		rc = module_parse(image, &m);
	if (!rc)
		rc = module_into_context(m);
	if (!rc)
		*module = m;
	else if (m)
		module_free(m);
	return rc;
}

CUresult cuModuleLoadData(CUmodule *module, const void *image)
{
	ENTER(NEED_CTX);
	return drv_leave(load(module, image));
}

CUresult cuModuleLoadDataEx(CUmodule *module, const void *image, unsigned n, int *options,
			    void **values)
{
	(void)n;
	(void)options; /* there is no assembler that they could steer */
	(void)values;
	ENTER(NEED_CTX);
	return drv_leave(load(module, image));
}

CUresult cuModuleLoadFatBinary(CUmodule *module, const void *image)
{
	ENTER(NEED_CTX);
	return drv_leave(load(module, image));
}

static char *read_file(const char *path)
{
	FILE *f = path ? fopen(path, "re") : NULL;
	char *text = NULL;
	long n;

	if (!f)
		return NULL;
	if (fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) >= 0 && fseek(f, 0, SEEK_SET) == 0) {
		text = calloc(1, (size_t)n + 8);
		if (text && fread(text, 1, (size_t)n, f) != (size_t)n) {
			free(text);
			text = NULL;
		}
	}
	fclose(f);
	return text;
}

CUresult cuModuleLoad(CUmodule *module, const char *path)
{
	CUresult rc;
	char *text;

	ENTER(NEED_CTX);
	text = read_file(path);
	rc = text ? load(module, text) : CUDA_ERROR_FILE_NOT_FOUND;
	free(text);
	return drv_leave(rc);
}

CUresult cuModuleUnload(CUmodule module)
{
	ENTER(NEED_CTX);
	if (!module || module->magic != MAGIC_MODULE)
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	if (drv_ctx_valid(module->ctx)) {
		drv_ctx_sync(module->ctx);
		drop_globals(module);
	}
	module_free(module);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuModuleGetFunction(CUfunction *fn, CUmodule module, const char *name)
{
	ENTER(NEED_CTX);
	if (!fn || !module || !name || module->magic != MAGIC_MODULE)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*fn = ptx_function(module, name);
	return drv_leave(*fn ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

static CUresult global_of(CUmodule m, const char *name, CUdeviceptr *dptr, size_t *size)
{
	for (struct global *g = m->globals; g; g = g->next) {
		if (!name || strcmp(g->name, name) != 0)
			continue;
		if (dptr)
			*dptr = g->block->va;
		if (size)
			*size = g->size;
		return CUDA_SUCCESS;
	}
	return CUDA_ERROR_NOT_FOUND;
}

CUresult cuModuleGetGlobal_v2(CUdeviceptr *dptr, size_t *size, CUmodule module, const char *name)
{
	ENTER(NEED_CTX);
	if (!module || module->magic != MAGIC_MODULE || !drv_ctx_valid(module->ctx))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	return drv_leave(global_of(module, name, dptr, size));
}

CUresult cuModuleGetLoadingMode(int *mode)
{
	ENTER(NEED_INIT);
	if (!mode)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*mode = 1; /* eager */
	return drv_leave(CUDA_SUCCESS);
}

/* A library belongs to no context; it is loaded into the first that uses it. */
static CUresult library_new(CUlibrary *library, const void *code)
{
	CUlibrary lib;
	CUresult rc;

	if (!library || !code)
		return CUDA_ERROR_INVALID_VALUE;
	lib = calloc(1, sizeof(*lib));
	if (!lib)
		return CUDA_ERROR_OUT_OF_MEMORY;
	lib->magic = MAGIC_LIBRARY;
	rc = module_parse(code, &lib->module);
	if (rc)
		free(lib);
	else
		*library = lib;
	return rc;
}

CUresult cuLibraryLoadData(CUlibrary *library, const void *code, int *jit, void **jit_values,
			   unsigned n_jit, int *opts, void **opt_values, unsigned n_opts)
{
	(void)jit;
	(void)jit_values;
	(void)n_jit;
	(void)opts;
	(void)opt_values;
	(void)n_opts;
	ENTER(NEED_INIT);
	return drv_leave(library_new(library, code));
}

CUresult cuLibraryLoadFromFile(CUlibrary *library, const char *path, int *jit, void **jit_values,
			       unsigned n_jit, int *opts, void **opt_values, unsigned n_opts)
{
	CUresult rc;
	char *text;

	(void)jit;
	(void)jit_values;
	(void)n_jit;
	(void)opts;
	(void)opt_values;
	(void)n_opts;
	ENTER(NEED_INIT);
	text = read_file(path);
	rc = text ? library_new(library, text) : CUDA_ERROR_FILE_NOT_FOUND;
	free(text);
	return drv_leave(rc);
}

static bool library_ok(CUlibrary l)
{
	return l && l->magic == MAGIC_LIBRARY;
}

CUresult cuLibraryUnload(CUlibrary library)
{
	ENTER(NEED_INIT);
	if (!library_ok(library))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	if (drv_ctx_valid(library->module->ctx))
		drop_globals(library->module);
	module_free(library->module);
	library->magic = 0;
	free(library);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuLibraryGetKernel(CUkernel *kernel, CUlibrary library, const char *name)
{
	ENTER(NEED_INIT);
	if (!kernel || !name || !library_ok(library))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	/* a kernel handle may be launched like a function, so it is one */
	*kernel = (CUkernel)ptx_function(library->module, name);
	return drv_leave(*kernel ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND);
}

CUresult cuLibraryGetModule(CUmodule *module, CUlibrary library)
{
	CUresult rc;

	ENTER(NEED_CTX);
	if (!module || !library_ok(library))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	rc = module_into_context(library->module);
	if (!rc)
		*module = library->module;
	return drv_leave(rc);
}

CUresult cuLibraryGetGlobal(CUdeviceptr *dptr, size_t *size, CUlibrary library, const char *name)
{
	CUresult rc;

	ENTER(NEED_CTX);
	if (!library_ok(library))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	rc = module_into_context(library->module);
	return drv_leave(rc ? rc : global_of(library->module, name, dptr, size));
}

CUresult cuKernelGetFunction(CUfunction *fn, CUkernel kernel)
{
	CUresult rc;

	ENTER(NEED_CTX);
	if (!fn || !function_ok((CUfunction)kernel))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	rc = module_into_context(((CUfunction)kernel)->module);
	if (!rc)
		*fn = (CUfunction)kernel;
	return drv_leave(rc);
}
