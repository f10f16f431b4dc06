/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opengl.c - keeps a card busy with OpenGL by EGL, on a real card and on the stub.
 *
 *   opengl [--how full|one|reads|waits|swap|frames|two] [--by egl|library] [--us 1000] [--depth 4]
 *          [--secs 2] [--start T] [--units N]
 *
 * A draw into a texture takes about US microseconds.
 *
 * full    DEPTH draws are always in the queue, each with a fence and a flush
 * one     one draw, and glFinish
 * reads   one draw, and a pixel is read
 * waits   one draw, whose fence is waited for, by a wait that flushes
 * swap    as full, by eglSwapBuffers in place of the flush
 * frames  50 draws, and glFinish: the driver begins some before
 * two     as full, in two threads with a context each
 *
 * by: eglGetProcAddress or dlsym; with -DLINKED the linker finds what libvgpu stands for. The rest as
 * opencl.c. At the end a swap fails, and EGL must still say why.
 */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "../stress/programs/common.h"
#include "must.h"

#define EXPORTED(X)                                                             \
	X(void, glFlush, (void))                                                \
	X(void, glFinish, (void))                                               \
	X(void, glReadPixels, (int, int, int, int, unsigned, unsigned, void *)) \
	X(unsigned, glClientWaitSync, (void *, unsigned, uint64_t))             \
	X(unsigned, eglMakeCurrent, (void *, void *, void *, void *))           \
	X(unsigned, eglSwapBuffers, (void *, void *))                           \
	X(unsigned, eglTerminate, (void *))
#define OTHERS(X)                                                                      \
	X(unsigned, eglQueryDevicesEXT, (int, void **, int *))                         \
	X(void *, eglGetPlatformDisplayEXT, (unsigned, void *, const int *))           \
	X(unsigned, eglInitialize, (void *, int *, int *))                             \
	X(unsigned, eglBindAPI, (unsigned))                                            \
	X(unsigned, eglChooseConfig, (void *, const int *, void **, int, int *))       \
	X(void *, eglCreatePbufferSurface, (void *, void *, const int *))              \
	X(void *, eglCreateContext, (void *, void *, void *, const int *))             \
	X(int, eglGetError, (void))                                                    \
	X(unsigned, glCreateShader, (unsigned))                                        \
	X(void, glShaderSource, (unsigned, int, const char *const *, const int *))     \
	X(void, glCompileShader, (unsigned))                                           \
	X(void, glGetShaderiv, (unsigned, unsigned, int *))                            \
	X(unsigned, glCreateProgram, (void))                                           \
	X(void, glAttachShader, (unsigned, unsigned))                                  \
	X(void, glLinkProgram, (unsigned))                                             \
	X(void, glUseProgram, (unsigned))                                              \
	X(int, glGetUniformLocation, (unsigned, const char *))                         \
	X(void, glUniform1i, (int, int))                                               \
	X(void, glGenTextures, (int, unsigned *))                                      \
	X(void, glBindTexture, (unsigned, unsigned))                                   \
	X(void, glTexStorage2D, (unsigned, int, unsigned, int, int))                   \
	X(void, glGenFramebuffers, (int, unsigned *))                                  \
	X(void, glBindFramebuffer, (unsigned, unsigned))                               \
	X(void, glFramebufferTexture2D, (unsigned, unsigned, unsigned, unsigned, int)) \
	X(void, glViewport, (int, int, int, int))                                      \
	X(void, glGenVertexArrays, (int, unsigned *))                                  \
	X(void, glBindVertexArray, (unsigned))                                         \
	X(void, glDrawArrays, (unsigned, int, int))                                    \
	X(void *, glFenceSync, (unsigned, unsigned))                                   \
	X(void, glDeleteSync, (void *))

#ifdef LINKED
#define X(result, name, params) result name params;
EXPORTED(X)
#undef X
#endif

static struct {
#define X(result, name, params) result(*name) params;
	EXPORTED(X)
	OTHERS(X)
#undef X
} gl;

#define DEVICE_PLATFORM 0x313Fu
#define OPENGL_API 0x30A2u
#define BAD_SURFACE 0x300D
#define SIDE 1024
#define PROBE 1000
#define FRAME 50
#define DEPTH_MOST 64
#define FLUSH 1u
#define LONG 1000000000000u

static const char *const vertex =
	"#version 430\n"
	"void main()\n"
	"{\n"
	"	gl_Position = vec4(gl_VertexID == 1 ? 3 : -1, gl_VertexID == 2 ? 3 : -1, 0, 1);\n"
	"}\n";
