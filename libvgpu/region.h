/* SPDX-License-Identifier: Apache-2.0 */
/*
 * region.h - the two files that join gresd and the processes of a job.
 *
 * This header is the only definition of both layouts: libvgpu.so compiles it,
 * and Go (gresd, vgpuctl, tests) reads it through cgo (region.go).
 *
 * grant  <run_dir>/jobs/<job>/grant   root 0444. gresd writes, the job maps it
 *        read-only. Limits, and the live schedule of each card. Never replaced
 *        by rename: a mapping stays valid for the life of the job.
 * cache  <run_dir>/jobs/<job>/cache   the job's user 0600. One slot per
 *        process. Processes of the job write, gresd reads (with pread: a file
 *        that its owner can truncate is never mapped by a root process).
 *
 * Words. Card: a physical GPU, named by its NVML UUID; "card i" is the i-th
 * card of the grant, not an NVML or CUDA index. Slot: one process, named by
 * (pid, start time). Share, cores: hundredths of a card, 1..100.
 * Units: bytes, nanoseconds of CLOCK_MONOTONIC, microseconds where named _us.
 *
 * Memory protocol (announce, then check). A process adds the bytes that it
 * wants to its own slot, then sums all slots; if the sum is above the limit it
 * takes the bytes back. All steps are sequentially consistent, so of any set
 * of allocations that were kept, the one announced last has seen all others:
 * the sum of kept allocations never exceeds the limit. There is no shared
 * total, so nothing can be left half-updated by a SIGKILL: the slot of a dead
 * process is simply cleared, since the driver has freed its memory. Checked step
 * by step in tests/model/memory.pml.
 *
 * Only fixed-width integers and char arrays, with explicit padding. A change of layout bumps
 * VGPU_REGION_VERSION (docs/adr).
 */
#ifndef VGPU_REGION_H
#define VGPU_REGION_H

#include <stddef.h>
#include <stdint.h>

#define VGPU_REGION_VERSION 2u
#define VGPU_MAX_CARDS 16
#define VGPU_UUID_LEN 48 /* "GPU-" + 36 characters + NUL, padded */
#define VGPU_MAX_SLOTS 4096
#define VGPU_SOCKET_LEN 80

#define VGPU_GRANT_MAGIC 0x544e415247555056ull /* "VPUGRANT", little endian */
#define VGPU_CACHE_MAGIC 0x4548434143555056ull /* "VPUCACHE" */

/* mode of a card in a grant */
#define VGPU_MODE_OFF 0u  /* account, never throttle compute */
#define VGPU_MODE_SOFT 1u /* at least the share; idle time of others too */
#define VGPU_MODE_HARD 2u /* never more than the share */

/* priority of a card in a grant */
#define VGPU_PRIO_NORMAL 0u
#define VGPU_PRIO_HIGH 1u
#define VGPU_PRIO_LOW 2u

/* engine of a card in a grant: what divides it between jobs */
#define VGPU_ENGINE_TIME 0u
#define VGPU_ENGINE_CONCURRENT 1u /* one MPS server runs side by side what all its jobs launch */

/* gate of a card in a grant */
#define VGPU_GATE_BUDGET 0x1u /* the GPU-time budget holds the job at cores */
/* 0x2 belongs to libraries older than windows with a start. */
#define VGPU_GATE_MEASURE 0x4u /* launches are measured; nothing holds them back */
/* Launches only in the job's window: turn_length_us of each turn_period_us of CLOCK_MONOTONIC, from
 * turn_begin_ns on. On cards without time slices the windows of the jobs follow each other. A job of
 * several cards has its windows at the same moments, so that its processes do not wait for each other
 * with a kernel on the card. */
#define VGPU_GATE_WINDOW 0x8u

/* No launches at all, for a moment: until gresd says otherwise, or lease_ns. */
#define VGPU_GATE_SHUT 0x10u

/* vgpu_slot.flags */
#define VGPU_SLOT_SLICES_OK 0x1u /* time slice set and read back */
#define VGPU_SLOT_SLICES_REFUSED \
	0x2u /* the driver refused, or read back another value; or a client of MPS */
