/* SPDX-License-Identifier: Apache-2.0 */
/*
 * walk.c - a program without libdl whose threads have character sets loaded and unloaded, as iconv
 * does, while it asks of its terminal: on a glibc before 2.34 libvgpu.so looks for dlsym then,
 * among objects that come and go.
 */
#include <iconv.h>
#include <pthread.h>
#include <stdbool.h>
#include <sys/ioctl.h>

static bool stop;

static void *convert(void *unused)
{
	static const char *const sets[] = {"KOI8-R", "CP1251", "ISO-8859-7", "EUC-JP",
					   "BIG5",   "CP437",  "MACINTOSH",  "KOI8-U"};

	for (unsigned i = 0; !__atomic_load_n(&stop, __ATOMIC_RELAXED); i++) {
		iconv_t c = iconv_open("UTF-8", sets[i % 8]);

		if (c == (iconv_t)-1)
			return &stop;
		iconv_close(c);
	}
	return unused;
}

int main(void)
{
	pthread_t thread[2];
	struct winsize size;
	void *failed = NULL;

	for (int i = 0; i < 2; i++)
		pthread_create(&thread[i], NULL, convert, NULL);
	for (int i = 0; i < 2000000; i++)
		ioctl(0, TIOCGWINSZ, &size);
	__atomic_store_n(&stop, true, __ATOMIC_RELAXED);
	for (int i = 0; i < 2 && !failed; i++)
		pthread_join(thread[i], &failed);
	return failed != NULL;
}
