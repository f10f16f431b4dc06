/* SPDX-License-Identifier: Apache-2.0 */
/*
 * opengl_abi.h - what of EGL and OpenGL this library calls and stands for. From the Khronos headers
 * of EGL 1.5 and OpenGL 4.6 (EGL/egl.h, EGL/eglext.h, GL/glcorearb.h, GL/glx.h); the same in OpenGL ES,
 * and in all versions since each function is there.
 */
#ifndef VGPU_DRIVER_OPENGL_ABI_H
#define VGPU_DRIVER_OPENGL_ABI_H

#include <stdint.h>

typedef void *EGLDisplay, *EGLSurface, *EGLContext, *EGLSync, *GLsync;
typedef uint32_t EGLBoolean, EGLenum, GLenum, GLbitfield;
typedef int32_t EGLint, GLint;
typedef const char *gl_text;
typedef void (*gl_function)(void);

#define EGL_VENDOR 0x3053
#define EGL_SYNC_FENCE 0x30F9u
#define EGL_TIMEOUT_EXPIRED 0x30F5
#define EGL_CONDITION_SATISFIED 0x30F6
#define EGL_SYNC_FLUSH_COMMANDS_BIT 1
#define GL_SYNC_FLUSH_COMMANDS_BIT 1u
#define GL_ALREADY_SIGNALED 0x911Au
#define GL_TIMEOUT_EXPIRED 0x911Bu
#define GL_CONDITION_SATISFIED 0x911Cu
#define GL_WAIT_FAILED 0x911Du

#endif
