/* SPDX-License-Identifier: Apache-2.0 */
/*
 * memory.pml - the memory protocol of region.h (announce, then check), for SPIN.
 *
 * Processes of one job claim a slot, reserve, free, and are killed at any step; a
 * reclaimed slot goes to another; gresd's child clears slots of the dead, and is
 * killed at any step too. What the code calls is in brackets: vgpu_slot_claim,
 * vgpu_mem_reserve, vgpu_mem_release, vgpu_slot_reclaim (libvgpu/region_ops.c), ClearSlots
 * (libvgpu/region_clear.go). Each read and each write of shared memory is a step;
 * those of several fields that no other step tells apart are one (d_step).
 *
 * Assumed: sequential consistency (all accesses are seq_cst); an owner word is never
 * used twice (pid and start time); the card frees the memory of a dead process within
 * VGPU_GRACE_NS of its death, at the latest when somebody finds the grace over.
 *
 * Properties: what the card holds for the job is never above the limit; a process
 * that lives never loses its slot or what it announced; what was refused is taken
 * back; when all have died, the last sweep leaves every slot free and empty; nobody
 * ever waits for another.
 *
 * Each BREAK_ flag takes one step away, and must be found (model_test.go).
 */
#define SLOTS 2
#ifndef JOBS
#define JOBS 3 /* processes, one more than slots: a slot is used again */
#endif
#define CHILD (JOBS + 1) /* gresd's child */
#define SWEEP (JOBS + 2) /* the last sweep */
#define NOBODY 99
#define LIMIT 1
#ifndef TRIES
#define TRIES 1 /* allocations of a process */
#endif

byte owner[SLOTS], mem[SLOTS];
byte died[SLOTS]; /* whose death was noted [died_ns and the owner's mark in it] */
chan kill = [0] of { byte };
byte high;        /* [high_slot] */
bool alive[JOBS + 3];
byte held[JOBS + 3]; /* what the card holds for a process */
#ifdef BREAK_MARK
byte dead_then[SLOTS]; /* who had died when it was noted; not in the file */
#endif
#ifdef BREAK_LOCK
bool lock;
#endif

/* [grace_is_over]: over, or noted and to be waited for. */
inline grace(i, o, is_over)
{
#ifdef BREAK_GRACE
	is_over = true
#else
	note = died[i];
	if
#ifdef BREAK_MARK /* a note does not say whose death it is of */
	:: note == 0 ->
		d_step {
			if
			:: died[i] == 0 ->
				died[i] = 1;
				dead_then[i] = (alive[owner[i]] -> 0 : owner[i])
			:: else
			fi;
			is_over = false
		}
	:: note != 0 && dead_then[i] -> d_step { note = 0; is_over = true; held[dead_then[i]] = 0 }
	:: note != 0 && !dead_then[i] -> d_step { note = 0; is_over = true }
#else
	:: note != o ->
		d_step { /* compare-and-swap */
			if
			:: died[i] == note -> died[i] = o
			:: else
			fi;
			note = 0;
			is_over = false
		}
	:: note == o -> d_step { note = 0; is_over = true; held[o] = 0 }
#endif
	:: note != 0 -> d_step { note = 0; is_over = false }
	fi
#endif
}

/* [slot_clear]: the caller owns the slot. */
inline clear(i)
{
	assert(owner[i] == me);
	d_step { mem[i] = 0; died[i] = 0 }
}

/* [vgpu_slot_release] */
inline give(i)
{
#ifdef BREAK_RELEASE
	owner[i] = 0;
	mem[i] = 0
#else
	clear(i);
	owner[i] = 0
#endif
}

/* o: the owner of slot i if it is dead, else 0. One step: between reading the word
 * and asking for the process, it can only die, which it could have done before. */
inline look(i, nobody)
{
	d_step {
		o = owner[i];
		if
		:: nobody || o == NOBODY || alive[o] -> o = 0
		:: else
		fi
	}
}

#ifdef BREAK_OWNER
#define TAKER NOBODY /* who clears a slot marks it instead of owning it */
#else
#define TAKER me
#endif

/* [reclaim] takes the slots of the dead. */
inline reclaim()
{
#ifdef BREAK_LOCK
	atomic { !lock -> lock = true };
#endif
	i = 0;
	do
	:: i < high ->
		look(i, o == 0 || o == me);
		if
		:: o == 0 -> skip
		:: else ->
			grace(i, o, go);
			if
			:: go ->
#ifdef BREAK_SWAP
				owner[i] = TAKER;
				mem[i] = 0;
				owner[i] = 0
#else
				d_step {
					if
					:: owner[i] == o -> owner[i] = TAKER
					:: else -> go = false
					fi
				};
				if
				:: go ->
#ifdef BREAK_OWNER
					mem[i] = 0;
					owner[i] = 0
#else
					give(i)
#endif
				:: else
				fi
#endif
			:: else
			fi
		fi;
		atomic { i++; o = 0; go = false }
	:: else -> break
	od;
	i = 0;
#ifdef BREAK_LOCK
	lock = false
#endif
}

