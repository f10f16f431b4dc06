/* SPDX-License-Identifier: Apache-2.0 */
/*
 * egl.c - a libEGL for tests, and what is behind libOpenGL: what opengl.c and libvgpu call. A draw takes
 * as many nanoseconds as the uniform says. It goes to the card when its context is flushed, or has as many
 * draws as its buffer holds. A fence never happens before the flush behind it.
 */
#include <stdint.h>

#include "../../../libvgpu/driver/others_abi.h"
#include "card.h"

#define ABORT() (fprintf(stderr, "stub: %s: not as it may be\n", __func__), abort())
#define BUFFER 16 /* draws */
#define SYNCS 1024

struct sync {
	struct command *command; /* NULL: not flushed */
	bool ours;               /* of EGL */
};
struct context {
	struct queue queue;
	int draws;
	double takes, each;
	struct sync *unflushed[SYNCS];
	unsigned n;
};

static char display, device, config, surface;
static int syncs; /* of EGL that are there */
static bool there;
/* Of the model that the search for leaks can follow in a library that is opened. */
#define OF_THREAD __thread __attribute__((tls_model("initial-exec")))
static OF_THREAD struct context *current;
static OF_THREAD EGLint error = 0x3000;

/* ------------------------------------------------------------------------- OpenGL */
static void kick(void)
{
	struct command *c = put(&current->queue, current->takes, NULL);

	pthread_mutex_lock(&card_lock);
	for (unsigned i = 0; i < current->n; i++)
		current->unflushed[i]->command = kept(c);
	given_up(c);
	pthread_mutex_unlock(&card_lock);
	current->n = 0;
	current->draws = 0;
	current->takes = 0;
}

void stub_glFlush(void)
{
	if (current->draws || current->n)
		kick();
}

void stub_glFinish(void)
{
	stub_glFlush();
	await_queue(&current->queue);
}

void stub_glReadPixels(GLint x, GLint y, GLint width, GLint height, GLenum format, GLenum type,
		       void *data)
{
	stub_glFinish();
}

static struct sync *new_sync(bool ours)
{
	struct sync *s = calloc(1, sizeof *s);

	if (current->n == SYNCS)
		ABORT();
	s->ours = ours;
	current->unflushed[current->n++] = s;
	return s;
}

static void *fence_sync(GLenum what, GLbitfield flags)
{
	return new_sync(false);
}

static void free_sync(struct sync *s)
{
	if (!s->command)
		ABORT(); /* no program here gives up what it has not flushed */
	pthread_mutex_lock(&card_lock);
	given_up(s->command);
	pthread_mutex_unlock(&card_lock);
	free(s);
}

/* Whether it has happened, after a time. */
static bool happened(struct sync *s, bool flush, uint64_t timeout)
{
	double until = card_now() + 1e-9 * (double)timeout;
	struct command *c;

	if (flush && current)
		stub_glFlush();
	for (;;) {
		pthread_mutex_lock(&card_lock);
		c = s->command;
		pthread_mutex_unlock(&card_lock);
		if (c && over(c))
			return true;
		if (card_now() >= until)
			return false;
		card_nap();
	}
}

GLenum stub_glClientWaitSync(GLsync s, GLbitfield flags, uint64_t timeout)
{
	return happened(s, flags & GL_SYNC_FLUSH_COMMANDS_BIT, timeout) ? GL_CONDITION_SATISFIED
									: GL_TIMEOUT_EXPIRED;
}

static void uniform(GLint at, GLint ns)
{
	current->each = 1e-9 * ns;
}

static void draw(GLenum what, GLint from, GLint n)
{
	current->takes += current->each;
	if (++current->draws == BUFFER)
		kick();
}

static void shader_is(uint32_t shader, GLenum what, GLint *out)
{
	*out = 1;
}

static uint32_t nothing(void)
{
	return 1;
}

/* ---------------------------------------------------------------------------- EGL */
static EGLBoolean devices(EGLint most, void **out, EGLint *n)
{
	*out = &device;
	*n = 1;
	return 1;
}

static void *display_of(EGLenum platform, void *d, const EGLint *attributes)
{
	return &display;
}

