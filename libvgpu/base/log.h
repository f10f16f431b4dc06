/* SPDX-License-Identifier: Apache-2.0 */
/* log.h - the way to stderr, and calls that may raise a signal. */
#ifndef VGPU_BASE_LOG_H
#define VGPU_BASE_LOG_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>

#include "../atomic.h"

/* A signal that the library's next call may raise is none of the program's: what
 * is raised between the two is taken back. raised: it may be there now. */
struct vgpu_signal_hold {
	sigset_t signal, before;
	bool held, had;
};
void vgpu_signal_hold(struct vgpu_signal_hold *h, int signal);
void vgpu_signal_drop(struct vgpu_signal_hold *h, bool raised);

/* To stderr, only when VGPU_LOG_LEVEL asks, a bounded number of lines. */
void vgpu_say(const char *text, size_t len); /* to stderr, or nowhere: it never waits */
void vgpu_warn(const char *fmt, ...) __attribute__((format(printf, 1, 2))); /* a line, always */
/* The same, once for each place in the code. */
#define vgpu_warn_once(...)                     \
	do {                                    \
		static bool warned;             \
                                                \
		if (!EXCHANGE(&warned, true))   \
			vgpu_warn(__VA_ARGS__); \
	} while (0)
/* Reads the environment, which a program may change while other threads run: at attach. */
void vgpu_log_settings(void);
enum vgpu_log_level { VGPU_LOG_ERROR = 1, VGPU_LOG_WARN, VGPU_LOG_INFO, VGPU_LOG_DEBUG };
void vgpu_log(enum vgpu_log_level level, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

#endif
