/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opengl.c - work that OpenGL puts on a card by EGL passes the gate of the hard limit. What a context is
 * told goes to the card where the program flushes it, and before that whenever the driver's buffer is
 * full. So a thread does not wait before it flushes, when that may run already, but after. The mark is
 * a fence of EGL's before the flush: any thread may ask for it, and nothing of the context changes.
 */
#include <string.h>

#include "../compute/queues.h"
#include "../driver/others.h"
#include "../job/tell.h"

/* --------------------------------------------------------------------------- marks */
/* An error ends it, too: of a display that is not there any more. */
static bool ended(const struct vgpu_mark *m)
{
	return vgpu_others.eglClientWaitSync(m->device, (EGLSync)(uintptr_t)m->handle, 0, 0) !=
	       EGL_TIMEOUT_EXPIRED;
}

static void drop(const struct vgpu_mark *m)
{
	vgpu_others.eglDestroySync(m->device, (EGLSync)(uintptr_t)m->handle);
}

static const struct vgpu_mark_kind kind = {.ended = ended, .drop = drop};

/* ------------------------------------------------------------------------ submissions */
static bool gated; /* any has been */

/* A library that looks for its own function may find the hook. */
static void told(const char *name, const char *as, gl_function real)
{
	if (real && (void *)real != vgpu_others_named(as))
		vgpu_function_is(name, (void *)real);
}

/* EGL before 1.5 has fences as an extension, and a program may have functions by EGL alone. */
static bool complete(void)
{
	static const struct {
		const char *name, *as;
		void **real;
	} needed[] = {
		{"eglCreateSync", "eglCreateSyncKHR", (void **)&vgpu_others.eglCreateSync},
		{"eglDestroySync", "eglDestroySyncKHR", (void **)&vgpu_others.eglDestroySync},
		{"eglClientWaitSync", "eglClientWaitSyncKHR",
		 (void **)&vgpu_others.eglClientWaitSync},
		{"glFlush", "glFlush", (void **)&vgpu_others.glFlush},
		{"glFinish", "glFinish", (void **)&vgpu_others.glFinish},
	};

	for (unsigned i = 0; i < sizeof needed / sizeof *needed; i++) {
		if (!LOAD(needed[i].real) && vgpu_others.eglGetProcAddress)
			told(needed[i].name, needed[i].as,
			     vgpu_others.eglGetProcAddress(needed[i].as));
		if (!LOAD(needed[i].real))
			return false;
	}
	return vgpu_others.eglGetCurrentDisplay && vgpu_others.eglQueryString;
}

/* False: this thread draws on no card by EGL. Without a context of EGL's it is by GLX, which is told, but
 * for a call of EGL itself. */
static bool draws(struct vgpu_mark *mark, uint32_t cards, bool egl)
{
	const char *vendor;

	if (vgpu_others.eglGetCurrentContext)
		mark->queue = vgpu_others.eglGetCurrentContext();
	if (!mark->queue || !complete()) {
		if (!egl && !LOAD(&gated) && !vgpu_others.clFlush && !vgpu_others.vkQueueSubmit)
			vgpu_tell_ungated(__builtin_ctz(cards));
		return false;
	}
	mark->device = vgpu_others.eglGetCurrentDisplay();
	vendor = vgpu_others.eglQueryString(mark->device, EGL_VENDOR);
	return vendor && strcmp(vendor, "NVIDIA") == 0;
}

/* Flushes what this thread has drawn, if there is a gate: then it is to pay on those cards. The time begins
 * before the fence: NVIDIA's driver begins the work in eglCreateSync, and waits there until it has ended
 * (driver 580). Where there is no fence the library waits. */
static uint32_t submit(bool egl)
{
	struct vgpu_mark mark = {.kind = &kind};
	struct vgpu_submission s;
	uint32_t cards = vgpu_queues_gated(vgpu_queues_cards());

	if (likely(!cards) || !draws(&mark, cards, egl))
		return 0;
	if (!EXCHANGE(&gated, true))
		vgpu_queue_wait(cards); /* for what processes before it have left unpaid */
	vgpu_queue_begin(&s, cards);
	mark.handle = (uintptr_t)vgpu_others.eglCreateSync(mark.device, EGL_SYNC_FENCE, NULL);
	if (mark.handle)
		vgpu_others.glFlush();
	else
		vgpu_others.glFinish();
	vgpu_queue_leave(&s, mark.handle ? &mark : NULL);
	return cards;
}

