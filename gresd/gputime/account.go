// SPDX-License-Identifier: Apache-2.0

package gputime

import "time"

// account adds up how each process used the card.
type account struct {
	use map[uint32]*user
	// turned is, by our clock, since when it is noted who had the card.
	turned int64
	// on is the process that has the card now, since since (card's clock), if it is taken;
	// else nobody has it, or it is not known who.
	on    uint32
	taken bool
	since uint64
	last  uint64 // up to when all is counted
	// ahead is how far our clock is ahead of the card's at most: the least by which a
	// record was ever seen to be old. It grows slowly, for clocks drift.
	ahead int64
	asked int64 // our clock at the last count
	told  int64 // up to when all is counted, by our clock
	known bool  // ahead is
}

// user is a process that had the card.
type user struct {
	Use
	left   uint64 // when it last left, by the card's clock; 0: not known
	lately bool   // it had the card since [account.turned]
}

// WaitsFor is how long a process that has left the card counts as one that wants it: it
// waits for its turn, or its host for a result. One that stays away longer had nothing to
// do. It is longer than the turns of all others are, and much shorter than a pause of a host
// that reads a file.
const WaitsFor = 50 * time.Millisecond

const (
	// drift is by how much two clocks may go apart, as a part of time.
	drift = 50e-6
	// setBack is the age of a record that can only be if the card's clock was set.
	setBack = int64(time.Second)
	// setAhead is by how much a record can be younger than all others only if the
	// card's clock was set: the first may be as old as a trace gets between two looks.
	setAhead = 6 * int64(idle)
	// lastTime is no time by any clock, in the year 2116.
	lastTime = 1 << 62
	// forgetAfter is the least time without the card after which a process is forgotten:
	// a trace that somebody always asks for would else remember all that ever were.
	forgetAfter = time.Minute
)

func newAccount() *account { return &account{use: map[uint32]*user{}} }

// add takes a record that was read at a time of our clock.
func (a *account) add(s Switch, read int64) {
	if s.At >= lastTime {
		return
	}
	age := read - int64(s.At)
	if !a.known || age > a.ahead+setBack || age < a.ahead-setAhead {
		a.ahead, a.last, a.known = age, s.At, true
		a.lost()
	}
	a.ahead = min(a.ahead, age)
	a.last = max(a.last, s.At)
	switch {
	case s.Came:
		// One that left without a record was there until now at most; when is not
		// known, so that time is nobody's.
		a.on, a.since, a.taken = s.PID, s.At, true
		u := a.of(s.PID)
		u.Waited += u.waits(s.At)
		u.Turns++
		u.left = 0
	case a.taken && a.on == s.PID && s.At >= a.since:
		a.charge(s.PID, s.At-a.since)
		a.taken = false
		a.of(s.PID).left = s.At
	default: // it was there before the account began
		a.taken = false
	}
}

// until counts the process that has the card up to a time of our clock. Every record
// of before then must have been added.
func (a *account) until(now int64) {
	if !a.known {
		return
	}
	if a.asked != 0 {
		a.ahead += int64(float64(now-a.asked) * drift)
	}
	a.asked = now
	if now-a.ahead <= int64(a.last) {
		return
	}
	at := uint64(now - a.ahead)
	if a.taken && at > a.since {
		a.charge(a.on, at-a.since)
		a.since = at
	}
	a.last = at
}

// of returns what is known of a process.
func (a *account) of(pid uint32) *user {
	u := a.use[pid]
	if u == nil {
		u = &user{}
		a.use[pid] = u
	}
	return u
}

func (a *account) charge(pid uint32, ns uint64) {
	u := a.of(pid)
	u.Had += time.Duration(ns)
	u.lately = true
}

// waits is for how long a process has waited since it left, at a time of the card's clock.
func (u *user) waits(at uint64) time.Duration {
	if u.left == 0 || at < u.left {
		return 0
	}
	return min(time.Duration(at-u.left), WaitsFor)
}

// uses is the account of all processes up to now.
func (a *account) uses() map[uint32]Use {
	list := make(map[uint32]Use, len(a.use))
	for pid, u := range a.use {
		use := u.Use
		use.Waited += u.waits(a.last)
		list[pid] = use
	}
	return list
}

// forget leaves out who has not had the card for a while. One that comes back begins
// anew.
func (a *account) forget(now int64) {
	if now-a.turned < int64(forgetAfter) {
		return
	}
	for pid, u := range a.use {
		if !u.lately {
			delete(a.use, pid)
		}
		u.lately = false
	}
	a.turned = now
}

// upTo is until when all is counted, by our clock; 0: nothing is. It never goes back.
func (a *account) upTo() int64 {
	if a.known {
		a.told = max(a.told, int64(a.last)+a.ahead)
	}
	return a.told
}

// lost forgets who has the card, and since when the others have not: records are missing.
func (a *account) lost() {
	a.taken = false
	for _, u := range a.use {
		u.left = 0
	}
}
