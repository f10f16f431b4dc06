// SPDX-License-Identifier: Apache-2.0

package waitqueue

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/cards"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
)

var half = request.Request{Share: 50, Cards: 1}

// driver has the cards a and b.
type driver struct{}

func (driver) Cards() ([]gpu.Card, error) {
	return []gpu.Card{{UUID: "a", Index: 0, Memory: 80 * gpu.GiB, Healthy: true}, {UUID: "b", Index: 1, Memory: 80 * gpu.GiB, Healthy: true}}, nil
}

func (driver) Topology() (topology.Facts, error) { return topology.Facts{}, nil }

// well finds no card sick.
type well struct{ cards.Health }

func (well) Out(gpu.UUID) string { return "" }

// opener returns a function that opens the queue of a folder, as a gresd that starts does.
func opener(t testing.TB, dir string) func(reserveAfter uint32) *Queue {
	t.Helper()
	cfg := config.Default()
	cfg.Paths.StateDir, cfg.Placement.By = dir, config.PlacementGresd
	log := slog.New(slog.DiscardHandler)
	records, err := ledger.Open(cfg.Paths.Ledger())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = records.Close() })
	of := cards.Read(driver{}, well{}, config.NewInForce(cfg), log)
	return func(reserveAfter uint32) *Queue {
		cfg.Placement.Patience = reserveAfter
		q, err := Open(config.NewInForce(cfg), of, nil, records, log)
		if err != nil {
			panic(err) // a fuzz target calls this
		}
		return q
	}
}

// reservedFor returns the job that has a reservation, 0 for none.
func (q *Queue) reservedFor() uint32 {
	if job := q.reservation(); job != nil {
		return job.ID
	}
	return 0
}

// noRoom records an attempt. Then cards are reserved for job reserved, 0 for none.
func (q *Queue) noRoom(t *testing.T, id uint32, req request.Request, wantTimes, reserved uint32) {
	t.Helper()
	q.RecordNoRoom(Request{JobID: id, Share: req, Requeues: true})
	if times, is := q.RequeueCount(id), q.reservedFor(); times != wantTimes || is != reserved {
		t.Errorf("job %d finds no room: %d times, reserved for job %d; want %d, job %d", id, times, is, wantTimes, reserved)
	}
}

func TestCardsAreReservedForTheFirstPatientJob(t *testing.T) {
	open := opener(t, t.TempDir())
	both := request.Request{Share: 100, Cards: 2}
	q := open(2)
	q.noRoom(t, 1, both, 1, 0)
	q.noRoom(t, 2, both, 1, 0)
	q.noRoom(t, 3, both, 1, 0)
	q.noRoom(t, 2, both, 2, 2) // job 1 has not been patient yet
	q.noRoom(t, 3, both, 2, 2)
	q.noRoom(t, 1, both, 2, 2)
	q = open(2) // a restart
	if job := q.reservation(); job == nil || job.ID != 2 || job.Request != both || !reflect.DeepEqual(job.Held, []gpu.UUID{"a", "b"}) {
		t.Errorf("reserved for %+v", job)
	}
	q.Remove(7)
	q.Remove(2)
	if is := q.reservedFor(); is != 1 { // it is before job 3
		t.Errorf("then cards are reserved for job %d, want 1", is)
	}
	if q = open(2); q.reservedFor() != 1 || len(q.jobs) != 2 {
		t.Errorf("after a restart: %+v", q.jobs)
	}
}

func TestOnlyJobsThatCanBeRequeuedJoinTheQueue(t *testing.T) {
	q := opener(t, t.TempDir())(1)
	q.RecordNoRoom(Request{JobID: 1, Share: half})
	q.RecordNoRoom(Request{JobID: 2, WholeCards: []gpu.UUID{"a"}, Requeues: true})
	if len(q.jobs) != 0 {
		t.Errorf("the queue is %+v", q.jobs)
	}
}

