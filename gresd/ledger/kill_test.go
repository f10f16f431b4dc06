// SPDX-License-Identifier: Apache-2.0

package ledger

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strconv"
	"strings"
	"testing"
	"time"
)

const (
	childLedger = "LEDGER_TEST_CHILD"
	childFirst  = "LEDGER_TEST_FIRST" // id of the first job
)

func TestMain(m *testing.M) {
	if path := os.Getenv(childLedger); path != "" {
		if err := commitForever(path); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	os.Exit(m.Run())
}

// commitForever adds and removes records and acknowledges each on its output,
// until it is killed. Odd jobs are deleted again.
func commitForever(path string) error {
	l, err := Open(path)
	if err != nil {
		return err
	}
	first, err := strconv.ParseUint(os.Getenv(childFirst), 10, 32)
	if err != nil {
		return err
	}
	for next := uint32(first); ; next++ {
		if err := l.Commit(record(next)); err != nil {
			return err
		}
		fmt.Fprintf(os.Stdout, "+%d\n", next)
		if next%2 == 1 {
			if _, err := l.Delete(next); err != nil {
				return err
			}
			fmt.Fprintf(os.Stdout, "-%d\n", next)
		}
	}
}

func TestAKillLosesNoRecordThatWasAcknowledged(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ledger.json")
	held := map[uint32]bool{} // acknowledged, by whether it was deleted again
	acknowledged := 0
	for round := range 12 {
		acknowledged += killOne(t, path, held)
		l, err := Open(path)
		if err != nil {
			t.Fatalf("round %d: %v", round, err)
		}
		for id, present := range held {
			got, ok := l.Get(id)
			switch {
			case present && (!ok || !reflect.DeepEqual(got, record(id))):
				// The one delete that was on its way may have been done.
				if id%2 == 0 {
					t.Fatalf("round %d: job %d was acknowledged and is lost", round, id)
				}
			case !present && ok:
				t.Fatalf("round %d: job %d was deleted and is back", round, id)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if acknowledged < 50 {
		t.Errorf("only %d answers in all rounds: the test tested nothing", acknowledged)
	}
}

// killOne runs a child, kills it at a random moment, and notes what it had
// acknowledged.
func killOne(t *testing.T, path string, held map[uint32]bool) int {
	t.Helper()
	// The child uses no id again: the last change may be on the disk, and not acknowledged.
	first := uint32(1)
	for id := range held {
		first = max(first, id+2)
	}
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), childLedger+"="+path, fmt.Sprintf("%s=%d", childFirst, first))
	var problems strings.Builder
	child.Stderr = &problems
	out, err := child.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	timer := time.AfterFunc(50*time.Millisecond+time.Duration(rand.IntN(100000))*time.Microsecond, func() {
		child.Process.Kill()
	})
	defer timer.Stop()
	lines := bufio.NewScanner(out)
	count := 0
	for lines.Scan() {
		var sign rune
		var id uint32
		if _, err := fmt.Sscanf(lines.Text(), "%c%d", &sign, &id); err != nil {
			t.Fatalf("child printed %q", lines.Text())
		}
		held[id] = sign == '+'
		count++
	}
	var exit *exec.ExitError
	if err := child.Wait(); !errors.As(err, &exit) || exit.Exited() {
		t.Fatalf("child ended by itself: %v: %s", err, problems.String())
	}
	return count
}
