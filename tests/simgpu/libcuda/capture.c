// SPDX-License-Identifier: Apache-2.0
/*
 * capture.c - recording a stream's work into a graph.
 *
 * Work keeps the order in which it was captured, from whatever stream, so the
 * order of the nodes respects every dependency that the streams had.
 */
#define _GNU_SOURCE
#include "graph.h"

#include <stdlib.h>

enum { MODE_GLOBAL, MODE_THREAD_LOCAL, MODE_RELAXED };

static _Thread_local int thread_mode = MODE_GLOBAL;

/* Calls that may depend on the card's state are refused while a capture that
 * forbids them is open, and spoil that capture. Which captures forbid them
 * depends on their mode and on this thread's. */
CUresult capture_unsafe(void)
{
	CUresult rc = CUDA_SUCCESS;

	if (thread_mode == MODE_RELAXED)
		return CUDA_SUCCESS;
	for (struct capture *c = drv.captures; c; c = c->next) {
		bool own = pthread_equal(c->thread, pthread_self());

		if (c->mode == MODE_RELAXED ||
		    (!own && (c->mode != MODE_GLOBAL || thread_mode != MODE_GLOBAL)))
			continue;
		c->invalid = true;
		rc = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	}
	return rc;
}

struct capture *capture_by_id(uint64_t id)
{
	for (struct capture *c = drv.captures; c; c = c->next)
		if (c->id == id)
			return c;
	return NULL;
}

CUresult cuThreadExchangeStreamCaptureMode(int *mode)
{
	int old = thread_mode;

	if (!mode || *mode < MODE_GLOBAL || *mode > MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	thread_mode = *mode;
	*mode = old;
	return CUDA_SUCCESS;
}

static CUresult begin(CUstream handle, int mode, CUgraph into)
{
	CUstream s = stream_of(handle);
	struct capture *c;

	if (!s || mode < MODE_GLOBAL || mode > MODE_RELAXED)
		return CUDA_ERROR_INVALID_VALUE;
	if (s == s->ctx->legacy)
		return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
	if (s->capture)
		return CUDA_ERROR_ILLEGAL_STATE;
	c = calloc(1, sizeof(*c));
	if (!c)
		return CUDA_ERROR_OUT_OF_MEMORY;
	c->graph = into ? into : graph_new();
	if (!c->graph) {
		free(c);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	c->callers_graph = into != NULL;
	if (into)
		into->refs++;
	c->mode = mode;
	c->id = ++drv.ids;
	c->thread = pthread_self();
	c->origin = s;
	c->next = drv.captures;
	drv.captures = c;
	s->capture = c;
	return CUDA_SUCCESS;
}

CUresult cuStreamBeginCapture_v2(CUstream hStream, int mode)
{
	ENTER(NEED_CTX);
	return drv_leave(begin(hStream, mode, NULL));
}

CUresult cuStreamBeginCaptureToGraph(CUstream hStream, CUgraph graph, const CUgraphNode *deps,
				     const void *data, size_t n, int mode)
{
	(void)data;
	ENTER(NEED_CTX);
	if (!graph_ok(graph) || (n && !deps))
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	return drv_leave(begin(hStream, mode, graph));
}

/* That the graph is the same is not looked at: it is captured into. */
CUresult cuStreamBeginRecaptureToGraph(CUstream hStream, int mode, CUgraph graph, void *mismatch,
				       void *data)
{
	(void)mismatch;
	(void)data;
	return cuStreamBeginCaptureToGraph(hStream, graph, NULL, NULL, 0, mode);
}

/* A way of a driver of the future. */
__attribute__((visibility("default"))) CUresult cuStreamBeginLater(CUstream hStream, int mode);
CUresult cuStreamBeginLater(CUstream hStream, int mode)
{
	return cuStreamBeginCapture_v2(hStream, mode);
}

CUresult cuStreamBeginCapture(CUstream hStream)
{
	return cuStreamBeginCapture_v2(hStream, MODE_GLOBAL);
}

static void end(struct capture *c)
{
	struct capture **link = &drv.captures;

	for (CUcontext x = drv.contexts; x; x = x->next)
		for (CUstream s = x->streams; s; s = s->next)
			if (s->capture == c)
				s->capture = NULL;
	while (*link != c)
		link = &(*link)->next;
	*link = c->next;
	free(c);
}

/* Ends the capture that the stream began. */
void capture_drop_stream(CUstream s)
{
	struct capture *c = s->capture;

	s->capture = NULL;
	if (!c || c->origin != s)
		return;
	graph_free(c->graph);
	end(c);
}

CUresult cuStreamEndCapture(CUstream hStream, CUgraph *graph)
{
	struct capture *c;
	CUresult rc = CUDA_SUCCESS;
	bool callers;
	CUgraph g;
	CUstream s;

	ENTER(NEED_CTX);
	s = stream_of(hStream);
	if (!s || !graph)
		return drv_leave(CUDA_ERROR_INVALID_VALUE);
	c = s->capture;
	if (!c)
		return drv_leave(CUDA_ERROR_ILLEGAL_STATE);
	if (c->origin != s)
		return drv_leave(CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
	g = c->graph;
	callers = c->callers_graph;
	if (c->invalid)
		rc = CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
	end(c);
	*graph = rc ? NULL : g;
	if (rc || callers)
		graph_free(g);
	return drv_leave(rc);
}

/* A capture of a blocking stream and the legacy stream exclude each other. */
struct capture *capture_beside(CUstream s)
{
	for (struct capture *c = drv.captures; c && s == s->ctx->legacy; c = c->next)
		if (c->origin->ctx == s->ctx && !(c->origin->flags & CU_STREAM_NON_BLOCKING))
			return c;
	return NULL;
}

static CUresult capture_info(CUstream handle, int *status, uint64_t *id, CUgraph *graph)
{
	CUstream s = stream_of(handle);

	if (!s || !status)
		return CUDA_ERROR_INVALID_VALUE;
	if (capture_beside(s)) /* which stays valid */
		return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
	*status = !s->capture           ? CU_CAPTURE_NONE
		  : s->capture->invalid ? CU_CAPTURE_INVALIDATED
					: CU_CAPTURE_ACTIVE;
	if (id)
		*id = s->capture ? s->capture->id : 0;
	if (graph)
		*graph = s->capture ? s->capture->graph : NULL;
	return CUDA_SUCCESS;
}

CUresult cuStreamIsCapturing(CUstream hStream, int *status)
{
	ENTER(NEED_CTX);
	return drv_leave(capture_info(hStream, status, NULL, NULL));
}

CUresult cuStreamGetCaptureInfo(CUstream hStream, int *status, uint64_t *id)
{
	ENTER(NEED_CTX);
	return drv_leave(capture_info(hStream, status, id, NULL));
}

CUresult cuStreamGetCaptureInfo_v2(CUstream hStream, int *status, uint64_t *id, CUgraph *graph,
				   const CUgraphNode **deps, size_t *n)
{
	ENTER(NEED_CTX);
	if (deps)
		*deps = NULL;
	if (n)
		*n = 0;
	return drv_leave(capture_info(hStream, status, id, graph));
}

CUresult cuStreamGetCaptureInfo_v3(CUstream hStream, int *status, uint64_t *id, CUgraph *graph,
				   const CUgraphNode **deps, const void **edges, size_t *n)
{
	if (edges)
		*edges = NULL;
	return cuStreamGetCaptureInfo_v2(hStream, status, id, graph, deps, n);
}
