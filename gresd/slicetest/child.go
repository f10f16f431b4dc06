// SPDX-License-Identifier: Apache-2.0

package slicetest

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/ctxcost"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

const (
	// endFor is the time that a process has to end its work, and then to die.
	endFor = time.Second
	// mostSaid is what is kept of what it prints.
	mostSaid = 4 << 10
)

// worker is one of the two processes. To libvgpu it is a process of a job with one card, no
// limits and a slice of its own.
type worker struct {
	cmd    *exec.Cmd
	in     io.WriteCloser
	said   process.Output
	cache  string
	ended  chan struct{} // closed when it has
	status error         // of its end
}

// start starts a worker, whose files are in a folder of its own.
func (t *Tester) start(dir string, card gpu.UUID, sliceUS uint32) (*worker, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	grant := filepath.Join(dir, "grant")
	w := &worker{cache: filepath.Join(dir, "cache"), ended: make(chan struct{}), said: process.Output{Most: mostSaid}}
	spec := libvgpu.GrantSpec{Cards: []libvgpu.GrantCard{{UUID: string(card), Share: 100, Cores: 100, Mode: libvgpu.ModeOff}}}
	if err := libvgpu.CreateCache(w.cache, spec, uint32(os.Geteuid()), uint32(os.Getegid())); err != nil {
		return nil, err
	}
	g, err := libvgpu.CreateGrant(grant, spec)
	if err != nil {
		return nil, err
	}
	g.SetSchedule(0, libvgpu.Schedule{SliceUS: sliceUS, BusyProcs: 1, Others: 1, Cores: 100})
	if err := g.Close(); err != nil {
		return nil, err
	}
	w.cmd = process.Command(context.Background(), t.Child[0], t.Child[1:]...)
	w.cmd.Stdout, w.cmd.Stderr = &w.said, &w.said
	w.cmd.Env = append(ctxcost.Environment(os.Environ(), card), "LD_PRELOAD="+t.Library, "VGPU_GRANT="+grant, "VGPU_CACHE="+w.cache)
	if w.in, err = w.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := w.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		w.status = w.cmd.Wait()
		close(w.ended)
	}()
	return w, nil
}

func (w *worker) pid() uint32 { return uint32(w.cmd.Process.Pid) }

// sliced says whether a worker has its slice, which it gets once its context has been made: the
// card may have worked for it before. The error says why it never will.
func (w *worker) sliced() (bool, error) {
	select {
	case <-w.ended:
		return false, fmt.Errorf("a process of the test ended: %v: %s", w.status, strings.TrimSpace(w.said.String()))
	default:
	}
	view, err := libvgpu.ReadCache(w.cache)
	switch {
	case err != nil:
		return false, err
	case len(view.Slots) != 1:
		return false, nil // libvgpu is not loaded yet
	case view.Slots[0].Flags&libvgpu.SlotSlicesRefused != 0:
		return false, errRefused
	}
	return view.Slots[0].Flags&libvgpu.SlotSlicesOK != 0, nil
}

// stop tells a worker to end its work.
func (w *worker) stop() { _ = w.in.Close() } // closed already: it has ended

// end waits for the end of a worker. One that the driver holds is left behind.
func (w *worker) end() {
	w.stop()
	if !w.endsIn(endFor) {
		_ = w.cmd.Process.Kill()
		w.endsIn(endFor)
	}
}

func (w *worker) endsIn(d time.Duration) bool {
	select {
	case <-w.ended:
		return true
	case <-time.After(d):
		return false
	}
}
