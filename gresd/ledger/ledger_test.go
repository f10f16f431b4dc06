// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// record is a full record of a job, different in every field that varies.
func record(id uint32) Record {
	return Record{
		JobID: id, UID: 1000 + id, GID: 100, User: "ada <&> lovelace", Account: "physics", Partition: "gpu",
		Request: request.Request{Share: 30, Cards: 1, Memory: request.Memory{Bytes: 8 * gpu.GiB}, Mode: gpu.Soft, Ceiling: 80},
		Placement: place.Placement{Cards: []place.CardShare{
			{UUID: gpu.UUID(fmt.Sprintf("GPU-%d", id%4)), Index: int(id % 4), Share: 30, Cores: 30, Memory: 8 * gpu.GiB},
		}},
		Mode: gpu.Soft, Ceiling: 80, Priority: gpu.Normal,
		Created: time.Date(2026, 8, 1, 12, 0, int(id%60), 123456789, time.UTC),
		State:   Granted,
	}
}

func open(t *testing.T, path string) *Ledger {
	t.Helper()
	l, err := Open(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func commit(t *testing.T, l *Ledger, ids ...uint32) {
	t.Helper()
	for _, id := range ids {
		if err := l.Commit(record(id)); err != nil {
			t.Fatal(err)
		}
	}
}

func reopen(t *testing.T, l *Ledger) *Ledger {
	t.Helper()
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	return open(t, l.path)
}

func TestAnAbsentFileIsAnEmptyLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "state", "ledger.json")
	l := open(t, path)
	if l.Existed() || len(l.List()) != 0 || len(l.InUse()) != 0 {
		t.Errorf("existed %v, records %v", l.Existed(), l.List())
	}
	if _, err := os.Stat(path); !os.IsNotExist(err) {
		t.Errorf("opening wrote the file: %v", err)
	}
	info, err := os.Stat(filepath.Dir(path))
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("the folder has mode %v, %v", info.Mode(), err)
	}
}

func TestRecordsSurviveARestart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.json")
	l := open(t, path)
	commit(t, l, 9, 7, 4294967295)
	refused := record(8)
	refused.State, refused.Reason, refused.Placement = Refused, `no room: "80" \ <x>`, place.Placement{}
	if err := l.Commit(refused); err != nil {
		t.Fatal(err)
	}
	l = reopen(t, l)
	want := []Record{record(7), refused, record(9), record(4294967295)}
	if got := l.List(); !reflect.DeepEqual(got, want) || !l.Existed() {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if got, ok := l.Get(7); !ok || !reflect.DeepEqual(got, record(7)) {
		t.Errorf("Get(7): %+v, %v", got, ok)
	}
	if got, ok := l.Get(5); ok {
		t.Errorf("Get(5): %+v", got)
	}
	info, err := os.Stat(path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the file has mode %v, %v", info.Mode(), err)
	}
	if _, err := os.Stat(path + ".new"); !os.IsNotExist(err) {
		t.Errorf("a temporary file stayed: %v", err)
	}
}

func TestACommitReplacesTheRecordOfItsJob(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.json"))
	commit(t, l, 7)
	other := record(7)
	other.User = "grace"
	if err := l.Commit(other); err != nil {
		t.Fatal(err)
	}
	l = reopen(t, l)
	if got := l.List(); len(got) != 1 || got[0].User != "grace" {
		t.Errorf("got %+v", got)
	}
}

func TestADeletedRecordStaysDeleted(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.json"))
	commit(t, l, 7, 8)
	if had, err := l.Delete(7); !had || err != nil {
		t.Errorf("Delete(7): %v, %v", had, err)
	}
	if had, err := l.Delete(7); had || err != nil {
		t.Errorf("Delete(7) again: %v, %v", had, err)
	}
	l = reopen(t, l)
	if got := l.List(); len(got) != 1 || got[0].JobID != 8 {
		t.Errorf("got %+v", got)
	}
	if had, err := l.Delete(8); !had || err != nil {
		t.Errorf("Delete(8): %v, %v", had, err)
	}
	// Empty, but known to be: not the same as a first start.
	if l = reopen(t, l); !l.Existed() || len(l.List()) != 0 {
		t.Errorf("existed %v, records %v", l.Existed(), l.List())
	}
}