func TestNoCardIsReservedWithoutPatience(t *testing.T) {
	q := opener(t, t.TempDir())(0)
	for i := range uint32(5) {
		q.noRoom(t, 1, half, i+1, 0)
	}
}

// Cards that have the room are reserved for a job that can start now, and for no other.
func TestIdleCardsAreReservedOnlyForAJobThatWaitsHere(t *testing.T) {
	q := opener(t, t.TempDir())(1)
	q.noRoom(t, 1, request.Request{Share: 160, Cards: 2}, 1, 1) // both cards
	full := ledger.Record{JobID: 9, State: ledger.Granted, Placement: place.Placement{Cards: []place.CardShare{{UUID: "a", Share: 60, Memory: gpu.GiB}}}}
	for _, c := range []struct {
		here, room, reserved bool
	}{
		{true, false, true},
		{true, true, true},
		{false, false, true}, // other jobs are still there: no new ones
		{false, true, false}, // it waits for Slurm's delay: another job may have the card
	} {
		q.waiters = nil
		if c.here {
			q.waiters = []*waiter{{jobID: 1}}
		}
		_, onDisk := q.ledger.BeginDelete(9)
		if err := onDisk.Wait(); err != nil {
			t.Fatal(err)
		}
		if !c.room {
			if err := q.ledger.Commit(full); err != nil {
				t.Fatal(err)
			}
		}
		now := q.cards.Now()
		_, err := q.Choose(2, now.Cards, q.InUse(), request.Request{Share: 10, Cards: 1}, now.Distances)
		if (err != nil) != c.reserved {
			t.Errorf("here %v, room %v: %v, want reserved %v", c.here, c.room, err, c.reserved)
		}
	}
}

// A job that does not come must not keep cards.
func TestAJobThatDoesNotComeGoesToTheEnd(t *testing.T) {
	q := opener(t, t.TempDir())(1)
	q.noRoom(t, 1, half, 1, 1)
	q.noRoom(t, 2, half, 1, 1)
	start := time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)
	q.jobs[0].Seen = start
	for _, look := range []struct {
		after time.Duration
		here  bool
		late  bool
	}{
		{0, false, false},
		{reservationTimeout - 1, false, false},
		{reservationTimeout, true, false}, // it was sent back, and is here again
		{reservationTimeout*2 - 1, false, false},
		{reservationTimeout, false, false}, // the clock is set back
		{0, false, false},
		{reservationTimeout - 1, false, false},
		{reservationTimeout, false, true},
		{reservationTimeout * 10, false, true}, // no card is reserved
	} {
		q.waiters = nil
		if look.here {
			q.waiters = []*waiter{{jobID: 1}}
		}
		if q.expireReservation(start.Add(look.after)); (q.reservedFor() == 0) != look.late {
			t.Errorf("after %s: reserved for job %d; want late %v", look.after, q.reservedFor(), look.late)
		}
	}
	if jobs := q.jobs; len(jobs) != 2 || jobs[0].ID != 2 || jobs[1].ID != 1 || jobs[1].Times != 0 || jobs[1].Held != nil {
		t.Errorf("the queue is %+v, want job 2, then job 1 anew", jobs)
	}
}

func TestATornFileIsAnEmptyQueue(t *testing.T) {
	dir := t.TempDir()
	open := opener(t, dir)
	if err := os.WriteFile(filepath.Join(dir, "waiting.json"), []byte(`[{"job_id":1,`), 0o600); err != nil {
		t.Fatal(err)
	}
	if q := open(1); len(q.jobs) != 0 {
		t.Errorf("the queue is %+v", q.jobs)
	}
}

func TestTheQueueIsBounded(t *testing.T) {
	q := opener(t, t.TempDir())(1)
	for id := range uint32(maxJobs + 10) {
		q.RecordNoRoom(Request{JobID: id + 1, Share: half, Requeues: true})
	}
	if n := len(q.jobs); n != maxJobs {
		t.Errorf("%d jobs are in the queue, want %d", n, maxJobs)
	}
}