void glFlush(void)
{
	VGPU_NEED_API(glFlush, );
	uint32_t cards = submit(false);

	if (!cards)
		vgpu_others.glFlush();
	vgpu_queue_wait(cards);
}

/* --------------------------------------------------- the host learns that work has ended */
void glFinish(void)
{
	VGPU_NEED_API(glFinish, );
	uint32_t cards = submit(false);

	vgpu_others.glFinish();
	vgpu_marks_look(true);
	vgpu_queue_wait(cards);
}

void glReadPixels(GLint x, GLint y, GLint width, GLint height, GLenum format, GLenum type,
		  void *data)
{
	VGPU_NEED_API(glReadPixels, );
	uint32_t cards = submit(false);

	vgpu_others.glReadPixels(x, y, width, height, format, type, data);
	vgpu_marks_look(true);
	vgpu_queue_wait(cards);
}

GLenum glClientWaitSync(GLsync sync, GLbitfield flags, uint64_t timeout)
{
	VGPU_NEED_API(glClientWaitSync, GL_WAIT_FAILED);
	uint32_t cards = flags & GL_SYNC_FLUSH_COMMANDS_BIT ? submit(false) : 0;
	GLenum r = vgpu_others.glClientWaitSync(sync, flags, timeout);

	if (r == GL_ALREADY_SIGNALED || r == GL_CONDITION_SATISFIED)
		vgpu_marks_look(true);
	vgpu_queue_wait(cards);
	return r;
}

#define HOOK(result, name, params)
#define USE(result, name, params)
/* A swap. If it fails, no call of EGL comes after it: the program may ask for the error. */
#define WORK(result, name, params, args)       \
	result name params                     \
	{                                      \
		VGPU_NEED_API(name, false);    \
		uint32_t cards = submit(true); \
                                               \
		if (!vgpu_others.name args)    \
			return false;          \
		vgpu_queue_wait(cards);        \
		return true;                   \
	}
#define WAIT(result, name, params, args)                                                 \
	result name params                                                               \
	{                                                                                \
		VGPU_NEED_API(name, false);                                              \
		uint32_t cards = flags & EGL_SYNC_FLUSH_COMMANDS_BIT ? submit(true) : 0; \
		result r = vgpu_others.name args;                                        \
                                                                                         \
		if (r == EGL_CONDITION_SATISFIED)                                        \
			vgpu_marks_look(true);                                           \
		if (r)                                                                   \
			vgpu_queue_wait(cards);                                          \
		return r;                                                                \
	}
#include "../driver/opengl.def"

/* ------------------------------------------------------------------- contexts, functions */
/* Now there may be a context of EGL's. */
EGLBoolean eglMakeCurrent(EGLDisplay display, EGLSurface draw, EGLSurface read, EGLContext context)
{
	VGPU_NEED_API(eglMakeCurrent, false);
	return vgpu_others.eglMakeCurrent(display, draw, read, context);
}

EGLBoolean eglTerminate(EGLDisplay display)
{
	VGPU_NEED_API(eglTerminate, false);
	if (submit(true))
		vgpu_others.glFinish();
	if (display)
		vgpu_marks_forget(display);
	return vgpu_others.eglTerminate(display);
}

#define GET_PROC(name, text)                                   \
	gl_function name(const text *function)                 \
	{                                                      \
		const char *asked = (const char *)function;    \
		gl_function real;                              \
		void *hook;                                    \
                                                               \
		VGPU_NEED_API(name, NULL);                     \
		real = vgpu_others.name(function);             \
		hook = real ? vgpu_others_named(asked) : NULL; \
		if (!hook)                                     \
			return real;                           \
		told(asked, asked, real);                      \
		return (gl_function)hook;                      \
	}
GET_PROC(eglGetProcAddress, char)
GET_PROC(glXGetProcAddress, unsigned char)
GET_PROC(glXGetProcAddressARB, unsigned char)