func TestCallersCannotReachTheRecords(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.json"))
	mine := record(7)
	if err := l.Commit(mine); err != nil {
		t.Fatal(err)
	}
	mine.Placement.Cards[0].Share = 99
	l.List()[0].Placement.Cards[0].Share = 99
	got, _ := l.Get(7)
	got.Placement.Cards[0].Share = 99
	if again, _ := l.Get(7); again.Placement.Cards[0].Share != 30 {
		t.Errorf("the record was changed from outside: %+v", again)
	}
}

func TestOnlyGrantedRecordsAreInUse(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.json"))
	commit(t, l, 1, 5, 2)
	refused := record(3)
	refused.State = Refused
	if err := l.Commit(refused); err != nil {
		t.Fatal(err)
	}
	want := place.InUse{
		"GPU-1": {Units: 60, Memory: 16 * gpu.GiB, Jobs: 2},
		"GPU-2": {Units: 30, Memory: 8 * gpu.GiB, Jobs: 1},
	}
	if got := l.InUse(); !reflect.DeepEqual(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestTwoDaemonsCannotShareALedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.json")
	l := open(t, path)
	if other, err := Open(path); !errors.Is(err, ErrLocked) || other != nil {
		t.Errorf("a second Open: %v, %v", other, err)
	}
	commit(t, l, 7) // which replaces the file, not the lock
	if _, err := Open(path); !errors.Is(err, ErrLocked) {
		t.Errorf("a second Open after a commit: %v", err)
	}
	reopen(t, l)
}

// As the child of a killed gresd does, until it is another program.
func TestALockThatIsHeldForAMomentIsWaitedFor(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.json")
	l := open(t, path)
	time.AfterFunc(lockWait/4, func() { l.Close() })
	open(t, path)
}

func TestAClosedLedgerTakesNoRecords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.json")
	l := open(t, path)
	commit(t, l, 7)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
	if err := l.Commit(record(8)); !errors.Is(err, ErrClosed) {
		t.Errorf("Commit: %v", err)
	}
	if _, err := l.Delete(7); !errors.Is(err, ErrClosed) {
		t.Errorf("Delete: %v", err)
	}
	if got := open(t, path).List(); len(got) != 1 {
		t.Errorf("the closed ledger wrote: %+v", got)
	}
}

func TestACommitThatFailsChangesNothing(t *testing.T) {
	path := filepath.Join(t.TempDir(), "state", "ledger.json")
	l := open(t, path)
	commit(t, l, 7)
	// A folder in the place of the next journal; root could write anywhere else.
	next := nextJournal(l)
	if err := os.Mkdir(next, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := l.Commit(record(8)); err == nil || !strings.Contains(err.Error(), "commit job 8 to ledger "+path) {
		t.Errorf("Commit: %v", err)
	}
	if _, err := l.Delete(7); err == nil {
		t.Error("Delete succeeded")
	}
	if got := l.List(); len(got) != 1 || got[0].JobID != 7 {
		t.Errorf("got %+v", got)
	}
	if err := os.Remove(next); err != nil {
		t.Fatal(err)
	}
	commit(t, l, 8)
	if got := reopen(t, l).List(); len(got) != 2 {
		t.Errorf("got %+v", got)
	}
}

// encode is the text of a snapshot that goes on in an empty journal 1.
func encode(records ...Record) ([]byte, error) {
	all := make([][]byte, len(records))
	for i, r := range records {
		var err error
		if all[i], err = json.Marshal(r); err != nil {
			return nil, err
		}
	}
	return assemble(testName, 1, all), nil
}

const testName = "0123456789abcdef"

// good returns the text of a snapshot with three records.
func good(t *testing.T) []byte {
	t.Helper()
	data, err := encode(record(7), record(8), record(9))
	if err != nil {
		t.Fatal(err)
	}
	return data
}

func openText(t *testing.T, text []byte) (*Ledger, error) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "ledger.json")
	if err := os.WriteFile(path, text, 0o600); err != nil {
		t.Fatal(err)
	}
	appendText(t, journalPath(path, 1), appendHeader(nil, header{Version: version, Ledger: testName, Journal: 1}))
	l, err := Open(path)
	if l != nil {
		t.Cleanup(func() { l.Close() })
	}
	return l, err
}

