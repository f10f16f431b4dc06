/* SPDX-License-Identifier: Apache-2.0 */
/*
 * together.c - a thread's first question for the driver, while another loads a plugin whose
 * constructor asks for it too, with the loader's lock held.
 *
 *   together --plugin FILE [--times 20]
 *
 * For the libcuda of stub.c, which says when the library looks for its functions.
 * Each time is a process of its own, which is killed when it takes 5 s. Prints how many were.
 */
#include <pthread.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common.h"

static const char *plugin;
static int *resolving;

static void *load(void *unused)
{
	(void)unused;
	while (!__atomic_load_n(resolving, __ATOMIC_ACQUIRE))
		;
	return dlopen(plugin, RTLD_NOW);
}

static int once(void)
{
	void *cuda = dlopen("libcuda.so.1", RTLD_NOW), *loaded;
	int (*init)(unsigned);
	pthread_t t;

	alarm(5);
	resolving = cuda ? dlsym(cuda, "stub_resolving") : NULL;
	if (!resolving || pthread_create(&t, NULL, load, NULL))
		return 1;
	usleep(1000); /* it looks at resolving by then */
	*(void **)&init = dlsym(cuda, "cuInit");
	return !init || init(0) || pthread_join(t, &loaded) || !loaded;
}

int main(int argc, char **argv)
{
	int times = atoi(opt(argc, argv, "--times", "20")), hung = 0, failed = 0, status;

	plugin = opt(argc, argv, "--plugin", "");
	for (int i = 0; i < times && !hung; i++) {
		pid_t child = fork();

		if (child == 0)
			_exit(once());
		if (child < 0 || waitpid(child, &status, 0) != child)
			return 2;
		hung += WIFSIGNALED(status);
		failed += WIFEXITED(status) && WEXITSTATUS(status);
	}
	printf("{\"hung\":%d,\"failed\":%d}\n", hung, failed);
	return 0;
}
