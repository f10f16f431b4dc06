// SPDX-License-Identifier: Apache-2.0
/* rm.c - objects and controls of a client; statuses as the real driver's. */
#define _GNU_SOURCE
#include "local.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define CLASS_ROOT 0x41u
#define CLASS_DEVICE 0x80u
#define CLASS_SUBDEVICE 0x2080u
#define CLASS_GROUP 0xA06Cu
#define CLASS_EVENT_BUFFER 0x90CDu
#define CLASS_MEMORY 0x90CEu
#define CMD_ATTACHED_CARDS 0x201u
#define CMD_CARD_INFO 0x205u
#define CMD_CARD_PLACE 0x21Bu
#define CLASS_INSTANCE 0xC637u
#define CMD_BIND 0x20801231u
#define CMD_BIND_V2 0x20801238u
#define REASON_NOT_ENABLED 3u
#define CMD_UUID_INFO 0x274u
#define CMD_FB_INFO 0x20801303u
#define CMD_SET_TIMESLICE 0xA06C0103u
#define CMD_GET_TIMESLICE 0xA06C0104u
#define CMD_ENABLE 0x90CD0101u
#define CMD_GET 0x90CD0102u
#define CMD_FLUSH 0x90CD0104u

#define ATTR2_USER_READS_ONLY (1u << 22)
#define MAP_READS_ONLY 1u
#define DETAIL_ACTIVE_REGIONS 1u
#define KEEP_OLDEST 1u
#define ATTACHED_MAX 32
#define NO_CARD 0xffffffffu
#define FIRST_CLIENT 0xc1d00000u
#define FIRST_HANDLE 0x5c000000u
#define FIRST_CARD_ID 0x1000u
#define CARD_ID_STEP 0x1000u
#define MEMORY_MAX (64u << 20)
#define PAGE 4096u

int (*rm_capability)(int fd);

struct object *rm_find(struct client *c, uint32_t handle)
{
	for (int i = 0; handle && i < MAX_OBJECTS; i++)
		if (c->object[i].handle == handle)
			return &c->object[i];
	return NULL;
}

static struct object *find_class(struct client *c, uint32_t handle, uint32_t cls)
{
	struct object *o = rm_find(c, handle);

	return o && o->cls == cls ? o : NULL;
}

static void *params_of(uint64_t address)
{
	return (void *)(uintptr_t)address;
}

static uint32_t make_device(struct sim_state *st, const struct client *c, struct object *o,
			    const struct device_params *p)
{
	if (o->parent != c->handle)
		return NV_INVALID_OBJECT_PARENT;
	if (p->instance >= st->ngpus)
		return NV_INVALID_ARGUMENT;
	o->card = p->instance;
	return NV_OK;
}

static uint32_t make_subdevice(struct client *c, struct object *o, const uint32_t *instance)
{
	const struct object *device = find_class(c, o->parent, CLASS_DEVICE);

	if (!device)
		return NV_INVALID_OBJECT_PARENT;
	if (*instance != 0)
		return NV_INVALID_ARGUMENT;
	o->card = device->card;
	return NV_OK;
}

/* Subscribes to a GPU instance: whoever has its capability open may. */
static uint32_t make_instance(struct sim_state *st, struct client *c, struct object *o,
			      const struct instance_params *p)
{
	const struct object *subdevice = find_class(c, o->parent, CLASS_SUBDEVICE);

	if (!subdevice)
		return NV_INVALID_OBJECT_PARENT;
	if (!st->card[subdevice->card].conf.mig)
		return NV_NOT_SUPPORTED;
	for (uint32_t i = st->ngpus; i < st->ncards; i++) {
		const struct sim_card_config *conf = &st->card[i].conf;

		if (conf->parent != subdevice->card + 1 || conf->gi != p->instance)
			continue;
		if (!rm_capability || rm_capability((int)p->capability) != (int)conf->gi_cap)
			return NV_INSUFFICIENT_PERMISSIONS;
		o->card = subdevice->card;
		o->instance = p->instance;
		return NV_OK;
	}
	return NV_INVALID_ARGUMENT;
}

