// SPDX-License-Identifier: Apache-2.0

package gputime

import (
	"bytes"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// The driver refuses a call whose structure has another size. Sizes by its headers.
func TestStructuresHaveTheDriversSizes(t *testing.T) {
	for _, c := range []struct {
		name      string
		got, want uintptr
	}{
		{"NVOS21_PARAMETERS", unsafe.Sizeof(rmAlloc{}), 32},
		{"NVOS54_PARAMETERS", unsafe.Sizeof(rmControl{}), 32},
		{"nv_ioctl_nvos33_parameters_with_fd", unsafe.Sizeof(rmMap{}), 56},
		{"NV_MEMORY_ALLOCATION_PARAMS", unsafe.Sizeof(rmMemory{}), 128},
		{"NV0080_ALLOC_PARAMETERS", unsafe.Sizeof(rmDevice{}), 56},
		{"NV_EVENT_BUFFER_ALLOC_PARAMETERS", unsafe.Sizeof(rmEventBuffer{}), 72},
		{"NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS", unsafe.Sizeof(rmCardInfo{}), 32},
		{"NV0000_CTRL_GPU_GET_PCI_INFO_PARAMS", unsafe.Sizeof(rmCardPlace{}), 12},
		{"NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_PARAMS", unsafe.Sizeof(rmBind{}), 20},
		{"NV2080_CTRL_GR_FECS_BIND_EVTBUF_FOR_UID_V2_PARAMS", unsafe.Sizeof(rmBindV2{}), 24},
		{"NVC637_ALLOCATION_PARAMETERS", unsafe.Sizeof(rmGPUInstance{}), 16},
		{"NV_EVENT_BUFFER_CTRL_CMD_ENABLE_EVENTS_PARAMS", unsafe.Sizeof(rmEnable{}), 8},
		{"NV_EVENT_BUFFER_CTRL_CMD_UPDATE_GET_PARAMS", unsafe.Sizeof(rmGet{}), 8},
		{"NV_EVENT_BUFFER_HEADER", unsafe.Sizeof(bufferHeader{}), 32},
		{"NV_EVENT_BUFFER_RECORD with a FECS record", unsafe.Sizeof(bufferRecord{}), 32},
	} {
		if c.got != c.want {
			t.Errorf("%s: %d bytes, want %d", c.name, c.got, c.want)
		}
	}
}

// Records of a real card: what its two processes had.
func TestRecordsOfACard(t *testing.T) {
	text, err := os.ReadFile("testdata/h200.txt")
	if err != nil {
		t.Fatal(err)
	}
	a := newAccount()
	var first, last uint64
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n")[1:] {
		var tag, pid uint32
		var at uint64
		if _, err := fmt.Sscan(line, &tag, &pid, &at); err != nil {
			t.Fatal(err)
		}
		if first == 0 {
			first = at
		}
		last = at
		a.add(Switch{PID: pid, At: at, Came: tag == tagStart}, int64(at)+100_000)
	}
	span := float64(last - first)
	for pid, want := range map[uint32]float64{485: 0.482, 486: 0.481} {
		if part := float64(a.hadBy(pid)) / span; part < want-0.01 || part > want+0.01 {
			t.Errorf("process %d had %.3f of the card, want %.3f", pid, part, want)
		}
	}
	if len(a.use) != 2 {
		t.Errorf("%d processes, want 2", len(a.use))
	}
}

func TestAccount(t *testing.T) {
	came := func(pid uint32, at uint64) Switch { return Switch{pid, at, true} }
	left := func(pid uint32, at uint64) Switch { return Switch{pid, at, false} }
	const ms = uint64(time.Millisecond)
	for _, c := range []struct {
		name     string
		switches []Switch
		until    uint64 // by the card's clock
		want     map[uint32]time.Duration
	}{
		{"one that comes and leaves", []Switch{came(1, ms), left(1, 3*ms)}, 9 * ms, map[uint32]time.Duration{1: 2 * time.Millisecond}},
		{"one that is still there", []Switch{came(1, ms)}, 5 * ms, map[uint32]time.Duration{1: 4 * time.Millisecond}},
		{"one that was there before", []Switch{left(1, ms), came(2, 2*ms), left(2, 3*ms)}, 3 * ms, map[uint32]time.Duration{2: time.Millisecond}},
		{"the end of one is lost", []Switch{came(1, ms), came(2, 2*ms), left(2, 5*ms)}, 5 * ms, map[uint32]time.Duration{2: 3 * time.Millisecond}},
		{"an end that fits nothing", []Switch{came(1, ms), left(2, 2*ms)}, 9 * ms, map[uint32]time.Duration{}},
		{"two contexts of one process", []Switch{came(1, ms), left(1, 2*ms), came(1, 3*ms), left(1, 4*ms)}, 4 * ms, map[uint32]time.Duration{1: 2 * time.Millisecond}},
	} {
		a := newAccount()
		const ahead = 1_000_000_000_000 // of our clock
		for _, s := range c.switches {
			a.add(s, int64(s.At)+ahead)
		}
		a.until(int64(c.until) + ahead)
		for pid, want := range c.want {
			if got := a.hadBy(pid); got != want {
				t.Errorf("%s: process %d had %v, want %v", c.name, pid, got, want)
			}
		}
		for pid, u := range a.use {
			if u.Had != c.want[pid] {
				t.Errorf("%s: process %d had %v, want %v", c.name, pid, u.Had, c.want[pid])
			}
		}
	}
}