#define VGPU_SLOT_GATED 0x4u     /* the budget gate has been used */
#define VGPU_SLOT_UNWATCHED 0x8u /* no thread follows gresd: the budget gate always holds */
#define VGPU_SLOT_UNGATED 0x10u  /* it works without CUDA, too, and no hook sees that */

/* How long a dead process's slot still counts (measured on an H200: its memory
 * is gone within 40 ms). */
#define VGPU_GRACE_NS 200000000u

/* One card of a grant. seq is a sequence lock: odd while gresd writes the
 * fields from cores to weight_ppm; readers retry while it is odd or moved. */
struct vgpu_grant_card {
	char uuid[VGPU_UUID_LEN];
	uint64_t mem_limit;    /* bytes; 0: no limit */
	uint64_t mem_overhead; /* bytes one context costs on this node; 0: unknown */
	uint32_t share;        /* hundredths of the card placed for this job */
	uint32_t mode;         /* VGPU_MODE_* */
	uint32_t priority;     /* VGPU_PRIO_* */
	uint32_t ceiling;      /* soft mode: never above this, hundredths; 0: none */
	uint32_t seq;
	uint32_t cores;    /* compute share, hundredths, <= share */
	uint32_t slice_us; /* slice each busy process sets; 0: leave the driver's */
	uint32_t gate;     /* VGPU_GATE_* bits; 0: launches are not held back */
	/* Part of the time for which the job's work is on the card that is its own, on the
	 * average: own slice / sum of the slices of those who are there, 1e-6. */
	uint32_t weight_ppm;
	uint32_t busy_procs; /* processes of this job counted busy */
	uint32_t others;     /* other jobs counted busy on this card */
	uint32_t engine;     /* VGPU_ENGINE_*; does not change */
	/* Bytes that the card counts for the job beyond what its slots announce,
	 * as gresd measured it; added to the sum of the slots. Not under seq. */
	int64_t mem_outside;
	/* Oversubscription: of mem_limit, what the card really has for the job;
	 * linear allocations beyond it become managed memory. 0: all of it. */
	uint64_t mem_physical;
	/* With VGPU_GATE_WINDOW. If the length is a period, the window is always open. Under seq. */
	uint32_t turn_period_us;
	uint32_t turn_queue_us; /* work of one process that may be in flight in a window */
	uint32_t turn_length_us;
	/* The same while all busy neighbours are there; 0: gresd is older than this. */
	uint32_t least_ppm;
	uint64_t turn_begin_ns;
	/* CLOCK_MONOTONIC. An open gate of a hard job counts on its neighbours, which
	 * hold it at its share: gresd says so anew before this time, from which the
	 * budget holds it. 0: it counts on nobody. The same with VGPU_GATE_SHUT. Under
	 * seq. */
	uint64_t lease_ns;
	/* With VGPU_GATE_SHUT: the process whose slot has this owner goes on. 0: none does. Under seq. */
	uint64_t solo;
	/* Corrections of the job's budget since the grant was made, as gresd measured them: time that was
	 * charged too much, less time that was charged too little. Whole microseconds. Not under seq. */
	int64_t credit_ns;
	/* gaps_idle_ppm: the part of gaps_ns (vgpu_demand) in which the card did not work, 1e-6, as
	 * gresd measured it. It is valid up to gaps_until_ns (CLOCK_MONOTONIC). Not under seq. */
	uint64_t gaps_until_ns;
	uint32_t gaps_idle_ppm;
	uint32_t reserved2;
};

struct vgpu_grant {
	uint64_t magic;
	uint32_t version;
	uint32_t size; /* sizeof(struct vgpu_grant) */
	uint32_t job_id;
	uint32_t uid;
	uint32_t gid;
	uint32_t ncards;
	uint64_t created_ns; /* CLOCK_REALTIME */
	uint32_t generation; /* + 1 after each change of any schedule */
	uint32_t revoked;    /* 1: the job has ended; limits still hold */
	/* Path of gresd's socket: a process in another PID namespace asks there which
	 * pid the host knows it by. "": no gresd. */
	char socket[VGPU_SOCKET_LEN];
	struct vgpu_grant_card card[VGPU_MAX_CARDS];
};

