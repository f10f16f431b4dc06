/* SPDX-License-Identifier: Apache-2.0 */
/*
 * finds.c - comes by the driver's functions in a way that few programs do, takes memory until it
 * is refused, at most 12 GiB, and launches a hundred kernels.
 *
 *   finds --way WAY [--plugin FILE]
 *
 *   dlsym      as most programs: also beside a preload of the user's that wraps dlsym
 *   deepbind   a plugin, loaded with RTLD_DEEPBIND, calls them
 *   dlmopen    libcuda in a namespace of its own
 *   space      a plugin in a namespace of its own calls them
 *   closed     libcuda is closed five times before its functions are called
 *   closefrom  all descriptors but the first three become files of the program's, which must
 *              stay as they are
 *   clone      a child that no handler of fork(2) hears of calls them; the parent has not
 *
 *   copy       the plugin is a copy of libcuda, opened after libcuda has been asked for a function
 *   second     the same, but libcuda has not been asked for one
 *   crowded    no address space is left when libcuda is asked for the first function; prints "refused": 1
 *              where no context is made
 *   none       none: whether a name is found in a program that has not loaded the driver
 *
 * Prints {"granted": GiB, "launched": kernels}.
 */
#define _GNU_SOURCE
#include "kernels.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

static void *library_of_driver, *(*find)(const char *);

static void *by_dlsym(const char *name)
{
	return dlsym(library_of_driver, name);
}

static int open_driver(const char *way, const char *plugin)
{
	void *p;

	find = by_dlsym;
	if (strcmp(way, "deepbind") == 0 || strcmp(way, "space") == 0) {
		p = *way == 'd' ? dlopen(plugin, RTLD_NOW | RTLD_DEEPBIND)
				: dlmopen(LM_ID_NEWLM, plugin, RTLD_NOW);
		find = p ? (void *(*)(const char *))dlsym(p, "plugin_find") : NULL;
		return find ? 0 : 2;
	}
	library_of_driver = strcmp(way, "dlmopen") == 0
				    ? dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW)
				    : dlopen("libcuda.so.1", RTLD_NOW);
	if (strcmp(way, "copy") == 0 && (!library_of_driver || !find("cuInit")))
		return 2;
	if (strcmp(way, "copy") == 0 || strcmp(way, "second") == 0)
		library_of_driver = dlopen(plugin, RTLD_NOW);
	return library_of_driver ? 0 : 2;
}

#define FILES 64
static int files[FILES];

static int replace_descriptors(void)
{
	for (int fd = 3; fd < 1024; fd++)
		close(fd);
	for (int i = 0; i < FILES; i++)
		if ((files[i] = memfd_create("own", 0)) < 0 || ftruncate(files[i], 4096))
			return 1;
	return 0;
}

static int are_untouched(void)
{
	struct stat st;

	for (int i = 0; i < FILES; i++) {
		if (fstat(files[i], &st) || st.st_size != 4096 || st.st_blocks ||
		    lseek(files[i], 0, SEEK_CUR) != 0)
			return 0;
	}
	return 1;
}

/* The library reads its limits at the first question, with 1 MiB left. */
static int ask_without_room(void)
{
	struct rlimit before, now;
	unsigned long pages = 0;
	FILE *f = fopen("/proc/self/statm", "r");

	if (!f || fscanf(f, "%lu", &pages) != 1 || getrlimit(RLIMIT_AS, &before))
		return 1;
	fclose(f);
	now = before;
	now.rlim_cur = pages * (unsigned long)sysconf(_SC_PAGESIZE) + (1 << 20);
	if (setrlimit(RLIMIT_AS, &now) || !find("cuInit"))
		return 1;
	return setrlimit(RLIMIT_AS, &before);
}

int main(int argc, char **argv)
{
	static const char ptx[] = ".version 7.0\n"
				  ".target sm_70\n"
				  ".address_size 64\n"
				  "// simgpu: entry=work ns_per_unit=20 unit_param=0\n"
				  ".visible .entry work(.param .u32 units) { ret; }\n";
	const char *way = opt(argc, argv, "--way", "dlsym");
	CUcontext ctx;
	CUmodule module;
	CUfunction work;
	CUdeviceptr address;
	unsigned granted = 0, launched = 0, units = 50;
	void *params[] = {&units};

	if (strcmp(way, "none") == 0) {
		printf("{\"default\":%d,\"next\":%d,\"other\":%d}\n",
		       dlsym(RTLD_DEFAULT, "cuInit") != NULL, dlsym(RTLD_NEXT, "cuInit") != NULL,
		       dlsym(RTLD_DEFAULT, "printf") != NULL);
		return 0;
	}
	if (strcmp(way, "clone") == 0) {
		long child = syscall(SYS_clone, SIGCHLD, NULL, NULL, NULL, NULL);
		int status;

		if (child)
			return child < 0 || waitpid((pid_t)child, &status, 0) != child || status;
	}
	if (open_driver(way, opt(argc, argv, "--plugin", ""))) {
		fprintf(stderr, "finds: %s\n", dlerror());
		return 2;
	}
	if (strcmp(way, "crowded") == 0 && ask_without_room())
		return 8;
	CUresult (*init)(unsigned) = find("cuInit");
	CUresult (*create)(CUcontext *, unsigned, CUdevice) = find("cuCtxCreate_v2");
	CUresult (*alloc)(CUdeviceptr *, size_t) = find("cuMemAlloc_v2");
	CUresult (*load)(CUmodule *, const void *) = find("cuModuleLoadData");
	CUresult (*function)(CUfunction *, CUmodule, const char *) = find("cuModuleGetFunction");
	CUresult (*launch)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
			   unsigned, CUstream, void **, void **) = find("cuLaunchKernel");
	CUresult (*wait_for_all)(void) = find("cuCtxSynchronize");

	if (!init || !create || !alloc || !load || !function || !launch || !wait_for_all)
		return 3;
	for (int i = 0; i < 5 && strcmp(way, "closed") == 0; i++)
		dlclose(library_of_driver);
	if (init(0))
		return 4;
	if (strcmp(way, "crowded") == 0 && create(&ctx, 0, 0)) {
		printf("{\"refused\":1}\n");
		return 0;
	}
	if ((strcmp(way, "crowded") && create(&ctx, 0, 0)) || load(&module, ptx) ||
	    function(&work, module, "work"))
		return 4;
	if (strcmp(way, "closefrom") == 0 && replace_descriptors())
		return 6;
	while (launched < 100 && launch(work, 1, 1, 1, 32, 1, 1, 0, NULL, params, NULL) == 0)
		launched++;
	while (granted < 12 && alloc(&address, 1ull << 30) == 0)
		granted++;
	if (wait_for_all())
		return 5;
	if (strcmp(way, "closefrom") == 0 && !are_untouched())
		return 7;
	printf("{\"granted\":%u,\"launched\":%u}\n", granted, launched);
	return 0;
}
