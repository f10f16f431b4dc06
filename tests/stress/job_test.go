// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
	"github.com/slurm-vgpu/slurm-vgpu/tests/simgpu"
)

// machine is a simulated machine.
type machine struct {
	*simgpu.Machine
	t           *testing.T
	env         []string
	libdir, lib string
}

func newMachine(t *testing.T, config string) machine {
	t.Helper()
	env, libdir, lib := card(t, config)
	m, err := simgpu.Open(strings.TrimPrefix(env[len(env)-1], "SIMGPU_STATE="))
	if err != nil {
		t.Fatal(err)
	}
	return machine{m, t, env, libdir, lib}
}

// job is one with a share of all cards of a machine, without gresd.
type job struct {
	machine
	grant *libvgpu.Grant
	cache string
	env   []string
}

func (m machine) job(id uint32, memory uint64, s libvgpu.Schedule) job {
	m.t.Helper()
	return m.jobOf(libvgpu.GrantSpec{JobID: id}, memory, s)
}

// The job has the engine of spec's first card, if spec has one.
func (m machine) jobOf(spec libvgpu.GrantSpec, memory uint64, s libvgpu.Schedule) job {
	m.t.Helper()
	dir := m.t.TempDir()
	var engine uint32
	if len(spec.Cards) > 0 {
		engine = spec.Cards[0].Engine
	}
	spec.Cards = nil
	for _, c := range m.Status() {
		spec.Cards = append(spec.Cards, libvgpu.GrantCard{
			UUID: c.UUID, MemLimit: memory, MemOverhead: context - 16*mib, Share: 30, Cores: s.Cores, Mode: libvgpu.ModeHard, Engine: engine,
		})
	}
	j := job{machine: m, cache: filepath.Join(dir, "cache")}
	var err error
	j.grant, err = libvgpu.CreateGrant(filepath.Join(dir, "grant"), spec)
	if err == nil {
		err = libvgpu.CreateCache(j.cache, spec, uint32(os.Getuid()), uint32(os.Getgid()))
	}
	if err != nil {
		m.t.Fatal(err)
	}
	m.t.Cleanup(func() { _ = j.grant.Close() })
	for i := range spec.Cards {
		j.grant.SetSchedule(i, s)
	}
	j.env = append(m.machineEnv(), "LD_PRELOAD="+m.lib, "VGPU_GRANT="+filepath.Join(dir, "grant"), "VGPU_CACHE="+j.cache)
	return j
}

func (m machine) machineEnv() []string {
	return append(m.env[:len(m.env):len(m.env)], "LD_LIBRARY_PATH="+m.libdir)
}

// slot is the one of the job's only process.
func (j job) slot() libvgpu.SlotView {
	j.t.Helper()
	view, err := libvgpu.ReadCache(j.cache)
	if err != nil || len(view.Slots) != 1 {
		j.t.Fatalf("%d slots, %v; want one", len(view.Slots), err)
	}
	return view.Slots[0]
}
