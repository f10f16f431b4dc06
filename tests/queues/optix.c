/* SPDX-License-Identifier: Apache-2.0 */
/*
 * optix.c - launches of OptiX on the simulated card, by the stub of it.
 *
 *   optix [--how full|one|builds|both] [--version 87] [--us 1000] [--depth 4] [--secs 2]
 *
 * full: so many launches ahead of the card; one: waits for each; builds: builds instead; both: by the
 * tables of two versions in turn. Prints which part of the time was work.
 */
#include "../../libvgpu/driver/optix_abi.h"
#include "../stress/programs/kernels.h"

#include <stdbool.h>
#include <stdlib.h>

#define ENTRIES 60
#define NEWEST 118

typedef OptixResult query_function(int, unsigned, const int *, const void **, void *, size_t);
typedef OptixResult launch_function(CUfunction, CUstream, optix_word, optix_word, optix_word,
				    unsigned, unsigned, unsigned);
typedef OptixResult build_function(CUfunction, CUstream, optix_word, optix_word, unsigned,
				   optix_word, optix_word, optix_word, optix_word, optix_word *,
				   optix_word, unsigned);

static void *table[2][ENTRIES];

static unsigned char where(int version, enum optix_function f)
{
	static const struct optix_table tables[] = {OPTIX_TABLES};

	for (unsigned i = 0; i < sizeof tables / sizeof *tables; i++)
		if (tables[i].version == version)
			return tables[i].at[f];
	return 0; /* the stub's own */
}

static int version = 87;
static bool builds;

static bool launch(const struct kernels *k, int which, unsigned units)
{
	int of = which ? NEWEST : version;
	optix_word handle = 0;

	if (!builds)
		return !((launch_function *)table[which][where(of, OPTIX_Launch)])(k->work,
										   k->stream, units,
										   0, 0, 10, 20, 1);
	return !((build_function *)table[which][where(of, OPTIX_AccelBuild)])(k->work, k->stream,
									      units, 0, 1, 0, 0, 0,
									      4096, &handle, 0,
									      12) &&
	       handle == 12;
}

int main(int argc, char **argv)
{
	const char *how = opt(argc, argv, "--how", "full");
	unsigned units = (unsigned)(1000 * atof(opt(argc, argv, "--us", "1000")) / NS_PER_UNIT);
	unsigned depth = (unsigned)atoi(opt(argc, argv, "--depth", "4"));
	double secs = atof(opt(argc, argv, "--secs", "2")), start, spent;
	struct kernels k;
	void *optix = dlopen("libnvoptix.so.1", RTLD_NOW);
	query_function *query = optix ? dlsym(optix, "optixQueryFunctionTable") : NULL;
	unsigned long n = 0;

	version = atoi(opt(argc, argv, "--version", "87"));
	builds = strcmp(how, "builds") == 0;
	if (strcmp(how, "one") == 0)
		depth = 1;
	if (!query || query(0, 0, NULL, NULL, table, sizeof table) != 7801 ||
	    kernels_open(&k, "") || query(version, 0, NULL, NULL, table[0], sizeof table[0]) ||
	    query(NEWEST, 0, NULL, NULL, table[1], sizeof table[1])) {
		fprintf(stderr, "optix: no card, or no OptiX\n");
		return 2;
	}
	start = now_s();
	do {
		for (unsigned i = 0; i < depth; i++, n++)
			if (!launch(&k, strcmp(how, "both") == 0 && n % 2, units))
				return 3;
		if (k.wait_for(k.stream))
			return 3;
	} while ((spent = now_s() - start) < secs);
	printf("{\"api\":\"optix\",\"how\":\"%s\",\"part\":%.4f,\"n\":%lu}\n", how,
	       1e-9 * (double)n * units * NS_PER_UNIT / spent, n);
	return 0;
}
