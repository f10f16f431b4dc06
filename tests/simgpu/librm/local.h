/* SPDX-License-Identifier: Apache-2.0 */
/*
 * local.h - the resource manager of the simulated driver, as far as a reader of
 * context switches needs it.
 *
 * Numbers and layouts: NVIDIA open-gpu-kernel-modules, nvos.h (NVOS21, NVOS33,
 * NVOS54), cl0000.h, cl0080.h, cl2080.h, cl90cd.h, cl90cdFecs.h, cl90ce.h,
 * ctrl0000gpu.h, ctrl2080gr.h, ctrl90cd.h, clc637.h, nvstatuscodes.h.
 */
#ifndef SIMGPU_LIBRM_LOCAL_H
#define SIMGPU_LIBRM_LOCAL_H

#include "../model.h"
#include "../rm_abi.h"

struct rm_alloc {
	uint32_t root, parent, object, cls;
	uint64_t params;
	uint32_t size, status;
};

struct rm_vid_heap {
	uint32_t root, parent, function, va_space;
	int16_t ivc;
	uint16_t pad;
	uint32_t status;
	uint64_t total, free;
	uint32_t owner, memory, type, flags, attr, rest[7];
	uint64_t size, more[11];
};

#define FB_INFO_MAX 128u
struct fb_info_params {
	uint32_t n;
	struct {
		uint32_t index, kib;
	} entry[FB_INFO_MAX];
};

struct uuid_info_params {
	char uuid[256];
	uint32_t flags, gpu, device, subdevice;
};

struct rm_map {
	uint32_t client, device, memory, pad;
	uint64_t offset, length, address;
	uint32_t status, flags;
	int32_t fd;
	uint32_t pad2;
};

struct memory_params {
	uint32_t owner, kind, flags, width, height;
	int32_t pitch;
	uint32_t attr, attr2, rest[4];
	uint64_t low, high, size, align, more[6];
};

struct device_params {
	uint32_t instance, rest[5];
	uint64_t more[4];
};

struct event_buffer_params {
	uint64_t header_at, records_at;
	uint32_t record_size, records;
	uint64_t variable_at;
	uint32_t variable_size, threshold;
	uint64_t notify;
	uint32_t variable_threshold, subdevice;
	uint32_t flags, header, record, variable;
};

struct card_info_params {
	uint32_t id, flags, device, subdevice, sli, board, instance;
	int32_t numa;
};

struct card_place_params {
	uint32_t id, domain;
	uint16_t bus, slot;
};

struct bind_params {
	uint32_t buffer, record_size, detail, filter;
	uint8_t all_users;
};

struct bind_v2_params {
	struct bind_params v1;
	uint32_t reason;
};

struct instance_params {
	uint64_t capability; /* an open file */
	uint32_t instance;
};

struct enable_params {
	uint8_t on;
	uint32_t flags;
};

struct get_params {
	uint32_t record, variable;
};

struct buffer_header {
	uint32_t get, put;
	uint64_t count, dropped, variable_dropped;
};

struct buffer_record {
	uint16_t type, subtype;
	uint32_t variable;
	uint8_t tag, vm;
	uint16_t seq;
	uint32_t context;
	uint32_t pid; /* in version 1, of 64 bits */
	uint16_t pad;
	uint8_t gpu_instance, compute_instance;
	uint64_t at;
};
_Static_assert(sizeof(struct buffer_record) == 32, "NV_EVENT_BUFFER_FECS_RECORD_V2");

#define NO_INSTANCE 0xffu
#define TYPE_V1 134u
#define TYPE_V2 2u

#define TAG_START 6u
#define TAG_END 7u

#define MAX_OBJECTS 64

struct object {
	uint32_t handle, parent, cls;
	uint32_t card;     /* of a device, a subdevice, or what is bound to it */
	uint32_t instance; /* of a subscription to one */
	/* of the card: bytes, or a context of the model, slot + 1 */
	uint64_t taken;
	int context;
	/* memory of the host */
	bool user_reads_only;
	void *at;
	size_t size;
	/* event buffer */
	struct object *header, *record;
	uint32_t records; /* that fit */
	bool bound, enabled;
	uint32_t version;
	uint32_t of;                  /* one GPU instance alone, its number + 1 */
	uint64_t next[SIM_MAX_CARDS]; /* record of the card, or of each instance */
};

/* What one open file of the control node has made. */
struct client {
	uint32_t handle;
	struct object object[MAX_OBJECTS];
};

/* rm.c: a call on a control file. maps says whether a descriptor is another open
 * control file, to which memory can be tied. False: no such call. */
bool rm_call(struct sim_state *st, struct client *c, unsigned nr, unsigned size, void *arg,
	     bool (*maps)(int fd));
struct object *rm_find(struct client *c, uint32_t handle);

/* free.c */
void rm_free(struct sim_state *st, struct client *c);
uint32_t rm_free_named(struct sim_state *st, struct client *c, const struct rm_free *f);

/* The number of the capability whose file is open there; -1: none. */
extern int (*rm_capability)(int fd);

/* own.c */
#define CLASS_LOCAL_USER 0x40u
uint32_t own_memory(struct sim_state *st, struct object *o, uint64_t *size);
uint32_t own_group(struct sim_state *st, struct object *o);
void own_free(struct sim_state *st, struct object *o);
uint32_t own_slice(struct sim_state *st, struct object *o, bool set, uint64_t *us);
uint32_t own_fb_info(struct sim_state *st, const struct object *o, struct fb_info_params *p);
uint32_t own_uuid_info(const struct sim_state *st, struct uuid_info_params *p);
bool own_vid_heap(const struct rm_vid_heap *h, uint32_t *cls);

/* records.c */
void records_flush(struct sim_state *st, struct object *buffer);
void records_start(struct sim_state *st, struct object *buffer);

#endif