static uint32_t make_memory(const struct client *c, struct object *o, const struct memory_params *p)
{
	if (o->parent != c->handle)
		return NV_INVALID_OBJECT_PARENT;
	if (p->size == 0 || p->size > MEMORY_MAX)
		return NV_INVALID_ARGUMENT;
	o->size = (p->size + PAGE - 1) / PAGE * PAGE;
	o->user_reads_only = p->attr2 & ATTR2_USER_READS_ONLY;
	return NV_OK;
}

/* Memory that nobody has mapped by now is the driver's alone. */
static bool usable(struct object *memory)
{
	if (memory->at)
		return true;
	memory->at = mmap(NULL, memory->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
			  -1, 0);
	if (memory->at == MAP_FAILED)
		memory->at = NULL;
	return memory->at;
}

/* Memory of the card, or a channel group: below a device. */
static uint32_t make_own(struct sim_state *st, struct client *c, struct object *o,
			 struct memory_params *p)
{
	const struct object *device = find_class(c, o->parent, CLASS_DEVICE);

	if (!device)
		return NV_INVALID_OBJECT_PARENT;
	o->card = device->card;
	return o->cls == CLASS_GROUP ? own_group(st, o) : own_memory(st, o, &p->size);
}

static uint32_t make_event_buffer(struct client *c, struct object *o,
				  const struct event_buffer_params *p)
{
	struct object *header = find_class(c, p->header, CLASS_MEMORY);
	struct object *record = find_class(c, p->record, CLASS_MEMORY);

	if (o->parent != c->handle)
		return NV_INVALID_OBJECT_PARENT;
	if (!header || !record)
		return NV_OBJECT_NOT_FOUND;
	if (p->record_size != sizeof(struct buffer_record) || p->records < 2 ||
	    p->records > record->size / p->record_size || p->variable || p->variable_size ||
	    !header->user_reads_only || !record->user_reads_only)
		return NV_INVALID_ARGUMENT;
	if (!find_class(c, p->subdevice, CLASS_SUBDEVICE))
		return NV_INVALID_OBJECT_HANDLE;
	if (!usable(header) || !usable(record))
		return NV_INSUFFICIENT_RESOURCES;
	memset(header->at, 0, sizeof(struct buffer_header));
	o->header = header;
	o->record = record;
	o->records = p->records;
	return NV_OK;
}

static uint32_t make_client(struct client *c, struct rm_alloc *a)
{
	static uint32_t last = FIRST_CLIENT;

	if (c->handle || a->root || a->parent || a->object)
		return NV_INVALID_OBJECT_NEW;
	c->handle = a->root = a->object = ++last;
	return NV_OK;
}