/* The head of the cache file belongs to a view laid out as HAMi-core v1.2
 * (2008952 bytes), so that tools that read its files can read ours. */
#define VGPU_HAMI_SIZE 2008952u
#define VGPU_CACHE_OFFSET 2097152u /* header; the hole before it costs nothing on tmpfs */

/* GPU-time budget of one job on one card, shared by all its processes. */
struct vgpu_budget {
	int64_t balance_ns;   /* may be negative: debt */
	uint64_t refilled_ns; /* time up to which share * wall time was credited; 0: never */
	uint64_t charged_ns;  /* sum of all charges */
	uint64_t waits;       /* launches that waited */
	uint64_t wait_ns;
	uint64_t refused; /* allocations refused */
	uint32_t dry;     /* the balance has run out and is being saved up again */
	/* Of the launches that the budget holds back, the one that goes next: when it
	 * began to wait (CLOCK_MONOTONIC; 0: there is none), and the low bits of when it
	 * last looked, in milliseconds. */
	uint32_t first_seen_ms;
	uint64_t first_since_ns;
};

struct vgpu_demand {
	/* The sum of the gaps in batches, in nanoseconds. The card may have waited for the host then. This
	 * only grows, and only while gresd measures the job's gaps. */
	uint64_t gaps_ns;
	/* CLOCK_MONOTONIC: when a launch last went or waited. Updated while VGPU_GATE_WINDOW is set: gresd
	 * gives windows to jobs that recently launched or waited. */
	uint64_t wanted_ns;
	uint64_t idle_ns; /* the part of gaps_ns that was not charged */
};

struct vgpu_cache_header {
	uint64_t magic;
	uint32_t version;
	uint32_t size; /* bytes from VGPU_CACHE_OFFSET to the end of the file */
	uint32_t job_id;
	uint32_t uid;
	uint32_t ncards;
	uint32_t max_slots;
	uint32_t high_slot; /* slots [0, high_slot) may be in use; only grows */
	uint32_t reserved0[7];
	char uuid[VGPU_MAX_CARDS][VGPU_UUID_LEN];
	uint64_t mem_limit[VGPU_MAX_CARDS];
	struct vgpu_budget budget[VGPU_MAX_CARDS];
	struct vgpu_demand demand[VGPU_MAX_CARDS];
	/* The most memory in use right after an allocation, in bytes; only grows.
	 * For display: libraries older than the field leave 0. */
	uint64_t mem_peak[VGPU_MAX_CARDS];
	/* Time for which measured work of the job was on its way, slices of others
	 * included, in nanoseconds; of several processes, the sum. Only grows. */
	uint64_t elapsed_ns[VGPU_MAX_CARDS];
	/* CLOCK_MONOTONIC, at most: up to here the time in which processes of the job had work
	 * on the card is counted, or there was none. What several do at a time counts once. */
	uint64_t counted_ns[VGPU_MAX_CARDS];
	/* Without gresd: the hash of the UUID of the card that has entry i of the cache. 0: no card has it. */
	uint64_t card_key[VGPU_MAX_CARDS];
	/* CLOCK_MONOTONIC: a process of the job last saw work complete, or launched work past the
	 * budget because none completed. */
	uint64_t progress_ns[VGPU_MAX_CARDS];
	/* How much of the grant's credit_ns is in the balance, in microseconds; wraps. */
	uint32_t credited_us[VGPU_MAX_CARDS];
};

/* What one process holds and does on one card. mem is the authority; the
 * kinds are for display and may lag behind it. */
struct vgpu_slot_card {
	uint64_t mem; /* bytes announced */
	uint64_t mem_module;
	uint64_t mem_context;
	uint64_t gpu_ns;      /* GPU time charged */
	uint64_t launches;    /* kernels and graphs launched; a change means busy */
	uint64_t inflight_ns; /* estimated work launched and not yet seen complete */
	uint32_t slice_us;    /* as read back from the driver */
	uint32_t contexts;
	uint32_t typical_ns; /* length of what it launches, weighted by time; 0: not known */
	uint32_t syncs;      /* how often the host has waited for work; wraps */
};

