// SPDX-License-Identifier: Apache-2.0

package backlog

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

var half = request.Request{Share: 50}

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func open(t *testing.T, path string, patience uint32) *Line {
	t.Helper()
	l, err := Open(path, patience, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// has is what the cards of a job have room for; yes and no, who is here.
func has(room bool) func(Job) bool {
	return func(Job) bool { return room }
}

func yes(uint32) bool { return true }
func no(uint32) bool  { return false }

// back has a job come and find no room; next is the job for which cards should be held
// then, 0 for none.
func (l *Line) back(t *testing.T, id uint32, wantTimes, next uint32) {
	t.Helper()
	times, err := l.NoRoom(id, half, start)
	turn, _ := l.Next()
	if err != nil || times != wantTimes || turn.ID != next {
		t.Errorf("job %d finds no room: %d times, next is job %d, %v; want %d, job %d", id, times, turn.ID, err, wantTimes, next)
	}
}

func TestTheFirstPatientJobIsNext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "waiting.json")
	l := open(t, path, 2)
	l.back(t, 1, 1, 0)
	l.back(t, 2, 1, 0)
	l.back(t, 2, 2, 2) // job 1 has not been patient yet
	l.back(t, 1, 2, 1) // it is before job 2, and nobody holds a card
	if err := l.Hold(1, []gpu.UUID{"a", "b"}); err != nil {
		t.Fatal(err)
	}
	l = open(t, path, 2) // a restart
	l.back(t, 2, 3, 0)
	if job, ok := l.Holder(); !ok || job.ID != 1 || job.Request != half || !reflect.DeepEqual(job.Held, []gpu.UUID{"a", "b"}) {
		t.Errorf("held for %+v, %v", job, ok)
	}
	for _, id := range []uint32{1, 7} {
		if err := l.Leave(id); err != nil {
			t.Fatal(err)
		}
	}
	if _, ok := l.Holder(); ok {
		t.Error("cards are held for a job that has left")
	}
	if job, ok := l.Next(); !ok || job.ID != 2 {
		t.Errorf("then job %d is next, want 2", job.ID)
	}
}

func TestNobodyIsHeldForWithoutPatience(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "waiting.json"), 0)
	for i := range uint32(5) {
		l.back(t, 1, i+1, 0)
	}
}

// Cards that have the room are kept for a job that can start now, and for no other.
func TestIdleCardsAreKeptOnlyForAJobThatIsHere(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "waiting.json"), 1)
	l.back(t, 1, 1, 1)
	if err := l.Hold(1, []gpu.UUID{"a"}); err != nil {
		t.Fatal(err)
	}
	for _, look := range []struct {
		here func(uint32) bool
		room bool
		kept bool
	}{
		{yes, false, true},
		{yes, true, true},
		{no, false, true}, // others are still there: no new ones
		{no, true, false}, // it waits for Slurm's delay: who is here may have the card
	} {
		if _, cards := l.Kept(look.here, has(look.room)); (len(cards) > 0) != look.kept {
			t.Errorf("here %v, room %v: kept %v, want %v", look.here(1), look.room, cards, look.kept)
		}
	}
}

// A job that does not come must not keep cards.
func TestAJobThatDoesNotComeGoesToTheEnd(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "waiting.json"), 1)
	l.back(t, 1, 1, 1)
	l.back(t, 2, 1, 1)
	if err := l.Hold(1, []gpu.UUID{"a"}); err != nil {
		t.Fatal(err)
	}
	for _, look := range []struct {
		after time.Duration
		here  func(uint32) bool
		late  bool
	}{
		{0, no, false},
		{HoldFor - 1, no, false},
		{HoldFor, yes, false}, // it was sent back, and is here again
		{HoldFor*2 - 1, no, false},
		{HoldFor, no, false}, // the clock is set back
		{0, no, false},
		{HoldFor - 1, no, false},
		{HoldFor, no, true},
		{HoldFor * 10, no, false}, // nobody holds
	} {
		late, err := l.Look(start.Add(look.after), look.here)
		if err != nil || late != look.late {
			t.Errorf("after %s: late %v, %v; want %v", look.after, late, err, look.late)
		}
	}
	if jobs := l.Jobs(); len(jobs) != 2 || jobs[0].ID != 2 || jobs[1].ID != 1 || jobs[1].Times != 0 || jobs[1].Held != nil {
		t.Errorf("the line is %+v, want job 2, then job 1 anew", jobs)
	}
}

func TestATornFileIsAnEmptyLine(t *testing.T) {
	path := filepath.Join(t.TempDir(), "waiting.json")
	if err := os.WriteFile(path, []byte(`[{"job_id":1,`), 0o600); err != nil {
		t.Fatal(err)
	}
	if jobs := open(t, path, 1).Jobs(); len(jobs) != 0 {
		t.Errorf("the line is %+v", jobs)
	}
}

func TestTheLineIsBounded(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "waiting.json"), 1)
	for id := range uint32(most + 10) {
		if _, err := l.NoRoom(id+1, half, start); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(l.Jobs()); n != most {
		t.Errorf("%d jobs are in the line, want %d", n, most)
	}
}
