/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optix.c - launches of OptiX pass the gate of the hard cap as those of kernels do: OptiX gives its work to
 * the driver by functions that have no name. So the functions that a program gets from OptiX's table are
 * these. Work comes in a stream's order, so events before and after it tell what it takes.
 */
#include "../driver/optix_abi.h"
#include "../driver/others.h"
#include "../job/tell.h"
#include "launch.h"

/* Taken for the cost of what has never been measured. */
#define UNKNOWN_OPTIX_NS 1000000u

/* Libraries of one program may bring different versions of the table: so many are told apart. */
#define SETS 3
static int version_of[SETS]; /* 0: not taken yet */
static void *real[SETS][OPTIX_COUNT];

#define PARAMETERS_4 optix_word a, CUstream stream, optix_word c, optix_word d
#define PARAMETERS_5 PARAMETERS_4, optix_word e
#define PARAMETERS_6 PARAMETERS_5, optix_word f
#define PARAMETERS_7 PARAMETERS_6, optix_word g
#define PARAMETERS_8 PARAMETERS_7, optix_word h
#define PARAMETERS_9 PARAMETERS_8, optix_word i
#define PARAMETERS_12 PARAMETERS_9, optix_word j, optix_word k, optix_word l
#define ARGUMENTS_4 a, stream, c, d
#define ARGUMENTS_5 ARGUMENTS_4, e
#define ARGUMENTS_6 ARGUMENTS_5, f
#define ARGUMENTS_7 ARGUMENTS_6, g
#define ARGUMENTS_8 ARGUMENTS_7, h
#define ARGUMENTS_9 ARGUMENTS_8, i
#define ARGUMENTS_12 ARGUMENTS_9, j, k, l

/* Ends vgpu_covered: CUDA launches that OptiX makes inside its call are not gated again. */
static OptixResult ended(OptixResult r)
{
	vgpu_covered = false;
	return r;
}

#define HOOK(set, name, words, size)                                                            \
	static OptixResult name##_##set(PARAMETERS_##words)                                     \
	{                                                                                       \
		OptixResult (*call)(PARAMETERS_##words) =                                       \
			(OptixResult(*)(PARAMETERS_##words))real[set][OPTIX_##name];            \
                                                                                                \
		GATED_WORK(OptixResult, OPTIX_ERROR_LAUNCH_FAILURE, vgpu_stream(stream, false), \
			   vgpu_mix(vgpu_mix(a, OPTIX_##name), size), UNKNOWN_OPTIX_NS, false,  \
			   (vgpu_covered = true, ended(call(ARGUMENTS_##words))));              \
	}
OPTIX_FUNCTIONS(HOOK, 0)
OPTIX_FUNCTIONS(HOOK, 1)
OPTIX_FUNCTIONS(HOOK, 2)

#define ENTRY(set, name, words, size) (void *)name##_##set,
static void *const hooks[SETS][OPTIX_COUNT] = {
	{OPTIX_FUNCTIONS(ENTRY, 0)},
	{OPTIX_FUNCTIONS(ENTRY, 1)},
	{OPTIX_FUNCTIONS(ENTRY, 2)},
};

/* The functions for a version of the table, the same each time; -1: there are none left. */
static int set_of(int version)
{
	int none;

	for (int set = 0; set < SETS; set++) {
		none = 0;
		if (CAS(&version_of[set], &none, version) || none == version)
			return set;
	}
	return -1;
}

/* False: work passes the gate. */
static bool put_hooks(int version, void **table, size_t size)
{
	static const struct optix_table tables[] = {OPTIX_TABLES};
	int set;

	for (unsigned n = 0; n < sizeof tables / sizeof *tables; n++) {
		if (tables[n].version != version)
			continue;
		set = set_of(version);
		for (unsigned i = 0; set >= 0 && i < OPTIX_COUNT; i++) {
			void **entry = &table[tables[n].at[i]];

			if (!tables[n].at[i] || (size_t)(entry - table) >= size / sizeof *table ||
			    !*entry || *entry == hooks[set][i])
				continue;
			STORE(&real[set][i], *entry);
			*entry = hooks[set][i];
		}
		return set >= 0;
	}
	return false;
}

OptixResult optixQueryFunctionTable(int version, unsigned options, const int *keys,
				    const void **values, void *table, size_t size)
{
	OptixResult r;

	VGPU_NEED_API(optixQueryFunctionTable, OPTIX_ERROR_LIBRARY_NOT_FOUND);
	r = vgpu_others.optixQueryFunctionTable(version, options, keys, values, table, size);
	if (r || !table || put_hooks(version, table, size))
		return r;
	vgpu_need_cuda();
	for (unsigned i = 0; vgpu_state.grant && i < vgpu_state.ncards; i++) {
		vgpu_slot_flag(VGPU_SLOT_UNGATED, 0);
		vgpu_tell_ungated((int)i);
	}
	return r;
}
