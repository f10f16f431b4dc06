// SPDX-License-Identifier: Apache-2.0

package arbiter

import (
	"encoding/binary"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// fileGrants are jobs of one card whose cache files are real.
type fileGrants struct {
	jobs    []uint32
	specs   map[uint32]libvgpu.GrantSpec
	readers map[uint32]*libvgpu.CacheReader
	grants  map[uint32]*libvgpu.Grant
}

func (f *fileGrants) Open() []uint32 { return slices.Clone(f.jobs) }

func (f *fileGrants) Spec(job uint32) (libvgpu.GrantSpec, bool) { return f.specs[job], true }

func (f *fileGrants) Cache(job uint32, _ time.Duration) (libvgpu.CacheView, error) {
	return f.readers[job].Read()
}

func (f *fileGrants) SetSchedule(job uint32, card int, s libvgpu.Schedule) bool {
	return f.grants[job].SetSchedule(card, s)
}

// Places in a cache file (region.h, whose assertions hold them).
const (
	highSlotAt = 2097152 + 32
	slotAt     = 2097152 + 3072
	inflightAt = slotAt + 64 + 40
)

// busyJobs makes jobs with one process each, which always has work in flight: this one, in a
// slot of no known PID namespace.
func busyJobs(b *testing.B, n int) *fileGrants {
	b.Helper()
	f := &fileGrants{
		specs: map[uint32]libvgpu.GrantSpec{}, readers: map[uint32]*libvgpu.CacheReader{}, grants: map[uint32]*libvgpu.Grant{},
	}
	for i := range n {
		job := uint32(i + 1)
		spec := libvgpu.GrantSpec{JobID: job, Cards: []libvgpu.GrantCard{{
			UUID: "GPU-a", MemLimit: 1 << 30, Share: 12, Cores: 12, Mode: libvgpu.ModeHard,
		}}}
		dir := b.TempDir()
		grant, err := libvgpu.CreateGrant(filepath.Join(dir, "grant"), spec)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = grant.Close() })
		cache := filepath.Join(dir, "cache")
		if err := libvgpu.CreateCache(cache, spec, uint32(os.Getuid()), uint32(os.Getgid())); err != nil {
			b.Fatal(err)
		}
		file, err := os.OpenFile(cache, os.O_WRONLY, 0)
		if err != nil {
			b.Fatal(err)
		}
		for at, v := range map[int64]uint64{highSlotAt: 1, slotAt: 1023<<54 | uint64(os.Getpid())<<32 | startOfSelf(b), inflightAt: 1e6} {
			if _, err := file.WriteAt(binary.LittleEndian.AppendUint64(nil, v), at); err != nil {
				b.Fatal(err)
			}
		}
		_ = file.Close()
		reader, err := libvgpu.OpenCache(cache)
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = reader.Close() })
		f.jobs, f.specs[job], f.readers[job], f.grants[job] = append(f.jobs, job), spec, reader, grant
	}
	return f
}

// startOfSelf is the start time of this process, as an owner word has it.
func startOfSelf(b *testing.B) uint64 {
	b.Helper()
	text, err := os.ReadFile("/proc/self/stat")
	if err != nil {
		b.Fatal(err)
	}
	var start uint32
	var skip string
	fields := make([]any, 22)
	for i := range fields {
		fields[i] = &skip
	}
	fields[21] = &start
	if _, err := fmt.Sscan(string(text), fields...); err != nil {
		b.Fatal(err)
	}
	return uint64(start)
}

// BenchmarkLook is one look at eight busy jobs of a card.
func BenchmarkLook(b *testing.B) {
	f := busyJobs(b, 8)
	r := NewRunner(f, Params{Period: 20000, MaxPeriod: 50000, MinSlice: 500}, 50*time.Millisecond, slog.New(slog.DiscardHandler))
	if awake := r.step(time.Now()); awake != 8 || len(r.sampler.procs) != 8 {
		b.Fatalf("%d jobs with %d processes", awake, len(r.sampler.procs))
	}
	if s := f.grants[1]; s.Schedule(0).Others != 7 {
		b.Fatalf("beside %d busy jobs, want 7", s.Schedule(0).Others)
	}
	b.ReportAllocs()
	for b.Loop() {
		r.step(time.Now())
	}
}
