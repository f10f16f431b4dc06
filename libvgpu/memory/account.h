/* SPDX-License-Identifier: Apache-2.0 */
/* account.h - the steps around an allocation, and charges without a driver call. */
#ifndef VGPU_MEMORY_ACCOUNT_H
#define VGPU_MEMORY_ACCOUNT_H

#include "../base/table.h"
#include "../driver/real.h"
#include "../job/cards.h"
#include "../job/job.h"

/* The contexts that the program has made, but primary ones: card, device, references. Those who
 * make and end contexts (hooks/context.c) keep it. */
extern struct vgpu_table vgpu_contexts_made;

/* The primary context of a card, as an owner: it has a handle only while it is there. */
static inline uint64_t vgpu_primary_owner(int card)
{
	return (uint64_t)card + 1;
}

/* The context that memory which is taken now ends with; a green one's is the primary's. */
uint64_t vgpu_context_owner(int card);

/* More than any card has, so that a driver refuses them. They are refused before they are added to
 * anything: with them, sums wrap. */
static inline bool vgpu_absurd(uint64_t bytes)
{
	return unlikely(bytes > 1ull << 48);
}

/* Announces the bytes before the driver is asked: 0, or -ENOMEM when they do not fit. After the
 * driver's answer vgpu_mem_done() follows. */
int vgpu_mem_take(int card, uint64_t bytes);
/* The bytes of a taken allocation are kept or, when the driver refused, taken back. Returns r. */
CUresult vgpu_mem_done(int card, uint64_t bytes, CUresult r);
/* Around a call that takes memory or gives it back: meanwhile what is charged and what the card
 * counts may differ. */
void vgpu_mem_begin(void);
void vgpu_mem_end(void);
/* This thread is between the two. */
bool vgpu_mem_busy(void);

/* Bytes, without a driver call around them; 0, or -ENOMEM when they do not fit. */
int vgpu_charge(int card, uint64_t bytes);
/* The same at once, without asking whether processes have ended. */
int vgpu_charge_now(int card, uint64_t bytes);
void vgpu_release(int card, uint64_t bytes);
void vgpu_item_release(const struct vgpu_item *item);
/* Bytes that the card has already given: they count, the next one pays. */
void vgpu_charge_forced(int card, uint64_t bytes);
/* Adds up a change of the charge in one step, so that nobody sees less than both ends. */
void vgpu_charge_moves(int card, uint64_t from, uint64_t to);
/* Raises *charged, a sum of charges that several threads move, to at least want;
 * 0 or -ENOMEM. */
int vgpu_charge_up_to(int card, uint64_t *charged, uint64_t want);
/* Lowers *charged to at most want, but not below of(*live), or *live: another thread may rely on that
 * charge. */
void vgpu_charge_down_to(int card, uint64_t *charged, uint64_t want, const uint64_t *live,
			 uint64_t (*of)(uint64_t));
/* Lowers *charged by at most bytes. */
void vgpu_charge_less(int card, uint64_t *charged, uint64_t bytes);

/* Call this before an allocation is refused. Releases the charges of ended processes of other PID
 * namespaces, if bytes may fit then. Returns true if the allocation is worth another try. Takes 1 to
 * 2 ms if gresd answers that no process has ended. If one has just ended, takes up to VGPU_GRACE_NS
 * more. If gresd is slow, takes at most 0.75 s. */
bool vgpu_ended_make_room(int card, uint64_t bytes);

/* Counts the refusal and returns CUDA_ERROR_OUT_OF_MEMORY. */
CUresult vgpu_oom(int card, uint64_t bytes);

/* Bytes of managed memory that this process holds. */
extern uint64_t vgpu_managed_bytes;

/* How a hook that allocates ends: it charges the bytes, calls the driver, and adds an entry with these
 * fields to the table. on is the card; below 0: none is charged. */
#define VGPU_ALLOC(table, on, bytes, call, ...)                                                \
	do {                                                                                   \
		int card_ = (on);                                                              \
		uint64_t bytes_;                                                               \
		CUresult r_;                                                                   \
                                                                                               \
		if (card_ < 0)                                                                 \
			return call;                                                           \
		bytes_ = (bytes);                                                              \
		if (vgpu_mem_take(card_, bytes_))                                              \
			return vgpu_oom(card_, bytes_);                                        \
		r_ = call;                                                                     \
		if (r_ == CUDA_SUCCESS) /* without memory for it: stays charged */             \
			vgpu_table_put(table,                                                  \
				       &(struct vgpu_item){.card = card_,                      \
							   .owner = vgpu_context_owner(card_), \
							   __VA_ARGS__});                      \
		return vgpu_mem_done(card_, bytes_, r_);                                       \
	} while (0)

/* ------------------------------------------------------------------------ the steps of a free
 * The entry leaves its table first: once the driver has freed the memory, another thread can get the
 * same address or handle. */
/* The program's memory that is freed by address, pools included: linear.c frees it. */
extern struct vgpu_table vgpu_addresses;
/* The kinds of its entries, and of handles in vmm.c. */
enum {
	VGPU_LINEAR,
	VGPU_OF_POOL, /* other: the pool */
	VGPU_MANAGED, /* charged in steps */
	VGPU_PAGED,   /* beyond the physical share: charged as it is */
	VGPU_IMPORT,  /* memory of another process */
	VGPU_OWN      /* an import of this process's own memory; other: the record that keeps it */
};

/* Before and after the driver's call: gone releases the charge of each entry. If the driver fails, the
 * entries go back. */
static inline struct vgpu_item *vgpu_freeing(struct vgpu_table *t, uint64_t key)
{
	vgpu_mem_begin();
	return vgpu_state.grant ? vgpu_table_detach(t, key) : NULL;
}

static inline void vgpu_freed(struct vgpu_table *t, struct vgpu_item *list, CUresult r,
			      void (*gone)(const struct vgpu_item *))
{
	if (list && r == CUDA_SUCCESS)
		vgpu_table_drop(t, list, gone);
	else if (list)
		vgpu_table_attach(t, list);
	vgpu_mem_end();
}

/* Both of them around a call. */
#define VGPU_FREE(table, key, call, gone)                                                  \
	({                                                                                 \
		struct vgpu_item *list_ = vgpu_freeing(table, (uint64_t)(uintptr_t)(key)); \
		CUresult r_ = (call);                                                      \
                                                                                           \
		vgpu_freed(table, list_, r_, gone);                                        \
		r_;                                                                        \
	})

/* The same for one reference of several. */
static inline CUresult vgpu_unref(struct vgpu_table *t, unsigned long long key,
				  CUresult (*real)(unsigned long long),
				  void (*gone)(const struct vgpu_item *))
{
	struct vgpu_item item;
	CUresult r;
	bool known;

	vgpu_mem_begin();
	known = vgpu_state.grant && vgpu_table_ref(t, key, -1, &item);
	r = real(key);
	if (known && r == CUDA_SUCCESS && item.refs == 0)
		gone(&item);
	else if (known && r != CUDA_SUCCESS && item.refs++ == 0)
		vgpu_table_put(t, &item);
	else if (known && r != CUDA_SUCCESS)
		vgpu_table_ref(t, key, 1, &item);
	vgpu_mem_end();
	return r;
}

#endif
