// SPDX-License-Identifier: Apache-2.0
/* launch.c - kernels: what they cost, and all the ways to launch one. */
#define _GNU_SOURCE
#include "local.h"

#include <sched.h>
#include <string.h>

#define SPIN_LAST_NS 150000ull
#define SPIN_NS (1ull << 60) /* longer than any test: the owner ends it */

bool function_ok(CUfunction f)
{
	return f && f->magic == MAGIC_FUNC;
}

/* Argument i as an unsigned number, from either way of passing arguments. */
static bool argument(CUfunction f, int i, void **params, void **extra, uint64_t *out)
{
	const unsigned char *buffer = f->buffer;
	uint32_t small;

	if (i < 0 || i >= f->nparams || (f->size[i] != 4 && f->size[i] != 8))
		return false;
	if (extra && !params)
		for (int k = 0; extra[k]; k += 2)
			if (extra[k] == CU_LAUNCH_PARAM_BUFFER_POINTER)
				buffer = extra[k + 1];
	buffer = params ? params[i] : buffer + f->offset[i];
	if (f->size[i] == 8) {
		memcpy(out, buffer, 8);
	} else {
		memcpy(&small, buffer, 4);
		*out = small;
	}
	return true;
}

CUresult kernel_work(CUstream s, CUfunction f, void **params, void **extra, struct work *w)
{
	uint64_t units, count_addr = 0, wait_addr = 0;

	memset(w, 0, sizeof(*w));
	w->kind = SIM_KERNEL;
	if (argument(f, f->unit_param, params, extra, &units))
		w->ns = (uint64_t)(f->ns_per_unit * (double)units);
	else
		w->ns = f->ns_per_unit > 0 ? (uint64_t)f->ns_per_unit
					   : drv.st->card[s->ctx->card].conf.kernel_ns;
	argument(f, f->count_param, params, extra, &count_addr);
	argument(f, f->wait_param, params, extra, &wait_addr);
	if (!count_addr && !wait_addr)
		return CUDA_SUCCESS;
	w->flags = SIM_OP_URGENT;
	w->eff = effect_new(wait_addr ? EFF_SPIN : EFF_COUNT);
	if (!w->eff)
		return CUDA_ERROR_OUT_OF_MEMORY;
	w->eff->dst = count_addr;
	w->eff->src = wait_addr;
	if (wait_addr) {
		w->flags |= SIM_OP_SPIN;
		w->ns = SPIN_NS;
	}
	return CUDA_SUCCESS;
}

/* The host looks again and again, and so is late by microseconds only. */
static void spin_for(uint32_t slot, uint32_t gen, uint64_t index)
{
	struct sim_stream *m = &drv.st->stream[slot];

	for (;;) {
		uint64_t at = 0;
		bool done;

		drv_model_lock();
		sim_advance_all(drv.st);
		done = m->gen != gen || m->done > index;
		if (!done)
			at = sim_predict(drv.st, slot, index);
		drv_model_unlock();
		if (done || !drv.ready)
			return;
		if (at > sim_now() + 2 * SPIN_LAST_NS) {
			drv_sleep_until(at - SPIN_LAST_NS);
			continue;
		}
		pthread_mutex_unlock(&drv.lock);
		sched_yield();
		pthread_mutex_lock(&drv.lock);
	}
}

/* With CUDA_LAUNCH_BLOCKING a launch ends when its work does. */
static CUresult launch_submit(CUstream s, const struct work *w)
{
	uint32_t slot = s->slot, gen = s->gen;
	bool captured = s->capture;
	uint64_t index;
	CUresult rc = stream_submit(s, w, &index);

	if (rc || captured || !drv.launches_block)
		return rc;
	spin_for(slot, gen, index);
	return stream_wait(slot, gen, index);
}

/* A multiprocessor has room for two blocks. */
static uint32_t part_of_card(uint32_t card, uint64_t blocks)
{
	uint64_t room = 2 * (uint64_t)drv.st->card[card].conf.sms;

	return blocks < room ? (uint32_t)(blocks * 1000000 / room) : 1000000;
}

