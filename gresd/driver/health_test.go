// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// sensors of a card that can be probed.
type sensors struct {
	memory, ecc, rows nvml.Return
	errors            uint64
	pending           bool
	hang              chan struct{} // until it is closed
}

func probed(t *testing.T, cards map[string]*sensors) *NVML {
	t.Helper()
	n := library(t)
	n.stuck.Timeout = 20 * time.Millisecond
	lib := n.lib.(*mock.Interface)
	lib.DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
		s := cards[uuid]
		if s == nil {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return &mock.Device{
			GetMemoryInfoFunc: func() (nvml.Memory, nvml.Return) {
				if s.hang != nil {
					<-s.hang
				}
				return nvml.Memory{}, s.memory
			},
			GetTotalEccErrorsFunc: func(kind nvml.MemoryErrorType, counter nvml.EccCounterType) (uint64, nvml.Return) {
				if kind != nvml.MEMORY_ERROR_TYPE_UNCORRECTED || counter != nvml.VOLATILE_ECC {
					return 0, nvml.ERROR_INVALID_ARGUMENT
				}
				return s.errors, s.ecc
			},
			GetRemappedRowsFunc: func() (int, int, bool, bool, nvml.Return) { return 0, 0, s.pending, false, s.rows },
		}, nvml.SUCCESS
	}
	return n
}

func TestProbe(t *testing.T) {
	for name, c := range map[string]struct {
		sensors
		want Probe
		err  error // nil: none; errors.ErrUnsupported: any other
	}{
		"well":               {sensors{errors: 3}, Probe{Uncorrected: 3, ECC: true}, nil},
		"without ECC":        {sensors{ecc: nvml.ERROR_NOT_SUPPORTED}, Probe{}, nil},
		"waits for a reset":  {sensors{pending: true}, Probe{ECC: true, WaitsForReset: true}, nil},
		"without rows":       {sensors{pending: true, rows: nvml.ERROR_NOT_SUPPORTED}, Probe{ECC: true}, nil},
		"lost":               {sensors{memory: nvml.ERROR_GPU_IS_LOST}, Probe{}, ErrLost},
		"lost meanwhile":     {sensors{ecc: nvml.ERROR_GPU_IS_LOST}, Probe{}, ErrLost},
		"needs a reset":      {sensors{memory: nvml.ERROR_RESET_REQUIRED}, Probe{}, ErrLost},
		"an error of NVML's": {sensors{memory: nvml.ERROR_UNKNOWN}, Probe{}, errors.ErrUnsupported},
	} {
		n := probed(t, map[string]*sensors{"GPU-a": &c.sensors})
		got, err := n.Probe("GPU-a")
		switch {
		case c.err == nil && (err != nil || got != c.want):
			t.Errorf("%s: %+v, %v; want %+v", name, got, err, c.want)
		case c.err == ErrLost && !errors.Is(err, ErrLost):
			t.Errorf("%s: %v", name, err)
		case c.err == errors.ErrUnsupported && (err == nil || errors.Is(err, ErrLost) || errors.Is(err, ErrNoAnswer)):
			t.Errorf("%s: %v", name, err)
		}
	}
	// A driver that does not know the card any more.
	if _, err := probed(t, nil).Probe("GPU-a"); !errors.Is(err, ErrLost) {
		t.Errorf("unknown card: %v", err)
	}
}

func TestACardThatHangsTakesNoAnswersFromOthers(t *testing.T) {
	bad, good := &sensors{hang: make(chan struct{})}, &sensors{}
	n := probed(t, map[string]*sensors{"GPU-a": bad, "GPU-b": good})
	for range 2 * mostUnanswered {
		if _, err := n.Probe("GPU-a"); !errors.Is(err, ErrNoAnswer) {
			t.Fatalf("a card that hangs: %v", err)
		}
		if _, err := n.Probe("GPU-b"); err != nil {
			t.Fatalf("the other card: %v", err)
		}
	}
	if waiting := n.stuck.Blocked("GPU-a"); waiting != mostUnanswered {
		t.Errorf("%d threads wait, want %d", waiting, mostUnanswered)
	}
	if err := n.Close(); err != nil {
		t.Error(err)
	}
	if len(n.lib.(*mock.Interface).ShutdownCalls()) != 0 {
		t.Error("NVML was shut down under a thread that waits in it")
	}
	close(bad.hang)
	for end := time.Now().Add(5 * time.Second); len(n.stuck.List()) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("threads still wait")
		}
	}
	if _, err := n.Probe("GPU-a"); err != nil {
		t.Errorf("a card that answers again: %v", err)
	}
}