/* owner: 0 free; else, from the highest bit, 10 bits of the PID namespace, 22 of
 * the pid (the kernel's largest is 2^22 - 1), the low 32 of the start time: a claim
 * and a release are one compare-and-swap. Namespace bits that differ from a
 * process's own say that the pid means nothing to it. */
#define VGPU_OWNER_PID(owner) ((uint32_t)((owner) >> 32) & 0x3fffffu)
#define VGPU_OWNER_NS(owner) ((uint32_t)((owner) >> 54))
#define VGPU_NS_UNKNOWN 0x3ffu /* nobody judges, and it judges nobody */

struct vgpu_slot {
	uint64_t owner;
	uint64_t start_time; /* clock ticks since boot, /proc/<pid>/stat field 22 */
	uint32_t pid;        /* in the process's own PID namespace */
	uint32_t host_pid;   /* 0: not known */
	uint64_t heartbeat_ns;
	uint32_t flags;
	uint32_t unknown_symbols; /* driver symbols asked for that this library does not know */
	/* Allocations begun and ended: while they differ, or move, the bytes that
	 * are announced and the bytes that the card counts cannot be compared. */
	uint32_t mem_begun;
	uint32_t mem_done;
	/* When its process was first seen dead; the low 16 bits say whose death it was
	 * (vgpu_death_note). The driver frees the memory of a killed process a moment
	 * after its death, so the slot counts until then. */
	uint64_t died_ns;
	uint64_t pid_ns; /* inode of its PID namespace; 0: not known, or not written yet */
	struct vgpu_slot_card card[VGPU_MAX_CARDS];
};

#define VGPU_SLOTS_OFFSET (VGPU_CACHE_OFFSET + sizeof(struct vgpu_cache_header))
#define VGPU_CACHE_SIZE (VGPU_SLOTS_OFFSET + VGPU_MAX_SLOTS * sizeof(struct vgpu_slot))

#define VGPU_AT(type, field, off) \
	_Static_assert(offsetof(struct type, field) == (off), #type "." #field)

/* The first field of each group of one size. */
VGPU_AT(vgpu_grant_card, mem_limit, 48);
VGPU_AT(vgpu_grant_card, share, 64);
VGPU_AT(vgpu_grant_card, seq, 80);
VGPU_AT(vgpu_grant_card, mem_outside, 112);
VGPU_AT(vgpu_grant_card, turn_period_us, 128);
VGPU_AT(vgpu_grant_card, turn_begin_ns, 144);
VGPU_AT(vgpu_grant_card, credit_ns, 168);
VGPU_AT(vgpu_grant_card, gaps_idle_ppm, 184);
_Static_assert(sizeof(struct vgpu_grant_card) == 192, "vgpu_grant_card");
VGPU_AT(vgpu_grant, version, 8);
VGPU_AT(vgpu_grant, generation, 40);
VGPU_AT(vgpu_grant, socket, 48);
VGPU_AT(vgpu_grant, card, 128);
_Static_assert(sizeof(struct vgpu_budget) == 64, "vgpu_budget");
VGPU_AT(vgpu_cache_header, version, 8);
VGPU_AT(vgpu_cache_header, uuid, 64);
VGPU_AT(vgpu_cache_header, budget, 960);
VGPU_AT(vgpu_cache_header, demand, 1984);
VGPU_AT(vgpu_cache_header, card_key, 2752);
VGPU_AT(vgpu_cache_header, credited_us, 3008);
_Static_assert(sizeof(struct vgpu_cache_header) == 3072, "vgpu_cache_header");
VGPU_AT(vgpu_slot_card, slice_us, 48);
_Static_assert(sizeof(struct vgpu_slot_card) == 64, "vgpu_slot_card");
VGPU_AT(vgpu_slot, pid, 16);
VGPU_AT(vgpu_slot, flags, 32);
VGPU_AT(vgpu_slot, died_ns, 48);
VGPU_AT(vgpu_slot, card, 64);

#endif
