// SPDX-License-Identifier: Apache-2.0

package waiting

import (
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

var start = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func open(t *testing.T, path string, patience uint32) *Line {
	t.Helper()
	l, err := Open(path, patience)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func (l *Line) back(t *testing.T, id uint32, wantTimes uint32, wantTurn bool) {
	t.Helper()
	times, turn, err := l.SentBack(id, start)
	if err != nil || times != wantTimes || turn != wantTurn {
		t.Errorf("job %d is sent back: %d times, its turn %v, %v; want %d, %v", id, times, turn, err, wantTimes, wantTurn)
	}
}

func TestTheFirstPatientJobIsNext(t *testing.T) {
	path := filepath.Join(t.TempDir(), "waiting.json")
	l := open(t, path, 2)
	l.back(t, 1, 1, false)
	l.back(t, 2, 1, false)
	l.back(t, 2, 2, true) // job 1 has not been patient yet
	l.back(t, 1, 2, true) // it is before job 2, and nobody holds a card
	if err := l.Hold(1, []gpu.UUID{"a", "b"}); err != nil {
		t.Fatal(err)
	}
	l = open(t, path, 2) // a restart
	l.back(t, 2, 3, false)
	if id, cards, ok := l.Holder(); !ok || id != 1 || !reflect.DeepEqual(cards, []gpu.UUID{"a", "b"}) {
		t.Errorf("held for job %d: %v, %v", id, cards, ok)
	}
	for _, id := range []uint32{1, 7} {
		if err := l.Leave(id); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, ok := l.Holder(); ok {
		t.Error("cards are held for a job that has left")
	}
	l.back(t, 2, 4, true)
}

func TestNobodyIsHeldForWithoutPatience(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "waiting.json"), 0)
	for i := range uint32(5) {
		l.back(t, 1, i+1, false)
	}
}

// A job that does not come although its cards have the room must not keep them.
func TestAJobThatDoesNotComeGoesToTheEnd(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "waiting.json"), 1)
	l.back(t, 1, 1, true)
	l.back(t, 2, 1, false)
	if err := l.Hold(1, []gpu.UUID{"a"}); err != nil {
		t.Fatal(err)
	}
	for _, look := range []struct {
		after time.Duration
		room  bool
		late  bool
	}{
		{0, false, false},
		{HoldFor * 5, false, false}, // others are still there
		{HoldFor * 6, true, false},
		{HoldFor*7 - time.Second, true, false},
		{HoldFor*7 - time.Second, false, false}, // a card failed
		{HoldFor * 8, true, false},
		{HoldFor*9 - time.Second, true, false},
		{HoldFor * 9, true, true},
		{HoldFor * 10, true, false}, // nobody holds
	} {
		late, err := l.Look(look.room, start.Add(look.after))
		if err != nil || late != look.late {
			t.Errorf("after %s, room %v: late %v, %v; want %v", look.after, look.room, late, err, look.late)
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
		if _, _, err := l.SentBack(id+1, start); err != nil {
			t.Fatal(err)
		}
	}
	if n := len(l.Jobs()); n != most {
		t.Errorf("%d jobs are in the line, want %d", n, most)
	}
}
