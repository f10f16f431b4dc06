// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// worker is one of the two processes of a slice test. libvgpu sees it as a process of a job with one
// card, without limits and with its own slice.
type worker struct {
	*child
	cache string
}

// startWorker starts a worker, whose files are in a folder of its own.
func (t *SliceTester) startWorker(dir string, card gpu.UUID, sliceUS uint32) (*worker, error) {
	if err := os.Mkdir(dir, 0o700); err != nil {
		return nil, err
	}
	grant, cache := filepath.Join(dir, "grant"), filepath.Join(dir, "cache")
	spec := libvgpu.GrantSpec{Cards: []libvgpu.GrantCard{{UUID: string(card), Share: 100, Cores: 100, Mode: libvgpu.ModeOff}}}
	if err := libvgpu.CreateCache(cache, spec, uint32(os.Geteuid()), uint32(os.Getegid())); err != nil {
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
	c, err := start(t.Child, card, "LD_PRELOAD="+t.Library, "VGPU_GRANT="+grant, "VGPU_CACHE="+cache)
	return &worker{c, cache}, err
}

// hasSlice reports whether the worker has its slice. libvgpu sets the slice after the context is made:
// the card may have worked for the process before. The error says why the worker will never have it.
func (w *worker) hasSlice() (bool, error) {
	select {
	case <-w.ended:
		return false, fmt.Errorf("a process of the test ended: %w", w.exit())
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
