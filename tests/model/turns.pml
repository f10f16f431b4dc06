/* SPDX-License-Identifier: Apache-2.0 */
/*
 * turns.pml - how turns on a card are handed over, for SPIN (docs/adr/0004).
 *
 * Two jobs that always have work, and gresd, which deals them turns: [step], [free],
 * [deal] and [schedules] of gresd/arbiter/runner_turns.go; [vgpu_turn_wait] and
 * [vgpu_turn_launched] of libvgpu/region_budget.c. Time goes in ticks; all times are kept as
 * differences to now, so that there are finitely many. In a tick gresd looks, or is
 * late (not twice running); then each job may launch; then the card works. A kernel is
 * 1 to KERNEL ticks long, as is estimated or longer. Jobs and gresd are killed at any
 * tick; the claim of a dead job stays in its cache, its work leaves the card.
 *
 * Left out: debts and credits of the deficit round robin (all turns are one quantum),
 * priorities, pauses, and work without an end.
 *
 * Properties, while gresd lives: at most one job's window is open, and nobody else's
 * work of an earlier window is on the card for longer than OVERLAP ticks of it, if
 * kernels are no longer than others wait for them (DRAIN). Ever:
 * who lives gets a window within WAIT ticks, whoever dies, gresd too.
 *
 * Each BREAK_ flag takes one rule away, and must be found (model_test.go).
 */
#define LEAD 1
#define DRAIN 3  /* [drainMax] */
#define LATE 1   /* [lateMax] */
#define AWAY 2   /* [awayAfter] */
#define QUANTUM 2
#define ALONE 8 /* [VGPU_TURN_ALONE_NS] */
#define PERIOD 4
#ifndef KERNEL
#define KERNEL 2
#endif
#ifndef OVERLAP
#define OVERLAP 1
#endif
#ifndef WAIT
#define WAIT 10
#endif
#define NOBODY 2

bool alive[2] = true, up = true;
bool late = true; /* it begins with a look */
/* In the caches: until when work is claimed, whether some is in flight, and for how
 * long the job has wanted none. */
short until[2];
bool inflight[2];
byte quiet[2];
byte real[2]; /* on the card, ticks */
/* In the grants. */
short told[2];
bool open[2];
/* gresd's own. */
byte cur = NOBODY;
short begin, end;
bit served;
byte waited[2], both; /* of the properties */

#define RUNS(j) (until[j] > 0 || inflight[j] && -until[j] < LATE)
#define WANTS(j) (RUNS(j) || quiet[j] < AWAY)
#ifdef BREAK_DRAIN /* a claim is believed as long as it says */
#define AT_MOST 99
#else
#define AT_MOST DRAIN
#endif

/* [vgpu_turn_wait] == 0 for work that starts in so many ticks. */
#define SINCE(j, start) ((start) - told[j])
#ifdef BREAK_ALONE
#define AGAIN(j, start) false
#else
#define AGAIN(j, start) (SINCE(j, start) >= ALONE && (SINCE(j, start) - ALONE) % PERIOD < QUANTUM)
#endif
#define IN_WINDOW(j, start) \
	(open[j] || SINCE(j, start) >= 0 && (SINCE(j, start) < QUANTUM || AGAIN(j, start)))

inline look_free()
{
	x = until[cur];
	if
	:: inflight[cur] && x <= 0 && RUNS(cur) -> x = 2 * LEAD
	:: else
	fi;
	x = (x > end + AT_MOST -> end + AT_MOST : x);
#ifdef BREAK_FREE /* the next turn begins at the end of this one */
	x = end;
#endif
	x = (x > end -> x : end)
}

/* The turn that begins in so many ticks goes to the next that wants one. */
inline deal(at)
{
	if
#ifdef BREAK_ROUND
	:: WANTS(0) -> next = 0
	:: !WANTS(0) && WANTS(1) -> next = 1
#else
	:: cur != 0 && WANTS(0) -> next = 0
	:: cur != 0 && !WANTS(0) && WANTS(1) -> next = 1
	:: cur == 0 && WANTS(1) -> next = 1
	:: cur == 0 && !WANTS(1) && WANTS(0) -> next = 0
#endif
	:: !WANTS(0) && !WANTS(1) -> next = NOBODY
	fi;
	cur = next;
	begin = at;
	end = at + QUANTUM;
	next = 0
}