// Late records, a drifting clock and one that is set: nothing is counted twice, and
// the account goes on.
func TestTheCardsClockIsNotOurs(t *testing.T) {
	a := newAccount()
	at, set := uint64(time.Hour), uint64(0)
	var ours int64
	for i := range 4000 {
		if i == 2000 {
			set = uint64(time.Minute) // the card's clock goes back
		}
		a.add(Switch{1, at - set, true}, ours+int64(i%7)*100_000) // read a little late
		at += uint64(3 * time.Millisecond)
		ours += int64(3*time.Millisecond) + 100 // 33 ppm
		a.until(ours)
		a.add(Switch{1, at - set, false}, ours)
		at += uint64(time.Millisecond)
		ours += int64(time.Millisecond)
		a.until(ours)
	}
	if got := a.hadBy(1); got < 11800*time.Millisecond || got > 12100*time.Millisecond {
		t.Errorf("%v of 12 s of work were counted", got)
	}
}

// A card that somebody always asks for: who has left it for good is forgotten, who stays or
// comes again within a minute is not.
func TestThoseWhoLeftAreForgotten(t *testing.T) {
	const tick = 10 * time.Millisecond
	a := newAccount()
	at, most := uint64(time.Hour), 0
	had := func(pid uint32, ns time.Duration) {
		a.add(Switch{pid, at, true}, int64(at))
		a.add(Switch{pid, at + uint64(ns), false}, int64(at)+int64(ns))
	}
	next := uint32(1000)
	for i := range 60_000 { // ten minutes
		had(next, time.Millisecond) // a process that ends
		next++
		if i%4000 == 0 { // every 40 s
			at += uint64(2 * time.Millisecond)
			had(7, time.Millisecond)
		}
		at += uint64(tick)
		a.until(int64(at))
		a.forget(int64(at))
		most = max(most, len(a.use))
	}
	if perMinute := int(time.Minute / tick); most > 2*perMinute+2 {
		t.Errorf("%d processes were remembered, want those of two minutes, %d", most, 2*perMinute)
	}
	if got := a.hadBy(7); got != 15*time.Millisecond {
		t.Errorf("one that came every 40 s had %v, want 15 ms", got)
	}
	// One that has the card for itself leaves no record.
	a.add(Switch{8, at, true}, int64(at))
	for range 300 {
		at += uint64(time.Second)
		a.until(int64(at))
		a.forget(int64(at))
	}
	if got := a.hadBy(8); got < 299900*time.Millisecond || got > 300*time.Second {
		t.Errorf("one that stayed for 300 s had %v", got)
	}
	if len(a.use) != 1 {
		t.Errorf("%d processes are remembered, one has the card", len(a.use))
	}
}

type fakeSource struct {
	mu     sync.Mutex
	at     uint64
	reads  int
	closed bool
	fail   error
	block  chan struct{}
}

func (f *fakeSource) read(add func(Switch)) (bool, error) {
	if f.block != nil {
		<-f.block
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reads++
	add(Switch{7, f.at, true})
	add(Switch{7, f.at + 1000, false})
	f.at += 10_000
	return false, f.fail
}

func (f *fakeSource) close() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.closed = true
	return nil
}

func testMeter(src source, err error) (*Records, *bytes.Buffer) {
	var said bytes.Buffer
	m := NewRecords(func(gpu.UUID) (gpu.Card, bool) { return gpu.Card{UUID: "A"}, true }, slog.New(slog.NewTextHandler(&said, nil)))
	m.open = func(gpu.Card) (source, error) { return src, err }
	return m, &said
}