func TestEvents(t *testing.T) {
	type answer struct {
		data nvml.EventData
		ret  nvml.Return
	}
	answers := make(chan answer, 4)
	card := &mock.Device{
		GetUUIDFunc: func() (string, nvml.Return) { return "", nvml.ERROR_GPU_IS_LOST },
		RegisterEventsFunc: func(types uint64, _ nvml.EventSet) nvml.Return {
			if types != nvml.EventTypeXidCriticalError {
				return nvml.ERROR_NOT_SUPPORTED
			}
			return nvml.SUCCESS
		},
	}
	freed := 0
	set := &mock.EventSet{
		WaitFunc: func(uint32) (nvml.EventData, nvml.Return) { a := <-answers; return a.data, a.ret },
		FreeFunc: func() nvml.Return { freed++; return nvml.SUCCESS },
	}
	n := library(t)
	lib := n.lib.(*mock.Interface)
	lib.EventSetCreateFunc = func() (nvml.EventSet, nvml.Return) { return set, nvml.SUCCESS }
	lib.DeviceGetHandleByUUIDFunc = func(uuid string) (nvml.Device, nvml.Return) {
		if uuid != "GPU-a" {
			return nil, nvml.ERROR_NOT_FOUND
		}
		return card, nvml.SUCCESS
	}
	if _, err := n.Events([]gpu.UUID{"GPU-z"}); !errors.Is(err, ErrNoEvents) || freed != 1 {
		t.Errorf("no card that reports: %v, freed %d", err, freed)
	}
	events, err := n.Events([]gpu.UUID{"GPU-a", "GPU-z"})
	if err != nil {
		t.Fatal(err)
	}
	next := func(want bool) Event {
		t.Helper()
		e, ok, err := events.Next(context.Background())
		if ok != want || err != nil {
			t.Fatalf("%+v, %v, %v", e, ok, err)
		}
		return e
	}
	xid := nvml.EventData{Device: card, EventType: nvml.EventTypeXidCriticalError, EventData: 79}
	answers <- answer{xid, nvml.SUCCESS}
	if e := next(true); e != (Event{"GPU-a", 79}) {
		t.Errorf("got %+v", e)
	}
	answers <- answer{nvml.EventData{}, nvml.ERROR_TIMEOUT}
	next(false)

	// A driver that hangs: nothing is lost, and one thread waits.
	next(false)
	next(false)
	if got := n.listening.Load(); got != 1 {
		t.Errorf("%d threads wait", got)
	}
	answers <- answer{xid, nvml.SUCCESS}
	next(true)
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, ok, err := events.Next(ctx); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	answers <- answer{nvml.EventData{}, nvml.ERROR_GPU_IS_LOST}
	if _, ok, err := events.Next(context.Background()); ok || err == nil {
		t.Errorf("%v, %v", ok, err)
	}
	events.Close()
	if freed != 2 {
		t.Errorf("freed %d sets", freed)
	}

	// The end of a set does not wait for the driver, but the library does for both.
	if events, err = n.Events([]gpu.UUID{"GPU-a"}); err != nil {
		t.Fatal(err)
	}
	if _, ok, err := events.Next(ctx); ok || err != nil {
		t.Errorf("%v, %v", ok, err)
	}
	events.Close()
	if freed != 2 || n.listening.Load() == 0 {
		t.Errorf("freed %d sets while the driver owes an answer, %d threads wait", freed, n.listening.Load())
	}
	answers <- answer{nvml.EventData{}, nvml.ERROR_TIMEOUT}
	for end := time.Now().Add(10 * time.Second); n.listening.Load() != 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("somebody waits for the driver after its answer")
		}
	}
	if freed != 3 {
		t.Errorf("freed %d sets", freed)
	}
	n.missing = map[string]bool{"nvmlEventSetCreate": true}
	if _, err := n.Events([]gpu.UUID{"GPU-a"}); !errors.Is(err, ErrNoEvents) {
		t.Errorf("a library without events: %v", err)
	}
}

func TestUtilizationHasOnlyWhatIsNew(t *testing.T) {
	since := time.UnixMicro(1000)
	ret := nvml.SUCCESS
	n := library(t)
	n.lib.(*mock.Interface).DeviceGetHandleByUUIDFunc = func(string) (nvml.Device, nvml.Return) {
		return &mock.Device{GetProcessUtilizationFunc: func(from uint64) ([]nvml.ProcessUtilizationSample, nvml.Return) {
			return []nvml.ProcessUtilizationSample{{Pid: 1, TimeStamp: from, SmUtil: 5}, {Pid: 2, TimeStamp: from + 1, SmUtil: 6}, {}}, ret
		}}, nvml.SUCCESS
	}
	got, err := n.Utilization("GPU-a", since)
	if err != nil || len(got) != 1 || got[0] != (Use{PID: 2, TimeUS: 1001, Percent: 6}) {
		t.Errorf("got %+v, %v", got, err)
	}
	ret = nvml.ERROR_NOT_FOUND
	if got, err := n.Utilization("GPU-a", since); err != nil || got != nil {
		t.Errorf("no samples: %+v, %v", got, err)
	}
	ret = nvml.ERROR_GPU_IS_LOST
	if _, err := n.Utilization("GPU-a", since); err == nil {
		t.Error("a lost card has no use")
	}
}
