// SPDX-License-Identifier: Apache-2.0
/* free.c - what is freed, and with it what is below. */
#define _GNU_SOURCE
#include "local.h"

#include <string.h>
#include <sys/mman.h>

static void free_object(struct sim_state *st, struct object *o)
{
	own_free(st, o);
	if (o->at)
		munmap(o->at, o->size);
	memset(o, 0, sizeof(*o));
}

void rm_free(struct sim_state *st, struct client *c)
{
	for (int i = 0; i < MAX_OBJECTS; i++)
		free_object(st, &c->object[i]);
	memset(c, 0, sizeof(*c));
}

/* With an object goes what is below it. */
static void free_below(struct sim_state *st, struct client *c, uint32_t handle)
{
	for (int i = 0; i < MAX_OBJECTS; i++) {
		struct object *o = &c->object[i];

		if (o->handle && o->handle != handle && o->parent == handle) {
			free_below(st, c, o->handle);
			free_object(st, o);
		}
	}
}

uint32_t rm_free_named(struct sim_state *st, struct client *c, const struct rm_free *f)
{
	struct object *o = rm_find(c, f->object);

	if (!c->handle || f->root != c->handle)
		return NV_INVALID_CLIENT;
	if (f->object == c->handle) {
		rm_free(st, c);
		return NV_OK;
	}
	if (!o)
		return NV_OBJECT_NOT_FOUND;
	free_below(st, c, f->object);
	free_object(st, o);
	return NV_OK;
}
