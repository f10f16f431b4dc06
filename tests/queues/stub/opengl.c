/* SPDX-License-Identifier: Apache-2.0 */
/* opengl.c - a libOpenGL for tests: what libvgpu stands for, by the stub of libEGL. */
#include "../../../libvgpu/driver/others_abi.h"

#pragma GCC diagnostic ignored "-Wmissing-prototypes"

extern void stub_glFlush(void);
extern void stub_glFinish(void);
extern void stub_glReadPixels(GLint, GLint, GLint, GLint, GLenum, GLenum, void *);
extern GLenum stub_glClientWaitSync(GLsync, GLbitfield, uint64_t);

void glFlush(void)
{
	stub_glFlush();
}

void glFinish(void)
{
	stub_glFinish();
}

void glReadPixels(GLint x, GLint y, GLint width, GLint height, GLenum format, GLenum type,
		  void *data)
{
	stub_glReadPixels(x, y, width, height, format, type, data);
}

GLenum glClientWaitSync(GLsync sync, GLbitfield flags, uint64_t timeout)
{
	return stub_glClientWaitSync(sync, flags, timeout);
}