func TestAFileTornAnywhereIsNotBelieved(t *testing.T) {
	data := good(t)
	// Without the last line break nothing is missing.
	for length := range len(data) - 1 {
		if _, records, err := decode(data[:length]); err == nil {
			t.Fatalf("%d of %d bytes were read as %v", length, len(data), records)
		}
	}
	// The whole way through Open takes a disk; a few lengths are enough.
	for _, length := range []int{0, 1, len(data) / 2, len(data) - 2} {
		l, err := openText(t, data[:length])
		if !errors.Is(err, ErrCorrupt) || l == nil || len(l.List()) != 0 {
			t.Fatalf("%d of %d bytes: %v, %v", length, len(data), l, err)
		}
	}
}

func TestAFileChangedInOneBitIsNotBelieved(t *testing.T) {
	data := good(t)
	_, want, err := decode(data)
	if err != nil {
		t.Fatal(err)
	}
	for i := range data {
		for bit := range 8 {
			changed := append([]byte(nil), data...)
			changed[i] ^= 1 << bit
			// White space, and the letters of a key, in either case, say the same.
			if _, got, err := decode(changed); err == nil && !reflect.DeepEqual(got, want) {
				t.Fatalf("bit %d of byte %d (%q): read as %v", bit, i, changed[i], got)
			}
		}
	}
}

func TestFilesThatCannotBeUsedAreKeptAside(t *testing.T) {
	data := string(good(t))
	sealed := func(records string) string {
		d := document{Version: version, Ledger: testName, Journal: 1}
		return fmt.Sprintf(`{"version":2,"checksum":%q,"ledger":%q,"journal":1,"records":%s}`, checksum(seal(d.Ledger, d.Journal), []byte(records)), testName, records)
	}
	for name, test := range map[string]struct{ text, want string }{
		"empty":               {"", "torn or not JSON (0 bytes)"},
		"text":                {"hello", "torn or not JSON"},
		"zeros after a crash": {strings.Repeat("\x00", 4096), "torn or not JSON (4096 bytes)"},
		"an older version":    {strings.Replace(data, `"version":2`, `"version":0`, 1), "version 0, this gresd reads version 2"},
		"no version":          {"{}", "version 0"},
		"no records":          {`{"version":2,"ledger":"a","journal":1}`, "no records"},
		"no name":             {strings.Replace(data, testName, "", 1), "want a name and a number"},
		"another journal":     {strings.Replace(data, `"journal":1`, `"journal":2`, 1), "checksum is crc32c:"},
		"a changed share":     {strings.Replace(data, `"share":30`, `"share":31`, 1), "checksum is crc32c:"},
		"no checksum":         {strings.Replace(data, `"checksum"`, `"checkers"`, 1), "the file says \"\""},
		"two files in one":    {data + data, "something follows the records"},
		"records of a kind":   {sealed(`[7]`), "read records"},
		"a job twice":         {sealed(`[{"job_id":7},{"job_id":7}]`), "job 7 twice"},
	} {
		t.Run(name, func(t *testing.T) {
			l, err := openText(t, []byte(test.text))
			if !errors.Is(err, ErrCorrupt) || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("error is %v, want …%s", err, test.want)
			}
			_, moved, _ := strings.Cut(err.Error(), "kept as ")
			moved, _, _ = strings.Cut(moved, ",")
			kept, err := os.ReadFile(moved)
			if err != nil || string(kept) != test.text {
				t.Errorf("kept %d bytes of %d, %v", len(kept), len(test.text), err)
			}
			if !strings.HasPrefix(moved, l.path+".bad-") {
				t.Errorf("moved to %s", moved)
			}
			if l.Existed() || len(l.List()) != 0 {
				t.Errorf("existed %v, records %v", l.Existed(), l.List())
			}
			// It can be used at once, and the next start finds a good file.
			commit(t, l, 1)
			if got := reopen(t, l).List(); len(got) != 1 {
				t.Errorf("afterwards: %+v", got)
			}
		})
	}
}

