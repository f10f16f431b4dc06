// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

const uuid gpu.UUID = "GPU-00112233-4455-6677-8899-aabbccddeeff"

func TestFigure(t *testing.T) {
	others := map[uint32]gpu.Bytes{7: 100 * gpu.MiB}
	before := reading{used: 1000 * gpu.MiB, others: others}
	for name, c := range map[string]struct {
		after reading
		want  Figure
	}{
		"beside a process that stays as it is": {
			reading{used: 1523 * gpu.MiB, own: 518 * gpu.MiB, others: others},
			Figure{518 * gpu.MiB, 5 * gpu.MiB, false},
		},
		"another process allocated": {
			reading{used: 1900 * gpu.MiB, own: 518 * gpu.MiB, others: map[uint32]gpu.Bytes{7: 473 * gpu.MiB}},
			Figure{Context: 518 * gpu.MiB},
		},
		"another process came": {
			reading{used: 1900 * gpu.MiB, own: 518 * gpu.MiB, others: map[uint32]gpu.Bytes{7: 100 * gpu.MiB, 8: 1}},
			Figure{Context: 518 * gpu.MiB},
		},
		"more grew than any driver hides": {
			reading{used: 9000 * gpu.MiB, own: 518 * gpu.MiB, others: others},
			Figure{Context: 518 * gpu.MiB},
		},
		"less grew than NVML counts": {
			reading{used: 1100 * gpu.MiB, own: 518 * gpu.MiB, others: others},
			Figure{Context: 518 * gpu.MiB},
		},
		"NVML does not list the process": {
			reading{used: 1527 * gpu.MiB, others: others},
			Figure{527 * gpu.MiB, 0, false},
		},
	} {
		if got, err := figure(before, c.after); err != nil || got != c.want {
			t.Errorf("%s: got %+v, %v; want %+v", name, got, err, c.want)
		}
	}
	for name, c := range map[string]struct {
		used, own gpu.Bytes
		want      Figure
	}{
		"an H200":                        {527, 518, Figure{518 * gpu.MiB, 9 * gpu.MiB, true}},
		"a card that counts all of it":   {500, 500, Figure{500 * gpu.MiB, 0, true}},
		"NVML does not list the process": {527, 0, Figure{527 * gpu.MiB, 0, true}},
	} {
		if got, err := figure(reading{}, reading{used: c.used * gpu.MiB, own: c.own * gpu.MiB}); err != nil || got != c.want {
			t.Errorf("alone on %s: got %+v, %v; want %+v", name, got, err, c.want)
		}
	}
	blind := reading{used: 1900 * gpu.MiB, others: map[uint32]gpu.Bytes{8: 1}}
	if f, err := figure(before, blind); err == nil {
		t.Errorf("a figure %+v without any sign of the process", f)
	}
}

// slowMeter counts a context in full only after some readings.
type slowMeter struct {
	made  bool
	reads int
	err   error
}

func (m *slowMeter) Processes(gpu.UUID) ([]driver.Process, error) {
	if !m.made {
		return nil, m.err
	}
	m.reads++
	return []driver.Process{{PID: 9, Memory: gpu.Bytes(min(m.reads, 4)) * 100 * gpu.MiB}}, m.err
}

func (m *slowMeter) MemoryUsed(gpu.UUID) (gpu.Bytes, error) {
	if !m.made {
		return 50 * gpu.MiB, m.err
	}
	return 55*gpu.MiB + gpu.Bytes(min(m.reads, 4))*100*gpu.MiB, m.err
}

func TestMeasureWaitsForTheWholeContext(t *testing.T) {
	m := &slowMeter{}
	got, err := measure(m, uuid, 9, func() error { m.made = true; return nil })
	if want := (Figure{400 * gpu.MiB, 5 * gpu.MiB, true}); err != nil || got != want {
		t.Errorf("got %+v, %v; want %+v", got, err, want)
	}
	broken := errors.New("lost")
	if _, err := measure(&slowMeter{err: broken}, uuid, 9, func() error { return nil }); !errors.Is(err, broken) {
		t.Errorf("card that cannot be read: %v", err)
	}
	if _, err := measure(&slowMeter{}, uuid, 9, func() error { return broken }); !errors.Is(err, broken) {
		t.Errorf("context that cannot be made: %v", err)
	}
}

func TestEnvironment(t *testing.T) {
	env := environment([]string{
		"PATH=/bin", "LD_PRELOAD=/x.so", "CUDA_VISIBLE_DEVICES=3", "CUDA_MPS_PIPE_DIRECTORY=/mps", "VGPU_GRANT=/g",
		"NOTIFY_SOCKET=/s", "LD_LIBRARY_PATH=/lib", "SIMGPU_STATE=/state",
	}, uuid)
	want := []string{
		"PATH=/bin", "LD_LIBRARY_PATH=/lib", "SIMGPU_STATE=/state",
		"CUDA_VISIBLE_DEVICES=" + string(uuid), "CUDA_CACHE_DISABLE=1", "CUDA_MPS_PIPE_DIRECTORY=/nonexistent",
	}
	if !slices.Equal(env, want) {
		t.Errorf("got  %s\nwant %s", strings.Join(env, " "), strings.Join(want, " "))
	}
}