// until asks until an account is there that satisfies.
func until(t *testing.T, m *Records, ok func(Account, bool) bool) {
	t.Helper()
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if ok(m.OnCard("A")) {
			return
		}
	}
	t.Fatal("the account did not come within 5 s")
}

func TestAMeterReadsWhenItIsAsked(t *testing.T) {
	src := &fakeSource{at: 1}
	m, said := testMeter(src, nil)
	until(t, m, func(a Account, known bool) bool { return known && a.Uses[7].Had >= 3000 })
	before, _ := m.OnCard("A")
	kept := before.Uses[7].Had
	until(t, m, func(a Account, known bool) bool { return known && a.Uses[7].Had > kept+5000 && a.At > before.At })
	if before.Uses[7].Had != kept {
		t.Error("an account that was given out has changed")
	}
	if said.Len() != 0 {
		t.Errorf("said %q", said)
	}
}

func TestADriverThatRefusesIsAskedRarely(t *testing.T) {
	m, said := testMeter(nil, errors.New("status 0x56"))
	opened := 0
	m.open = func(gpu.Card) (source, error) { opened++; return nil, errors.New("driver's status 0x56") }
	for range 100 {
		if _, known := m.OnCard("A"); known {
			t.Fatal("known, of a driver that refuses")
		}
		time.Sleep(time.Millisecond)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if opened != 1 || strings.Count(said.String(), "0x56") != 1 {
		t.Errorf("opened %d times, said %q; want once each", opened, said)
	}
}

func TestADriverThatFailsLaterMakesTheAccountUnknown(t *testing.T) {
	src := &fakeSource{at: 1}
	m, _ := testMeter(src, nil)
	until(t, m, func(a Account, known bool) bool { return known })
	src.mu.Lock()
	src.fail = errors.New("gone")
	src.mu.Unlock()
	until(t, m, func(a Account, known bool) bool { return !known })
	for end := time.Now().Add(5 * time.Second); ; time.Sleep(time.Millisecond) {
		src.mu.Lock()
		closed := src.closed
		src.mu.Unlock()
		if closed {
			return
		}
		if time.Now().After(end) {
			t.Fatal("the trace was not closed")
		}
	}
}

func TestADriverThatHangsHoldsNobodyUp(t *testing.T) {
	src := &fakeSource{at: 1, block: make(chan struct{})}
	defer close(src.block)
	m, _ := testMeter(src, nil)
	began := time.Now()
	for range 1000 {
		if _, known := m.OnCard("A"); known {
			t.Fatal("known, of a driver that hangs")
		}
	}
	if took := time.Since(began); took > time.Second {
		t.Errorf("a thousand questions took %v", took)
	}
}

// hadBy is for how long a process had the card.
func (a *account) hadBy(pid uint32) time.Duration {
	if u := a.use[pid]; u != nil {
		return u.Had
	}
	return 0
}

// Who has left the card waits for it, for a while; one that stays away longer had nothing to do.
func TestWhoWaitsForTheCard(t *testing.T) {
	const ms = uint64(time.Millisecond)
	const ahead = int64(time.Hour)
	a := newAccount()
	for _, s := range []Switch{
		{1, 10 * ms, true},
		{1, 12 * ms, false},
		{2, 12 * ms, true},
		{2, 26 * ms, false}, // 14 ms, for which the first one waits
		{1, 26 * ms, true},
		{1, 27 * ms, false},
		{2, 27 * ms, true}, // stays on; the first one has nothing to do
	} {
		a.add(s, int64(s.At)+ahead)
	}
	for _, c := range []struct {
		until        uint64
		waited, left time.Duration // of process 1 and 2
	}{
		{40 * ms, 14*time.Millisecond + 13*time.Millisecond, time.Millisecond},
		{600 * ms, 14*time.Millisecond + WaitsFor, time.Millisecond},
	} {
		a.until(int64(c.until) + ahead)
		uses := a.uses()
		if one, two := uses[1], uses[2]; one.Waited != c.waited || two.Waited != c.left || one.Turns != 2 || two.Turns != 2 {
			t.Errorf("after %d ms: %+v and %+v, want waited %v and %v, 2 turns each", c.until/ms, one, two, c.waited, c.left)
		}
	}
	a.add(Switch{1, 601 * ms, true}, int64(601*ms)+ahead)
	if got := a.uses()[1].Waited; got != 14*time.Millisecond+WaitsFor {
		t.Errorf("back after %v: waited %v, want no more than before", 574*time.Millisecond, got)
	}
}