// A gresd that was put back to an older release must not throw away what the
// newer one has promised.
func TestALedgerOfANewerGresdIsLeftAlone(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.json")
	newer := strings.Replace(string(good(t)), `"version":2`, `"version":3`, 1)
	if err := os.WriteFile(path, []byte(newer), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		l, err := Open(path)
		if l != nil || !errors.Is(err, ErrNewer) || errors.Is(err, ErrCorrupt) {
			t.Fatalf("Open: %v, %v", l, err)
		}
		for _, want := range []string{path, "version 3, this gresd reads version 2", "start that gresd again", "move the file away"} {
			if !strings.Contains(err.Error(), want) {
				t.Errorf("%q lacks %q", err, want)
			}
		}
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != newer {
		t.Errorf("the file was changed: %v", err)
	}
	// As the message says.
	if err := os.Rename(path, path+".newer"); err != nil {
		t.Fatal(err)
	}
	if l := open(t, path); l.Existed() {
		t.Error("the ledger is not a new one")
	}
}

func TestFilesMovedAsideDoNotReplaceEachOther(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.json")
	now := time.Date(2026, 8, 1, 12, 30, 5, 0, time.UTC)
	for _, want := range []string{".bad-20260801T123005Z", ".bad-20260801T123005Z-1", ".bad-20260801T123005Z-2"} {
		if err := os.WriteFile(path, []byte("x"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := moveAside(path, now); err != nil || got != path+want {
			t.Errorf("moved to %s, %v; want %s", got, err, path+want)
		}
	}
}

func TestAFileThatAPersonReformattedIsGood(t *testing.T) {
	var pretty bytes.Buffer
	if err := json.Indent(&pretty, good(t), "", "    "); err != nil {
		t.Fatal(err)
	}
	if l, err := openText(t, pretty.Bytes()); err != nil || len(l.List()) != 3 {
		t.Errorf("got %v", err)
	}
}

func TestManyAtOnce(t *testing.T) {
	l := open(t, filepath.Join(t.TempDir(), "ledger.json"))
	var all sync.WaitGroup
	for worker := range uint32(8) {
		all.Go(func() {
			for i := range uint32(20) {
				id := worker*100 + i
				if err := l.Commit(record(id)); err != nil {
					t.Error(err)
				}
				if got, ok := l.Get(id); !ok || got.JobID != id {
					t.Errorf("job %d is not there", id)
				}
				l.List()
				l.InUse()
				if i%2 == 0 {
					if had, err := l.Delete(id); !had || err != nil {
						t.Errorf("delete job %d: %v, %v", id, had, err)
					}
				}
			}
		})
	}
	all.Wait()
	if got := len(reopen(t, l).List()); got != 80 {
		t.Errorf("%d records, want 80", got)
	}
}

// A job's record and what the others hold are of one moment: a job that ends
// between two looks would be taken away from the others twice.

// Delete is BeginDelete, and waits for the disk.
func (l *Ledger) Delete(jobID uint32) (had bool, err error) {
	had, onDisk := l.BeginDelete(jobID)
	return had, onDisk.Wait()
}