static const char *const fragment = "#version 430\n"
				    "uniform int n;\n"
				    "out vec4 color;\n"
				    "void main()\n"
				    "{\n"
				    "	float x = gl_FragCoord.x * 1e-3;\n"
				    "	for (int i = 0; i < n; i++)\n"
				    "		x = fract(x * 1.0001 + 0.37);\n"
				    "	color = vec4(x);\n"
				    "}\n";

static void *egl, *display, *context[2], *surface;
static double (*busy)(double, double);
static unsigned depth;
static int units;

static void find(const char *by)
{
	void *lib = NULL, *(*of_egl)(const char *);

	egl = dlopen("libEGL.so.1", RTLD_NOW);
	must(!egl, "no libEGL.so.1");
	*(void **)&of_egl = dlsym(egl, "eglGetProcAddress");
	must(!of_egl, "eglGetProcAddress");
	if (strcmp(by, "library") == 0) {
		lib = dlopen("libOpenGL.so.0", RTLD_NOW);
		must(!lib, "no libOpenGL.so.0");
	}
#define X(result, name, params)                                                               \
	*(void **)&gl.name = lib ? dlsym(#name[0] == 'e' ? egl : lib, #name) : of_egl(#name); \
	if (!gl.name)                                                                         \
		*(void **)&gl.name = lib ? of_egl(#name) : dlsym(egl, #name);                 \
	must(!gl.name, #name);
	EXPORTED(X)
	OTHERS(X)
#undef X
#ifdef LINKED
#define X(result, name, params) gl.name = name;
	EXPORTED(X)
#undef X
#endif
}

static void open_card(void)
{
	static const int want[] = {0x3033, 1, 0x3040, 8, 0x3038}; /* pbuffers, OpenGL */
	static const int version[] = {0x3098, 4, 0x30FB, 3, 0x30FD, 1, 0x3038};
	static const int size[] = {0x3057, 16, 0x3056, 16, 0x3038};
	void *devices[16], *config;
	int n = 0, configs = 0;

	must(!gl.eglQueryDevicesEXT(16, devices, &n) || n < 1, "no device of EGL");
	for (int i = 0; i < n && !display; i++) {
		display = gl.eglGetPlatformDisplayEXT(DEVICE_PLATFORM, devices[i], NULL);
		if (display && !gl.eglInitialize(display, NULL, NULL))
			display = NULL;
	}
	must(!display, "no display");
	must(!gl.eglChooseConfig(display, want, &config, 1, &configs) || configs < 1, "no config");
	must(!gl.eglBindAPI(OPENGL_API), "eglBindAPI");
	surface = gl.eglCreatePbufferSurface(display, config, size);
	must(!surface, "eglCreatePbufferSurface");
	for (int i = 0; i < 2; i++) {
		context[i] = gl.eglCreateContext(display, config, NULL, version);
		must(!context[i], "eglCreateContext");
	}
}

/* One triangle that covers the texture; n of the shader is at *at. */
static void set_up(int which, int *at)
{
	unsigned program, texture, frame, array, shader;
	int ok = 0;

	must(!gl.eglMakeCurrent(display, which ? NULL : surface, which ? NULL : surface,
				context[which]),
	     "eglMakeCurrent");
	program = gl.glCreateProgram();
	for (int i = 0; i < 2; i++) {
		shader = gl.glCreateShader(i ? 0x8B30 : 0x8B31);
		gl.glShaderSource(shader, 1, i ? &fragment : &vertex, NULL);
		gl.glCompileShader(shader);
		gl.glGetShaderiv(shader, 0x8B81, &ok);
		must(!ok, "shader");
		gl.glAttachShader(program, shader);
	}
	gl.glLinkProgram(program);
	gl.glUseProgram(program);
	*at = gl.glGetUniformLocation(program, "n");
	gl.glGenTextures(1, &texture);
	gl.glBindTexture(0x0DE1, texture);
	gl.glTexStorage2D(0x0DE1, 1, 0x8058, SIDE, SIDE);
	gl.glGenFramebuffers(1, &frame);
	gl.glBindFramebuffer(0x8D40, frame);
	gl.glFramebufferTexture2D(0x8D40, 0x8CE0, 0x0DE1, texture, 0);
	gl.glViewport(0, 0, SIDE, SIDE);
	gl.glGenVertexArrays(1, &array);
	gl.glBindVertexArray(array);
}

static void draw(void)
{
	gl.glDrawArrays(4, 0, 3);
}

/* Seconds that one takes, the least of some. */
static double takes(void)
{
	double best = 1e9;

	for (int i = 0; i < 8; i++) {
		double began = now_s();

		draw();
		gl.glFinish();
		if (now_s() - began < best)
			best = now_s() - began;
	}
	return best;
}

static void *fenced(void)
{
	void *fence = gl.glFenceSync(0x9117, 0);

	must(!fence, "glFenceSync");
	return fence;
}

/* flags: what does not flush on a card may be a swap of a pbuffer. */
static void await(void *fence, unsigned flags)
{
	must(gl.glClientWaitSync(fence, flags, LONG) == 0x911D, "glClientWaitSync");
	gl.glDeleteSync(fence);
}

static unsigned long full(bool swap, double until)
{
	void *fence[DEPTH_MOST] = {NULL};
	unsigned flags = swap && !busy ? FLUSH : 0;
	unsigned long n = 0;

	for (unsigned i = 0; now_s() < until; i = (i + 1) % depth) {
		if (fence[i]) {
			await(fence[i], flags);
			n++;
		}
		draw();
		fence[i] = fenced();
		if (swap)
			must(!gl.eglSwapBuffers(display, surface), "eglSwapBuffers");
		else
			gl.glFlush();
	}
	for (unsigned i = 0; i < depth; i++)
		if (fence[i])
			await(fence[i], flags);
	return n;
}

static unsigned long one(const char *how, double until)
{
	unsigned draws = strcmp(how, "frames") == 0 ? FRAME : 1;
	unsigned long n = 0;
	uint32_t pixel;

	for (; now_s() < until; n += draws) {
		for (unsigned i = 0; i < draws; i++)
			draw();
		if (strcmp(how, "waits") == 0)
			await(fenced(), FLUSH);
		else if (strcmp(how, "reads") == 0)
			gl.glReadPixels(0, 0, 1, 1, 0x1908, 0x1401, &pixel);
		else
			gl.glFinish();
	}
	return n;
}

static unsigned long run(const char *how, double until)
{
	if (strcmp(how, "full") == 0 || strcmp(how, "two") == 0 || strcmp(how, "swap") == 0)
		return full(strcmp(how, "swap") == 0, until);
	return one(how, until);
}

/* The other of two threads. */
static double both_from, both_until;
static unsigned long other_n;

static void *other(void *unused)
{
	int at;

	(void)unused;
	set_up(1, &at);
	gl.glUniform1i(at, units);
	full(false, both_from);
	other_n = full(false, both_until);
	must(!gl.eglMakeCurrent(display, NULL, NULL, NULL), "eglMakeCurrent");
	return NULL;
}

int main(int argc, char **argv)
{
	const char *how = opt(argc, argv, "--how", "full");
	double us = atof(opt(argc, argv, "--us", "1000")),
	       secs = atof(opt(argc, argv, "--secs", "2"));
	double start = atof(opt(argc, argv, "--start", "0")), alone, spent;
	pthread_t second;
	unsigned long n;
	int at;

	units = atoi(opt(argc, argv, "--units", "0"));
	depth = (unsigned)atoi(opt(argc, argv, "--depth", "4"));
	must(depth < 1 || depth > DEPTH_MOST, "--depth");
	find(opt(argc, argv, "--by", "egl"));
	*(void **)&busy = dlsym(egl, "stub_busy");
	open_card();
	set_up(0, &at);
	if (!units && busy)
		units = (int)(1000 * us); /* the stub's are ns */
	if (!units) {
		gl.glUniform1i(at, PROBE);
		takes();
		units = (int)(PROBE * us * 1e-6 / takes());
	}
	gl.glUniform1i(at, units);
	alone = takes();
	if (start < now_s())
		start = now_s();
	both_from = start;
	both_until = start + secs;
	if (strcmp(how, "two") == 0)
		must(pthread_create(&second, NULL, other, NULL), "pthread_create");
	run(how, start);
	start = now_s();
	n = run(how, start + secs);
	spent = now_s() - start;
	if (strcmp(how, "two") == 0)
		pthread_join(second, NULL);
	n += other_n;
	printf("{\"api\":\"opengl\",\"how\":\"%s\",\"rate\":%.2f,\"alone_us\":%.1f,\"units\":%d,"
	       "\"part\":%.4f,"
	       "\"secs\":%.3f,\"n\":%lu}\n",
	       how, (double)n / spent, 1e6 * alone, units,
	       busy ? busy(start, start + spent) / spent : (double)n * alone / spent, spent, n);
	fflush(stdout);
	full(false, now_s() + (busy ? 0 : 1)); /* another may still count */
	must(gl.eglSwapBuffers(display, NULL) != 0, "a swap of nothing");
	must(gl.eglGetError() != BAD_SURFACE, "the error of a swap of nothing");
	must(!gl.eglMakeCurrent(display, NULL, NULL, NULL), "eglMakeCurrent");
	must(!gl.eglTerminate(display), "eglTerminate");
	return 0;
}
