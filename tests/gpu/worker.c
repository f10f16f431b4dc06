// SPDX-License-Identifier: Apache-2.0
/* worker.c - the command line. Options hold for the commands behind them. */
#define _GNU_SOURCE
#include "worker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static const char usage[] =
	"usage: vgpu-worker [options] commands, each prints one line of JSON\n"
	"libraries: --libdir DIR (or $VGPU_WORKER_LIBDIR)  --via dlsym|getproc\n"
	"commands:\n"
	"  --count                  number of devices\n"
	"  --list                   what NVML lists: GPUs and MIG instances, a line each\n"
	"  --report                 what driver and NVML say about the card\n"
	"  --fill                   take memory until refused, tell, give it back\n"
	"  --alloc SIZE             take memory and keep it\n"
	"  --saturate SECONDS       keep the card busy, tell the fraction of solo work\n"
	"  --calibrate              what one unit of work takes\n"
	"  --hold SECONDS           wait\n"
	"  --fault                  a kernel that writes to an address that is nobody's\n"
	"options: --device I  --ctx create|primary  --route "
	"linear|pitch|managed|async|pool|vmm|array\n"
	"  --chunk SIZE  --cap SIZE  --fine  --kernel-us N  --inflight K  --streams S  --part PCT\n"
	"  --wait block|spin|poll   for a batch: asleep or spinning in cuEventSynchronize, or by "
	"cuEventQuery\n"
	"  --launch kernel|ex|coop|graph  --start-at EPOCH  --solo-rate KERNELS_PER_SECOND\n"
	"  --unit-ns N --gap-ns N   what --calibrate has told: it is not measured again, beside "
	"others\n";

static uint64_t size_arg(const char *s)
{
	char *end;
	unsigned long long n = strtoull(s, &end, 10);
	const char *units = "KMGT", *u = *end ? strchr(units, *end) : NULL;

	if (end == s || (*end && (!u || end[1])))
		die(s, "want a whole number and K, M, G or T, e.g. 512M");
	return u ? n << (10 * (u - units + 1)) : n;
}

static void use_device(struct worker *w, int dev)
{
	int n = 0;

	must(cu.DeviceGetCount(&n), "cuDeviceGetCount");
	if (dev < 0 || dev >= n || dev >= MAX_DEVICES)
		die("--device", "no such device");
	w->device = dev;
	if (!w->ctx[dev] && w->create_context)
		must(cu.CtxCreate(&w->ctx[dev], 0, dev), "cuCtxCreate");
	else if (!w->ctx[dev])
		must(cu.DevicePrimaryCtxRetain(&w->ctx[dev], dev), "cuDevicePrimaryCtxRetain");
	must(cu.CtxSetCurrent(w->ctx[dev]), "cuCtxSetCurrent");
}

static void hold(double seconds)
{
	struct timespec t = {(time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9)};

	printf("{\"cmd\":\"hold\",\"seconds\":%.3f}\n", seconds);
	fflush(stdout);
	nanosleep(&t, NULL);
}

static bool set_option(struct worker *w, const char *name, const char *value)
{
	if (strcmp(name, "--route") == 0)
		w->route = value;
	else if (strcmp(name, "--launch") == 0)
		w->launch = value;
	else if (strcmp(name, "--wait") == 0)
		w->wait = value;
	else if (strcmp(name, "--chunk") == 0)
		w->chunk = size_arg(value);
	else if (strcmp(name, "--cap") == 0)
		w->cap = size_arg(value);
	else if (strcmp(name, "--kernel-us") == 0)
		w->kernel_us = atof(value);
	else if (strcmp(name, "--inflight") == 0)
		w->inflight = atoi(value);
	else if (strcmp(name, "--streams") == 0)
		w->streams = atoi(value);
	else if (strcmp(name, "--part") == 0)
		w->part = atof(value);
	else if (strcmp(name, "--start-at") == 0)
		w->start_at = atof(value);
	else if (strcmp(name, "--solo-rate") == 0)
		w->solo_rate = atof(value);
	else if (strcmp(name, "--unit-ns") == 0)
		w->unit_ns = atof(value);
	else if (strcmp(name, "--gap-ns") == 0)
		w->gap_ns = atof(value);
	else if (strcmp(name, "--ctx") == 0)
		w->create_context = strcmp(value, "create") == 0;
	else
		return false;
	return true;
}

static bool run_command(struct worker *w, const char *name, const char *value)
{
	if (strcmp(name, "--device") == 0) {
		use_device(w, atoi(value));
		return true;
	}
	if (!w->ctx[w->device])
		use_device(w, w->device);
	if (strcmp(name, "--alloc") == 0)
		cmd_alloc(w, size_arg(value));
	else if (strcmp(name, "--saturate") == 0)
		cmd_saturate(w, atof(value));
	else if (strcmp(name, "--hold") == 0)
		hold(atof(value));
	else
		return false;
	return true;
}

/* Commands and switches without a value. */
static bool run_plain(struct worker *w, const char *name)
{
	if (strcmp(name, "--fine") == 0) {
		w->fine = true;
		return true;
	}
	if (strcmp(name, "--count") == 0) {
		cmd_count();
		return true;
	}
	if (strcmp(name, "--list") == 0) {
		cmd_list();
		return true;
	}
	if (strcmp(name, "--report") && strcmp(name, "--fill") && strcmp(name, "--calibrate") &&
	    strcmp(name, "--fault"))
		return false;
	if (!w->ctx[w->device])
		use_device(w, w->device);
	if (strcmp(name, "--report") == 0)
		cmd_report(w);
	else if (strcmp(name, "--fill") == 0)
		cmd_fill(w);
	else if (strcmp(name, "--fault") == 0)
		cmd_fault();
	else
		cmd_calibrate(w);
	return true;
}

int main(int argc, char **argv)
{
	struct worker w = {.route = "linear",
			   .launch = "kernel",
			   .wait = "block",
			   .kernel_us = 200,
			   .streams = 1,
			   .part = 100};
	const char *libdir = getenv("VGPU_WORKER_LIBDIR"), *via = "dlsym";
	char *word[512];
	int n = 0;

	/* both --name value and --name=value */
	for (int i = 1; i < argc && n < 510; i++) {
		char *eq = strncmp(argv[i], "--", 2) == 0 ? strchr(argv[i], '=') : NULL;

		if (eq)
			*eq = '\0';
		word[n++] = argv[i];
		if (eq)
			word[n++] = eq + 1;
	}
	for (int i = 0; i + 1 < n; i++) {
		if (strcmp(word[i], "--libdir") == 0)
			libdir = word[i + 1];
		if (strcmp(word[i], "--via") == 0)
			via = word[i + 1];
	}
	if (n == 0 || strcmp(word[0], "--help") == 0) {
		fputs(usage, n ? stdout : stderr);
		return n ? 0 : 2;
	}
	driver_load(libdir, strcmp(via, "getproc") == 0);
	nvml_load(libdir);
	for (int i = 0; i < n; i++) {
		if (run_plain(&w, word[i]))
			continue;
		if (i + 1 >= n)
			die(word[i], "unknown, or its value is missing; see --help");
		if (strcmp(word[i], "--libdir") != 0 && strcmp(word[i], "--via") != 0 &&
		    !set_option(&w, word[i], word[i + 1]) && !run_command(&w, word[i], word[i + 1]))
			die(word[i], "unknown; see --help");
		i++;
	}
	return 0;
}