EGLBoolean eglInitialize(void *d, EGLint *major, EGLint *minor)
{
	if (!there)
		open_card();
	there = true;
	return 1;
}

EGLBoolean eglTerminate(void *d)
{
	if (syncs)
		ABORT(); /* what is made of a display goes before it */
	there = false;
	return 1;
}

/* STUB_VENDOR=...: whose it is. */
gl_text eglQueryString(void *d, EGLint what)
{
	const char *vendor = getenv("STUB_VENDOR");

	return what == EGL_VENDOR ? (vendor ? vendor : "NVIDIA") : "";
}

EGLBoolean eglBindAPI(EGLenum api)
{
	return 1;
}

EGLBoolean eglChooseConfig(void *d, const EGLint *attributes, void **out, EGLint most, EGLint *n)
{
	*out = &config;
	*n = 1;
	return 1;
}

void *eglCreatePbufferSurface(void *d, void *c, const EGLint *attributes)
{
	return &surface;
}

void *eglCreateContext(void *d, void *c, void *share, const EGLint *attributes)
{
	return calloc(1, sizeof(struct context));
}

EGLBoolean eglMakeCurrent(void *d, void *draws, void *reads, void *context)
{
	if (current)
		stub_glFlush();
	current = context;
	return 1;
}

/* STUB_GLX=1: it is not EGL's. */
void *eglGetCurrentContext(void)
{
	return getenv("STUB_GLX") ? NULL : current;
}

void *eglGetCurrentDisplay(void)
{
	return current ? &display : NULL;
}

EGLBoolean eglSwapBuffers(void *d, void *s)
{
	error = s == &surface ? 0x3000 : 0x300D;
	if (s == &surface)
		stub_glFlush();
	return s == &surface;
}

EGLint eglGetError(void)
{
	EGLint r = error;

	error = 0x3000;
	return r;
}

/* STUB_SYNCS=0: there are none. */
void *eglCreateSync(void *d, EGLenum type, const void *attributes)
{
	const char *none = getenv("STUB_SYNCS");

	error = 0x3000;
	if (!there || !current || type != EGL_SYNC_FENCE)
		ABORT();
	if (none && *none == '0')
		return NULL;
	__atomic_add_fetch(&syncs, 1, __ATOMIC_RELAXED);
	return new_sync(true);
}

EGLBoolean eglDestroySync(void *d, void *s)
{
	error = 0x3000;
	if (!there)
		ABORT();
	free_sync(s);
	__atomic_sub_fetch(&syncs, 1, __ATOMIC_RELAXED);
	return 1;
}

EGLint eglClientWaitSync(void *d, void *s, EGLint flags, uint64_t timeout)
{
	error = 0x3000;
	if (!there || !((struct sync *)s)->ours)
		ABORT();
	return happened(s, flags & EGL_SYNC_FLUSH_COMMANDS_BIT, timeout) ? EGL_CONDITION_SATISFIED
									 : EGL_TIMEOUT_EXPIRED;
}

gl_function eglGetProcAddress(const char *name)
{
	static const struct {
		const char *name;
		void *function;
	} all[] = {
		{"eglQueryDevicesEXT", (void *)devices},
		{"eglGetPlatformDisplayEXT", (void *)display_of},
		{"eglMakeCurrent", (void *)eglMakeCurrent},
		{"eglSwapBuffers", (void *)eglSwapBuffers},
		{"eglClientWaitSync", (void *)eglClientWaitSync},
		{"glFlush", (void *)stub_glFlush},
		{"glFinish", (void *)stub_glFinish},
		{"glReadPixels", (void *)stub_glReadPixels},
		{"glClientWaitSync", (void *)stub_glClientWaitSync},
		{"glFenceSync", (void *)fence_sync},
		{"glDeleteSync", (void *)free_sync},
		{"glUniform1i", (void *)uniform},
		{"glDrawArrays", (void *)draw},
		{"glGetShaderiv", (void *)shader_is},
	};

	for (unsigned k = 0; k < sizeof all / sizeof *all; k++)
		if (strcmp(name, all[k].name) == 0)
			return (gl_function)all[k].function;
	return strncmp(name, "gl", 2) == 0 ? (gl_function)nothing : NULL;
}