static uint32_t make_object(struct sim_state *st, struct client *c, struct rm_alloc *a)
{
	static const struct {
		uint32_t cls, size;
	} classes[] = {
		{CLASS_ROOT, 0},
		{CLASS_DEVICE, sizeof(struct device_params)},
		{CLASS_SUBDEVICE, sizeof(uint32_t)},
		{CLASS_MEMORY, sizeof(struct memory_params)},
		{CLASS_LOCAL_USER, sizeof(struct memory_params)},
		{CLASS_GROUP, 0},
		{CLASS_EVENT_BUFFER, sizeof(struct event_buffer_params)},
		{CLASS_INSTANCE, sizeof(struct instance_params)},
	};
	static uint32_t last = FIRST_HANDLE;
	struct object *o = c->object, made;
	uint32_t status = NV_INVALID_CLASS;
	size_t i = 0;

	while (i < sizeof(classes) / sizeof(*classes) && classes[i].cls != a->cls)
		i++;
	if (i == sizeof(classes) / sizeof(*classes))
		return NV_INVALID_CLASS;
	if (a->size != classes[i].size || !a->params != !a->size)
		return NV_INVALID_PARAM_STRUCT;
	if (a->cls == CLASS_ROOT)
		return make_client(c, a);
	if (!c->handle || a->root != c->handle)
		return NV_INVALID_CLIENT;
	if (a->object == c->handle || rm_find(c, a->object))
		return NV_INVALID_OBJECT_NEW;
	while (o < c->object + MAX_OBJECTS && o->handle)
		o++;
	if (o == c->object + MAX_OBJECTS)
		return NV_INSUFFICIENT_RESOURCES;
	made = (struct object){.handle = a->object ? a->object : ++last,
			       .parent = a->parent,
			       .cls = a->cls};
	switch (a->cls) {
	case CLASS_DEVICE:
		status = make_device(st, c, &made, params_of(a->params));
		break;
	case CLASS_SUBDEVICE:
		status = make_subdevice(c, &made, params_of(a->params));
		break;
	case CLASS_MEMORY:
		status = make_memory(c, &made, params_of(a->params));
		break;
	case CLASS_LOCAL_USER:
	case CLASS_GROUP:
		status = make_own(st, c, &made, params_of(a->params));
		break;
	case CLASS_INSTANCE:
		status = make_instance(st, c, &made, params_of(a->params));
		break;
	case CLASS_EVENT_BUFFER:
		status = make_event_buffer(c, &made, params_of(a->params));
		break;
	}
	if (status == NV_OK) {
		*o = made;
		a->object = made.handle;
	}
	return status;
}

static bool card_of_id(const struct sim_state *st, uint32_t id, uint32_t *card)
{
	*card = (id - FIRST_CARD_ID) / CARD_ID_STEP;
	return id >= FIRST_CARD_ID && id % CARD_ID_STEP == 0 && *card < st->ngpus;
}

static uint32_t attached_cards(const struct sim_state *st, uint32_t *ids)
{
	for (uint32_t i = 0; i < ATTACHED_MAX; i++)
		ids[i] = i < st->ngpus ? FIRST_CARD_ID + i * CARD_ID_STEP : NO_CARD;
	return NV_OK;
}

static uint32_t card_info(const struct sim_state *st, struct card_info_params *p)
{
	uint32_t card;

	if (!card_of_id(st, p->id, &card))
		return NV_INVALID_ARGUMENT;
	p->device = p->instance = card;
	p->subdevice = 0;
	p->numa = st->card[card].conf.numa;
	return NV_OK;
}

static uint32_t card_place(const struct sim_state *st, struct card_place_params *p)
{
	unsigned domain, bus, slot;
	uint32_t card;

	if (!card_of_id(st, p->id, &card) ||
	    sscanf(st->card[card].conf.pci, "%x:%x:%x", &domain, &bus, &slot) != 3)
		return NV_INVALID_ARGUMENT;
	p->domain = domain;
	p->bus = (uint16_t)bus;
	p->slot = (uint16_t)slot;
	return NV_OK;
}

static uint32_t bind(const struct sim_state *st, struct client *c, const struct object *subdevice,
		     const struct bind_params *p, uint32_t version)
{
	struct object *buffer = find_class(c, p->buffer, CLASS_EVENT_BUFFER);

	switch (st->card[subdevice->card].conf.records) {
	case SIM_RECORDS_UNSUPPORTED:
		return NV_NOT_SUPPORTED;
	case SIM_RECORDS_DENIED:
		return NV_INSUFFICIENT_PERMISSIONS;
	case SIM_RECORDS_V1:
		if (version == 2)
			return NV_NOT_SUPPORTED;
	}
	if (!buffer)
		return NV_INVALID_OBJECT_HANDLE;
	if (!p->all_users || geteuid() != 0)
		return NV_INSUFFICIENT_PERMISSIONS;
	if (p->record_size != sizeof(struct buffer_record) || p->detail != DETAIL_ACTIVE_REGIONS ||
	    buffer->bound)
		return NV_INVALID_ARGUMENT;
	if (sim_first_instance(st, subdevice->card) < st->ncards) {
		int i = 0;

		while (i < MAX_OBJECTS && (c->object[i].cls != CLASS_INSTANCE ||
					   c->object[i].parent != subdevice->handle))
			i++;
		if (i == MAX_OBJECTS)
			return NV_NOT_SUPPORTED;
		buffer->of = c->object[i].instance + 1;
	}
	buffer->card = subdevice->card;
	buffer->version = version;
	buffer->bound = true;
	return NV_OK;
}

