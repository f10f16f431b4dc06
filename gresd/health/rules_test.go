// SPDX-License-Identifier: Apache-2.0

package health

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
)

// script runs observations over one record: "xid 79", "ok", "ecc 3", "lost",
// "mute", "error", "reset" (well, but it waits for a reset).
func script(t *testing.T, r rules, rec Record, steps ...string) Record {
	t.Helper()
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, step := range steps {
		now = now.Add(time.Second)
		var n uint64
		word, rest, _ := strings.Cut(step, " ")
		if rest != "" {
			if _, err := fmt.Sscan(rest, &n); err != nil {
				t.Fatal(err)
			}
		}
		p, err := driver.Probe{ECC: true, Uncorrected: rec.Uncorrected}, error(nil)
		switch word {
		case "xid":
			rec = r.event(rec, n, now)
			continue
		case "ok":
		case "ecc":
			p.Uncorrected = n
		case "reset":
			p.WaitsForReset = true
		case "lost":
			err = fmt.Errorf("card: %w", driver.ErrLost)
		case "mute":
			err = fmt.Errorf("card: %w", driver.ErrNoAnswer)
		case "error":
			err = errors.New("NVML error 999")
		default:
			t.Fatalf("step %q", step)
		}
		rec = r.probe(rec, p, err, now)
	}
	return rec
}

func TestRules(t *testing.T) {
	r := rules{ignore: []uint64{13, 31}, cleanProbes: 3}
	for _, c := range []struct {
		name  string
		steps string
		want  string // words of the causes; "" for a card that is well
	}{
		{"a card that is well", "ok, ok", ""},
		{"a fault of a program", "xid 13, xid 31", ""},
		{"a fault of the card", "xid 79", "XID 79"},
		{"the newest XID is told", "xid 48, xid 79", "XID 79"},
		{"too few clean probes", "xid 79, ok, ok", "XID 79"},
		{"enough clean probes", "xid 79, ok, ok, ok", ""},
		{"a fault in between starts the count anew", "xid 79, ok, ok, xid 79, ok, ok", "XID 79"},
		{"a program's fault does not", "xid 79, ok, ok, xid 13, ok", ""},
		{"silence in between starts it anew", "xid 79, ok, ok, mute, ok, ok", "XID 79"},
		{"errors before gresd was there", "ecc 5, ok", ""},
		{"new memory errors", "ok, ecc 2", "2 uncorrected memory errors, 0 before"},
		{"they stay one cause", "ok, ecc 2, ecc 3, ok, ok", "3 uncorrected memory errors, 2 before"},
		{"a count that starts anew with the driver", "ecc 5, ecc 0, ok", ""},
		{"and counts from there", "ecc 5, ecc 0, ecc 1", "1 uncorrected memory errors, 0 before"},
		{"memory that waits for a reset stays broken", "ok, ecc 2, reset, reset, reset, reset", "2 uncorrected"},
		{"but is no fault of its own", "reset, reset", ""},
		{"a lost card", "lost", "the card is lost"},
		{"that comes back", "lost, ok, ok, ok", ""},
		{"one question without an answer", "mute", ""},
		{"two", "mute, mute", "does not answer"},
		{"not one after the other", "mute, ok, mute", ""},
		{"two errors", "error, error", "NVML error 999"},
		{"an answer ends silence after a while", "mute, mute, ok, ok, ok", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := words(script(t, r, Record{}, strings.Split(c.steps, ", ")...))
			if c.want == "" && got != "" || !strings.Contains(got, c.want) {
				t.Errorf("%s: %q, want %q", c.steps, got, c.want)
			}
			if strings.Count(got, ";") != 0 {
				t.Errorf("%s: more than one cause: %q", c.steps, got)
			}
		})
	}
}

func TestSeveralCausesAreAllTold(t *testing.T) {
	rec := script(t, rules{cleanProbes: 2}, Record{}, "xid 79", "lost", "mute", "mute")
	for _, want := range []string{"XID 79, since 2026-01-02T03:04:06Z", "lost", "does not answer"} {
		if !strings.Contains(words(rec), want) {
			t.Errorf("%q lacks %q", words(rec), want)
		}
	}
}

func TestOnlyAnAdministratorTakesBackHisWord(t *testing.T) {
	r := rules{cleanProbes: 1}
	rec := Record{}.with(Operator, "cordoned", time.Now())
	rec = script(t, r, rec, "xid 79", "ok", "ok")
	if !rec.has(Operator) || rec.has(XID) || rec.faulty() || !rec.with(XID, "", time.Now()).faulty() {
		t.Errorf("got %+v", rec.Causes)
	}
	rec = script(t, r, rec, "ecc 4").without()
	if len(rec.Causes) != 0 || rec.Uncorrected != 4 || !rec.Counted {
		t.Errorf("got %+v", rec)
	}
	if rec = script(t, r, rec, "ecc 4"); len(rec.Causes) != 0 {
		t.Errorf("old errors make it sick again: %+v", rec.Causes)
	}
}

func TestNoCleanProbesMeansNever(t *testing.T) {
	steps := append([]string{"xid 79"}, strings.Split(strings.Repeat("ok,", 99)+"ok", ",")...)
	if rec := script(t, rules{}, Record{}, steps...); !rec.has(XID) {
		t.Errorf("got %+v", rec)
	}
}