/* drv.lock held, context checked. */
static CUresult launch(CUfunction f, const unsigned grid[3], const unsigned block[3],
		       CUstream handle, void **params, void **extra)
{
	CUstream s = stream_of(handle);
	struct work w;
	CUresult rc;

	if (!function_ok(f) || !s)
		return CUDA_ERROR_INVALID_HANDLE;
	for (int i = 0; i < 3; i++)
		if (!grid[i] || !block[i])
			return CUDA_ERROR_INVALID_VALUE;
	if ((uint64_t)block[0] * block[1] * block[2] > 1024)
		return CUDA_ERROR_INVALID_VALUE;
	if (f->nparams && !params && !extra)
		return CUDA_ERROR_INVALID_VALUE;
	rc = module_into_context(f->module);
	if (!rc && f->module->ctx != s->ctx)
		rc = CUDA_ERROR_INVALID_HANDLE;
	if (!rc)
		rc = kernel_work(s, f, params, extra, &w);
	if (!rc)
		w.part = part_of_card(s->ctx->card, (uint64_t)grid[0] * grid[1] * grid[2]);
	return rc ? rc : launch_submit(s, &w);
}

CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
			unsigned by, unsigned bz, unsigned shared, CUstream hStream, void **params,
			void **extra)
{
	const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};

	(void)shared;
	ENTER(NEED_CTX);
	return drv_leave(launch(f, grid, block, hStream, params, extra));
}

static CUresult launch_ex(const CUlaunchConfig *c, CUfunction f, void **params, void **extra,
			  bool per_thread)
{
	unsigned grid[3], block[3];

	if (!c)
		return CUDA_ERROR_INVALID_VALUE;
	memcpy(grid, &c->gridDimX, sizeof(grid));
	memcpy(block, &c->blockDimX, sizeof(block));
	return launch(f, grid, block, per_thread ? PT(c->hStream) : c->hStream, params, extra);
}

CUresult cuLaunchKernelEx(const CUlaunchConfig *config, CUfunction f, void **params, void **extra)
{
	ENTER(NEED_CTX);
	return drv_leave(launch_ex(config, f, params, extra, false));
}

CUresult cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUfunction f, void **params,
			       void **extra)
{
	ENTER(NEED_CTX);
	return drv_leave(launch_ex(config, f, params, extra, true));
}

CUresult cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
				   unsigned by, unsigned bz, unsigned shared, CUstream hStream,
				   void **params)
{
	const unsigned grid[3] = {gx, gy, gz}, block[3] = {bx, by, bz};

	(void)shared;
	ENTER(NEED_CTX);
	return drv_leave(launch(f, grid, block, hStream, params, NULL));
}

CUresult cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS *list, unsigned n, unsigned flags)
{
	CUresult rc = CUDA_SUCCESS;

	(void)flags;
	ENTER(NEED_CTX);
	if (!list || !n)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	for (unsigned i = 0; i < n && !rc; i++) {
		const unsigned grid[3] = {list[i].gridDimX, list[i].gridDimY, list[i].gridDimZ};
		const unsigned block[3] = {list[i].blockDimX, list[i].blockDimY, list[i].blockDimZ};

		rc = launch(list[i].function, grid, block, list[i].hStream, list[i].kernelParams,
			    NULL);
	}
	return drv_leave(rc);
}