static uint32_t bind_v2(const struct sim_state *st, struct client *c,
			const struct object *subdevice, struct bind_v2_params *p)
{
	uint32_t status = bind(st, c, subdevice, &p->v1, 2);

	p->reason = status == NV_NOT_SUPPORTED ? REASON_NOT_ENABLED : 0;
	return status;
}

static uint32_t enable(struct sim_state *st, struct object *buffer, const struct enable_params *p)
{
	if (p->flags != KEEP_OLDEST)
		return NV_INVALID_ARGUMENT;
	if (p->on && !buffer->enabled && buffer->bound) {
		sim_lock(st);
		sim_advance_all(st);
		records_start(st, buffer);
		sim_unlock(st);
	}
	buffer->enabled = p->on;
	return NV_OK;
}

static uint32_t get(struct object *buffer, const struct get_params *p)
{
	struct buffer_header *h = buffer->header->at;

	if (p->record >= buffer->records || p->variable)
		return NV_INVALID_ARGUMENT;
	h->get = p->record;
	h->count = (h->put + buffer->records - h->get) % buffer->records;
	h->dropped = 0;
	return NV_OK;
}

static uint32_t flush(struct sim_state *st, struct object *buffer)
{
	sim_lock(st);
	sim_advance_all(st);
	records_flush(st, buffer);
	sim_unlock(st);
	return NV_OK;
}

static uint32_t control(struct sim_state *st, struct client *c, const struct rm_control *k)
{
	static const struct {
		uint32_t cmd, cls, size;
	} commands[] = {
		{CMD_ATTACHED_CARDS, CLASS_ROOT, ATTACHED_MAX * sizeof(uint32_t)},
		{CMD_CARD_INFO, CLASS_ROOT, sizeof(struct card_info_params)},
		{CMD_CARD_PLACE, CLASS_ROOT, sizeof(struct card_place_params)},
		{CMD_UUID_INFO, CLASS_ROOT, sizeof(struct uuid_info_params)},
		{CMD_FB_INFO, CLASS_SUBDEVICE, sizeof(struct fb_info_params)},
		{CMD_SET_TIMESLICE, CLASS_GROUP, sizeof(uint64_t)},
		{CMD_GET_TIMESLICE, CLASS_GROUP, sizeof(uint64_t)},
		{CMD_BIND, CLASS_SUBDEVICE, sizeof(struct bind_params)},
		{CMD_BIND_V2, CLASS_SUBDEVICE, sizeof(struct bind_v2_params)},
		{CMD_ENABLE, CLASS_EVENT_BUFFER, sizeof(struct enable_params)},
		{CMD_GET, CLASS_EVENT_BUFFER, sizeof(struct get_params)},
		{CMD_FLUSH, CLASS_EVENT_BUFFER, 0},
	};
	struct object *o = rm_find(c, k->object);
	void *p = params_of(k->params);
	size_t i = 0;

	if (!c->handle || k->client != c->handle)
		return NV_INVALID_CLIENT;
	if (!o && k->object != c->handle)
		return NV_INVALID_OBJECT_HANDLE;
	while (i < sizeof(commands) / sizeof(*commands) &&
	       (commands[i].cmd != k->cmd || commands[i].cls != (o ? o->cls : CLASS_ROOT)))
		i++;
	if (i == sizeof(commands) / sizeof(*commands))
		return NV_INVALID_COMMAND;
	if (k->size != commands[i].size || !p != !k->size)
		return NV_INVALID_PARAM_STRUCT;
	switch (k->cmd) {
	case CMD_ATTACHED_CARDS:
		return attached_cards(st, p);
	case CMD_CARD_INFO:
		return card_info(st, p);
	case CMD_CARD_PLACE:
		return card_place(st, p);
	case CMD_UUID_INFO:
		return own_uuid_info(st, p);
	case CMD_FB_INFO:
		return own_fb_info(st, o, p);
	case CMD_SET_TIMESLICE:
	case CMD_GET_TIMESLICE:
		return own_slice(st, o, k->cmd == CMD_SET_TIMESLICE, p);
	case CMD_BIND:
		return bind(st, c, o, p, 1);
	case CMD_BIND_V2:
		return bind_v2(st, c, o, p);
	case CMD_ENABLE:
		return enable(st, o, p);
	case CMD_GET:
		return get(o, p);
	}
	return flush(st, o);
}