inline step()
{
	if
	:: cur == NOBODY -> deal(0)
	:: cur != NOBODY && begin > 0 -> skip
	:: cur != NOBODY && begin <= 0 && !RUNS(cur) && quiet[cur] > 1 && -begin > 1 -> deal(0)
	:: cur != NOBODY && begin <= 0 && !(!RUNS(cur) && quiet[cur] > 1 && -begin > 1) ->
		if
		:: end <= LEAD ->
			look_free();
			if
			:: x <= LEAD -> deal((x < 0 -> 0 : x))
			:: else
			fi
		:: else
		fi
	fi;
	/* [schedules] */
	if
	:: cur == NOBODY -> open[0] = true; open[1] = true
	:: else ->
		look_free();
		open[0] = cur == 0 && !WANTS(1) || cur == 1 && !WANTS(0);
		open[1] = cur == 1 && !WANTS(0) || cur == 0 && !WANTS(1);
		told[cur] = begin;
		told[1 - cur] = x
	fi;
	x = 0
}

inline launch(j)
{
	if
	:: !alive[j] -> skip
	:: alive[j] ->
		quiet[j] = 0;
		inflight[j] = real[j] > 0;
		/* [vgpu_turn_until]: what should be done and is not, is said again. */
		if
		:: real[j] == 0 && until[j] > 0 -> until[j] = 0
#ifndef BREAK_CLAIM
		:: real[j] > 0 && until[j] <= 0 -> until[j] = 1
#endif
		:: else
		fi;
		if
		:: IN_WINDOW(j, (until[j] > 0 -> until[j] : 0)) && until[j] < 2 && real[j] < 2 ->
			/* What was estimated, and what it is. */
			if
			:: e = 1; r = 1
			:: e = 1; r = KERNEL
			:: e = KERNEL; r = KERNEL
			:: e = 0; r = 0 /* its host is slow */
			fi;
			until[j] = (until[j] > 0 -> until[j] : 0) + e;
			real[j] = real[j] + r;
			inflight[j] = real[j] > 0
		:: else
		fi
	fi;
	e = 0;
	r = 0
}

inline pass(v, least)
{
	v = (v > least -> v - 1 : least)
}

init
{
	short x;
	byte next, e, r;
	bool one, two;

	do
	:: atomic {
		/* Deaths. */
		if
		:: skip
		:: alive[0] && alive[1] -> alive[1] = false; real[1] = 0
		:: up -> up = false
		fi;
		if
		:: up -> late = false; step()
		:: up && !late -> late = true
		:: !up
		fi;
		/* While gresd lives, and knows of two: one window. */
		one = IN_WINDOW(0, 0) && !open[0];
		two = IN_WINDOW(1, 0) && !open[1];
		assert(!(up && one && two));
		if
		:: launch(0); launch(1)
		:: launch(1); launch(0)
		fi;
		/* The card does one tick of work: of both by turns. */
		both = (real[0] && real[1] && up && KERNEL <= DRAIN -> both + 1 : 0);
		assert(both <= OVERLAP);
		if
		:: real[0] && (!real[1] || served == 1) -> real[0]--; served = 0
		:: real[1] && (!real[0] || served == 0) -> real[1]--; served = 1
		:: !real[0] && !real[1] -> served = 0
		fi;
		waited[0] = (one || open[0] -> 0 : waited[0] + 1);
		waited[1] = (two || open[1] || !alive[1] -> 0 : waited[1] + 1);
		assert(waited[0] <= WAIT && waited[1] <= WAIT);
		/* A tick goes by. */
		pass(until[0], -LATE);
		pass(until[1], -LATE);
		told[0]--;
		told[1]--;
		told[0] = (told[0] < -(ALONE + PERIOD) -> told[0] + PERIOD : told[0]);
		told[1] = (told[1] < -(ALONE + PERIOD) -> told[1] + PERIOD : told[1]);
		pass(begin, -9);
		pass(end, -9);
		quiet[0] = (quiet[0] < 3 -> quiet[0] + 1 : 3);
		quiet[1] = (quiet[1] < 3 -> quiet[1] + 1 : 3);
		one = false;
		two = false
	}
	od
}