/* The launches of 2007 keep shape and arguments in the function. */
CUresult cuFuncSetBlockShape(CUfunction f, int x, int y, int z)
{
	ENTER(NEED_CTX);
	if (!function_ok(f) || x < 1 || y < 1 || z < 1)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	f->shape[0] = x;
	f->shape[1] = y;
	f->shape[2] = z;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuFuncSetSharedSize(CUfunction f, unsigned bytes)
{
	ENTER(NEED_CTX);
	if (!function_ok(f))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	f->shared = bytes;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuParamSetSize(CUfunction f, unsigned bytes)
{
	ENTER(NEED_CTX);
	return drv_leave(function_ok(f) && bytes <= sizeof(f->buffer) ? CUDA_SUCCESS
								      : CUDA_ERROR_INVALID_VALUE);
}

CUresult cuParamSetv(CUfunction f, int offset, void *p, unsigned n)
{
	ENTER(NEED_CTX);
	if (!function_ok(f) || !p || offset < 0 || (uint64_t)offset + n > sizeof(f->buffer))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	memcpy(f->buffer + offset, p, n);
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuParamSeti(CUfunction f, int offset, unsigned value)
{
	return cuParamSetv(f, offset, &value, sizeof(value));
}

static CUresult launch_grid(CUfunction f, int w, int h, CUstream stream)
{
	unsigned grid[3] = {(unsigned)w, (unsigned)h, 1}, block[3] = {1, 1, 1};
	void *extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, f ? f->buffer : NULL, NULL};

	if (!function_ok(f) || w < 1 || h < 1)
		return CUDA_ERROR_INVALID_VALUE;
	for (int i = 0; i < 3 && f->shape[0]; i++)
		block[i] = (unsigned)f->shape[i];
	return launch(f, grid, block, stream, NULL, extra);
}

CUresult cuLaunch(CUfunction f)
{
	ENTER(NEED_CTX);
	return drv_leave(launch_grid(f, 1, 1, NULL));
}

CUresult cuLaunchGrid(CUfunction f, int w, int h)
{
	ENTER(NEED_CTX);
	return drv_leave(launch_grid(f, w, h, NULL));
}

CUresult cuLaunchGridAsync(CUfunction f, int w, int h, CUstream hStream)
{
	ENTER(NEED_CTX);
	return drv_leave(launch_grid(f, w, h, hStream));
}

CUresult cuFuncGetAttribute(int *value, int attrib, CUfunction fn)
{
	/* threads a block, shared, const, local, registers, PTX version, binary version */
	static const int values[] = {1024, 0, 0, 0, 32, 70, 90, 0, 49152, -1};

	ENTER(NEED_CTX);
	if (!value || !function_ok(fn) || attrib < 0)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*value = attrib < (int)(sizeof(values) / sizeof(*values)) ? values[attrib] : 0;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuFuncSetAttribute(CUfunction fn, int attrib, int value)
{
	(void)attrib;
	(void)value;
	ENTER(NEED_CTX);
	return drv_leave(function_ok(fn) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuFuncLoad(CUfunction fn)
{
	ENTER(NEED_CTX);
	return drv_leave(function_ok(fn) ? module_into_context(fn->module)
					 : CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuFuncIsLoaded(int *state, CUfunction fn)
{
	ENTER(NEED_CTX);
	if (!state || !function_ok(fn))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	*state = fn->module->ctx != NULL;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuFuncSetCacheConfig(CUfunction fn, int config)
{
	(void)config;
	ENTER(NEED_CTX);
	return drv_leave(function_ok(fn) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE);
}

CUresult cuFuncGetModule(CUmodule *module, CUfunction fn)
{
	ENTER(NEED_CTX);
	if (!module || !function_ok(fn))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	*module = fn->module;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuFuncGetName(const char **name, CUfunction fn)
{
	ENTER(NEED_INIT);
	if (!name || !function_ok(fn))
		return drv_leave(CUDA_ERROR_INVALID_HANDLE);
	*name = fn->name;
	return drv_leave(CUDA_SUCCESS);
}

CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUfunction fn, int block_size,
						     size_t shared)
{
	(void)shared;
	ENTER(NEED_CTX);
	if (!blocks || !function_ok(fn) || block_size < 1 || block_size > 1024)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	*blocks = 2048 / block_size < 32 ? 2048 / block_size : 32;
	return drv_leave(CUDA_SUCCESS);
}