/* Ties memory to an open control file, which can then be mapped; once, and before the
 * memory is used. Whoever may only read it cannot map it for more. */
static uint32_t map(struct client *c, const struct rm_map *m, bool (*maps)(int fd))
{
	struct object *o = find_class(c, m->memory, CLASS_MEMORY);
	void *at;

	if (!c->handle || m->client != c->handle)
		return NV_INVALID_CLIENT;
	if (!o)
		return NV_OBJECT_NOT_FOUND;
	if (o->at || m->device != c->handle || m->offset || !m->length || m->length > o->size ||
	    !maps(m->fd) || (o->user_reads_only && m->flags != MAP_READS_ONLY))
		return NV_INVALID_ARGUMENT;
	if (ftruncate(m->fd, (off_t)o->size))
		return NV_INSUFFICIENT_RESOURCES;
	at = mmap(NULL, o->size, PROT_READ | PROT_WRITE, MAP_SHARED, m->fd, 0);
	if (at == MAP_FAILED)
		return NV_INSUFFICIENT_RESOURCES;
	if (o->user_reads_only)
		fcntl(m->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE);
	o->at = at;
	return NV_OK;
}

static void make_object64(struct sim_state *st, struct client *c, struct rm_alloc64 *a)
{
	struct rm_alloc old = {a->root, a->parent, a->object, a->cls, a->params, a->size, 0};

	a->status = make_object(st, c, &old);
	a->root = old.root;
	a->object = old.object;
}

static uint32_t make_from_heap(struct sim_state *st, struct client *c, struct rm_vid_heap *h)
{
	struct memory_params p = {.attr = h->attr, .flags = h->flags, .size = h->size};
	struct rm_alloc a = {h->root, h->parent, h->memory, 0, (uintptr_t)&p, sizeof(p), 0};
	uint32_t status;

	if (!own_vid_heap(h, &a.cls))
		return NV_NOT_SUPPORTED;
	status = make_object(st, c, &a);
	h->memory = a.object;
	h->size = p.size;
	return status;
}

bool rm_call(struct sim_state *st, struct client *c, unsigned nr, unsigned size, void *arg,
	     bool (*maps)(int fd))
{
	if (nr == ESC_ALLOC && size == sizeof(struct rm_alloc))
		((struct rm_alloc *)arg)->status = make_object(st, c, arg);
	else if (nr == ESC_ALLOC && size == sizeof(struct rm_alloc64))
		make_object64(st, c, arg);
	else if (nr == ESC_FREE && size == sizeof(struct rm_free))
		((struct rm_free *)arg)->status = rm_free_named(st, c, arg);
	else if (nr == ESC_VID_HEAP && size == sizeof(struct rm_vid_heap))
		((struct rm_vid_heap *)arg)->status = make_from_heap(st, c, arg);
	else if (nr == ESC_CONTROL && size == sizeof(struct rm_control))
		((struct rm_control *)arg)->status = control(st, c, arg);
	else if (nr == ESC_MAP && size == sizeof(struct rm_map))
		((struct rm_map *)arg)->status = map(c, arg, maps);
	else
		return false;
	return true;
}