/* [vgpu_slot_claim]: mine is the slot, SLOTS when all are taken. */
inline claim()
{
	i = 0;
	do
	:: i == SLOTS -> break
	:: else ->
		d_step { o = owner[i]; free = o == 0; if :: o == 0 || o == NOBODY || alive[o] -> o = 0 :: else fi };
		if
		:: free -> go = true
		:: !free && o == 0 -> skip
		:: !free && o != 0 -> grace(i, o, go)
		fi;
		free = false;
		if
		:: go ->
#ifndef BREAK_HIGH
			d_step { high = (high < i + 1 -> i + 1 : high) };
#endif
			d_step {
				if
				:: owner[i] == o -> owner[i] = me
				:: else -> go = false
				fi
			};
			if
			:: go -> clear(i); break
			:: else
			fi
		:: else
		fi;
		atomic { i++; o = 0; go = false }
	od;
	atomic { mine = i; i = 0; o = 0; go = false }
}

inline sum_up()
{
	i = 0;
	do
	:: i < high -> d_step { sum = sum + mem[i]; i++ }
	:: else -> break
	od;
	i = 0
}

/* [vgpu_mem_reserve], one try; the driver allocates what was reserved. */
inline reserve(bytes)
{
	sum = 0;
#ifdef BREAK_ANNOUNCE
	sum_up();
	sum = sum + bytes;
	mem[mine] = mem[mine] + bytes;
#else
	mem[mine] = mem[mine] + bytes;
	sum_up();
#endif
	if
	:: sum <= LIMIT ->
		d_step {
			sum = 0;
			held[me] = held[me] + bytes;
			assert(held[1] + held[2] + held[3] <= LIMIT)
		};
	:: else ->
		sum = 0;
#ifndef BREAK_TAKE_BACK
		mem[mine] = mem[mine] - bytes;
#endif
		assert(mem[mine] == held[me]);
		reclaim()
	fi
#ifdef BREAK_HIGH
	;
	d_step { high = (high < mine + 1 -> mine + 1 : high) }
#endif
}

/* [vgpu_mem_release], after the driver has freed. */
inline release()
{
#ifdef BREAK_FREE
	mem[mine] = mem[mine] - 1;
	held[me] = 0
#else
	held[me] = 0;
	mem[mine] = mem[mine] - 1
#endif
}

proctype Job(byte me)
{
	byte i, o, note, mine, sum, tries;
	bool go, free;

	{
		claim();
		if
		:: mine < SLOTS ->
			do
			:: held[me] == 0 && tries < TRIES -> tries++; reserve(1)
			:: held[me] > 0 -> release()
			:: held[me] == 0 && tries == TRIES -> break
			od;
			/* It lives, so all that it holds is announced. */
			assert(owner[mine] == me && mem[mine] == held[me])
		:: else /* told that there is no place */
		fi;
end:		false /* until it is killed; no release at exit: see job.c */
	} unless {
		atomic {
			kill ? eval(me) -> alive[me] = false;
			i = 0; o = 0; note = 0; mine = 0; sum = 0; tries = 0; go = false; free = false
		}
	}
}

/* [ClearSlots]: told by gresd who is dead, which saw it twice, a second apart. */
proctype Child(byte me)
{
	byte i, o;
	bool go;

	{
		do
		:: i < SLOTS ->
			look(i, o == 0);
			if
			:: o == 0 -> skip
			:: else ->
				held[o] = 0;
				d_step {
					if
					:: owner[i] == o -> owner[i] = me; go = true
					:: else -> go = false
					fi
				};
				if
				:: go -> give(i)
				:: else
				fi
			fi;
			atomic { i++; o = 0; go = false }
		:: else -> break
		od;
end:		false
	} unless {
		atomic { kill ? eval(me) -> alive[me] = false; i = 0; o = 0; go = false }
	}
}

/* Kills whom it likes, when it likes; also who has done its work. */
proctype Killer()
{
end:	do
#ifdef STOPS /* so that who waits for somebody dead waits for ever */
	:: break
#endif
	:: kill ! 1
	:: kill ! 2
#ifndef BREAK_MARK /* without, it is found sooner */
	:: kill ! 3
	:: kill ! CHILD
#endif
	od
}

init
{
	byte me = SWEEP, i, o;

	atomic {
		alive[1] = true;
		alive[2] = true;
		alive[3] = JOBS > 2;
#ifdef GRESD
		alive[CHILD] = true;
#endif
		alive[SWEEP] = true;
		run Job(1);
		run Job(2);
#if JOBS > 2
		run Job(3);
#endif
#ifdef GRESD
		run Child(CHILD);
#endif
		run Killer()
	};
end:	!alive[1] && !alive[2] && !alive[3] && !alive[CHILD];
	/* What [reclaim] does once every grace is over. */
	do
	:: i < high ->
		o = owner[i];
		if
		:: o != 0 && o != NOBODY -> owner[i] = me; give(i)
		:: else
		fi;
		assert(owner[i] == 0 && mem[i] == 0);
		i++
	:: else -> break
	od
}
