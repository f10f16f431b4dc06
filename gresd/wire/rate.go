// SPDX-License-Identifier: Apache-2.0

package wire

import (
	"context"
	"maps"
	"sync"
	"time"
)

// What users ask for is served at a rate, so that no user takes gresd's processors, which divide
// the cards' time as well. Whoever asks for more waits; root never does.
const (
	// each is the time that a request of cost 1 uses of its user's, burst how much of it may have
	// been saved: 100 questions of a process that starts a second, 20 of an administrator's view,
	// and four times as many at once.
	each  = 2 * time.Millisecond
	burst = 4 * time.Second
	// together is how many users at this rate are served at once. Subordinate ids make one
	// person many users.
	together = 4

	// manyUsers is from how many on those that have asked for nothing lately are forgotten.
	manyUsers = 256
)

// costOf is what a request costs: programs ask the first two when they start or have no room, and
// the others look at all cards or jobs.
func costOf(op Op) time.Duration {
	switch op {
	case OpPing:
		return 1
	case OpEnded:
		return 5
	}
	return 25
}

// rates are those of all users. The zero value is ready.
type rates struct {
	mu    sync.Mutex
	all   time.Time            // the time that has been used of all users'
	byUID map[uint32]time.Time // and of each one's
}

// take uses time for a request, and says how long it has to wait for it.
func (r *rates) take(uid uint32, cost time.Duration, now time.Time) time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	oldest := now.Add(-burst)
	if r.byUID == nil {
		r.byUID = map[uint32]time.Time{}
	}
	if len(r.byUID) >= manyUsers {
		maps.DeleteFunc(r.byUID, func(_ uint32, used time.Time) bool { return used.Before(oldest) })
	}
	use := func(used time.Time, of time.Duration) time.Time {
		if used.Before(oldest) {
			used = oldest
		}
		return used.Add(of)
	}
	r.byUID[uid] = use(r.byUID[uid], cost*each)
	r.all = use(r.all, cost*each/together)
	return max(r.byUID[uid].Sub(now), r.all.Sub(now), 0)
}

// wait returns when a request of a user may be served; false when ctx is done before.
func (r *rates) wait(ctx context.Context, uid uint32, op Op) bool {
	if IsRoot(uid) {
		return true
	}
	delay := r.take(uid, costOf(op), time.Now())
	return delay == 0 || wait(ctx, delay)
}

// wait returns false if ctx is done before.
func wait(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
