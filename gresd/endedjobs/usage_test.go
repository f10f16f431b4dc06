// SPDX-License-Identifier: Apache-2.0

package endedjobs

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

func TestWords(t *testing.T) {
	u := Used{JobID: 7, Node: "GPU01", Memory: 3*gpu.GiB + 1, GPU: 12345 * time.Millisecond}
	const word = "vgpu_used(node=gpu01,mem_mib=3073,gpu_s=12.3)"
	const other = "vgpu_used(node=gpu02,mem_mib=1,gpu_s=0.0)"
	for had, want := range map[string]string{
		"":        word,
		"night, ": "night, " + word,
		other:     other + " " + word,
		"a vgpu_used(node=gpu01,mem_mib=1,gpu_s=9.9) " + other: "a " + other + " " + word,
		"vgpu_used(of the admin)":                              "vgpu_used(of the admin) " + word,
		"my_vgpu_used(node=gpu01,x)":                           "my_vgpu_used(node=gpu01,x) " + word,
	} {
		if got := u.with(had); got != want {
			t.Errorf("%q became %q, want %q", had, got, want)
		}
		if got := u.with(u.with(had)); got != want {
			t.Errorf("%q twice became %q, want %q", had, got, want)
		}
	}
}

// book is an accounting with one job. It can be away, and forget what the first
// write has brought, as if another node had written at the same time.
type book struct {
	mu     sync.Mutex
	down   bool
	over   bool
	forget bool
	text   string
	writes int
	name   string
	to     string // the name of the last write
}

func (b *book) Account(context.Context, uint32, string) (slurm.Account, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down {
		return slurm.Account{}, slurm.ErrUnavailable
	}
	return slurm.Account{Over: b.over, Text: b.text, Name: b.name}, nil
}

func (b *book) SetAccount(_ context.Context, name, field, text string) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.down || field != slurm.AdminComment {
		return errors.New(field)
	}
	b.writes++
	b.to = name
	if !b.forget {
		b.text = text
	}
	b.forget = false
	return nil
}

func (b *book) set(change func(*book)) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change(b)
}

func TestWriter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{down: true, text: "night", name: "7"}
		w := NewWriter(slurm.AdminComment, func(string) Books { return b }, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		go w.Run(ctx)
		w.Note(Used{JobID: 7, Node: "n1", Memory: gpu.MiB, GPU: time.Second})
		time.Sleep(20 * time.Second)
		b.set(func(b *book) { b.down = false })
		time.Sleep(time.Minute)
		b.set(func(b *book) {
			if b.writes != 0 {
				t.Error("written before the job was over there")
			}
			b.over, b.forget = true, true
		})
		time.Sleep(20 * time.Minute)
		b.set(func(b *book) {
			if want := "night vgpu_used(node=n1,mem_mib=1,gpu_s=1.0)"; b.text != want || b.writes != 2 {
				t.Errorf("%q after %d writes, want %q after 2", b.text, b.writes, want)
			}
		})
		// A run that is older than a newer one is not written.
		b.set(func(b *book) { b.over = false })
		w.Note(Used{JobID: 7, Node: "n1", Memory: 2 * gpu.MiB})
		time.Sleep(time.Minute)
		w.Note(Used{JobID: 7, Node: "n1", Memory: 3 * gpu.MiB})
		b.set(func(b *book) { b.over = true })
		time.Sleep(20 * time.Minute)
		b.set(func(b *book) {
			if !strings.HasSuffix(b.text, "mem_mib=3,gpu_s=0.0)") || b.writes != 3 {
				t.Errorf("%q after %d writes", b.text, b.writes)
			}
		})
		// What is never taken is given up, and there is a bound for all of it.
		b.set(func(b *book) { b.down = true })
		for i := range uint32(mostWaiting + 5) {
			w.Note(Used{JobID: i, Node: "n1"})
		}
		w.mu.Lock()
		if n := len(w.waiting); n > mostWaiting {
			t.Errorf("%d are kept, want at most %d", n, mostWaiting)
		}
		maps.DeleteFunc(w.waiting, func(run runOnNode, _ *pendingUse) bool { return run.job != 0 })
		w.mu.Unlock()
		time.Sleep(giveUp + 2*lastWait)
		w.mu.Lock()
		if n := len(w.waiting); n != 0 {
			t.Errorf("%d are kept after %s", n, giveUp)
		}
		w.mu.Unlock()
		cancel()
	})
	var none *Writer
	none.Note(Used{})
	none.Run(context.Background())
}

// slurmdbd may tell the end of a task before it tells that it is one.
func TestTaskWithTheNumberOfItsArrayIsWrittenByItsOwnName(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := &book{over: true, name: "7"}
		w := NewWriter(slurm.AdminComment, func(string) Books { return b }, slog.New(slog.DiscardHandler))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go w.Run(ctx)
		w.Note(Used{JobID: 7, Node: "n1"})
		time.Sleep(firstWait / 4) // it was asked about once
		b.set(func(b *book) { b.name = "7_2" })
		time.Sleep(time.Minute)
		b.set(func(b *book) {
			if b.to != "7_2" || b.writes != 1 {
				t.Errorf("%d writes, the last to %q; want one to 7_2", b.writes, b.to)
			}
		})
	})
}
