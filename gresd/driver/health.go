// SPDX-License-Identifier: Apache-2.0

package driver

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// ErrLost: the card does not answer its driver any more, or the driver does not
// know it.
var ErrLost = errors.New("the card is lost")

// ErrNoEvents: the driver reports no events of its cards.
var ErrNoEvents = errors.New("the driver reports no events")

// Probe is what a card says of its state.
type Probe struct {
	// Uncorrected are the uncorrected memory errors since the driver was loaded;
	// ECC is false where the card does not count them.
	Uncorrected uint64
	ECC         bool
	// WaitsForReset: rows of memory are broken and get replaced at the next
	// reset of the card, or cannot be.
	WaitsForReset bool
}

// Event is one XID of a card.
type Event struct {
	UUID gpu.UUID
	XID  uint64
}

// Use is the part of a card's time that a process had, in percent, as the
// driver sampled it.
type Use struct {
	PID     uint32
	TimeUS  uint64 // since 1970
	Percent uint32
}

// Mean averages the samples of each process. One without any had no time.
func Mean(uses []Use) map[uint32]float64 {
	sum, n := map[uint32]float64{}, map[uint32]float64{}
	for _, u := range uses {
		sum[u.PID] += float64(u.Percent)
		n[u.PID]++
	}
	for pid := range sum {
		sum[pid] /= n[pid]
	}
	return sum
}

// healthSymbols are called only where the library has them.
var healthSymbols = []string{
	"nvmlDeviceGetTotalEccErrors", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetProcessUtilization",
	"nvmlEventSetCreate", "nvmlEventSetWait_v2", "nvmlEventSetFree", "nvmlDeviceRegisterEvents",
}

// askCard puts a question about one card, and does not wait for ever.
func askCard[T any](n *NVML, uuid gpu.UUID, question func(nvml.Device) (T, error)) (T, error) {
	return ask(n, uuid, patience, "ask card "+string(uuid), func() (none T, err error) {
		handle, err := n.handle(uuid)
		if err != nil {
			return none, err
		}
		return question(handle)
	})
}

// Probe asks a card how it is. The error is ErrLost, ErrNoAnswer, or what NVML
// said.
func (n *NVML) Probe(uuid gpu.UUID) (Probe, error) {
	return askCard(n, uuid, func(card nvml.Device) (p Probe, err error) {
		if _, ret := card.GetMemoryInfo(); ret != nvml.SUCCESS {
			return p, sick(uuid, ret)
		}
		whole := n.whole(uuid, card) // memory errors are counted for it
		if !n.missing["nvmlDeviceGetTotalEccErrors"] {
			errors, ret := whole.GetTotalEccErrors(nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC)
			switch ret {
			case nvml.SUCCESS:
				p.Uncorrected, p.ECC = errors, true
			case nvml.ERROR_NOT_SUPPORTED:
			default:
				return p, sick(uuid, ret)
			}
		}
		if !n.missing["nvmlDeviceGetRemappedRows"] {
			if _, _, pending, failed, ret := whole.GetRemappedRows(); ret == nvml.SUCCESS {
				p.WaitsForReset = pending || failed
			}
		}
		return p, nil
	})
}

func sick(uuid gpu.UUID, ret nvml.Return) error {
	switch ret {
	case nvml.ERROR_GPU_IS_LOST, nvml.ERROR_NOT_FOUND, nvml.ERROR_RESET_REQUIRED:
		return fmt.Errorf("card %s: %w: %s", uuid, ErrLost, returnText(ret))
	}
	return fmt.Errorf("card %s: %s", uuid, returnText(ret))
}

// Utilization returns the driver's samples of a card that are younger than
// since, the oldest first; none is no error. ErrUnknown: the driver does not
// sample this card.
func (n *NVML) Utilization(uuid gpu.UUID, since time.Time) ([]Use, error) {
	if n.missing["nvmlDeviceGetProcessUtilization"] {
		return nil, ErrUnknown
	}
	return askCard(n, uuid, func(card nvml.Device) ([]Use, error) {
		samples, ret := card.GetProcessUtilization(uint64(since.UnixMicro()))
		switch ret {
		case nvml.SUCCESS:
		case nvml.ERROR_NOT_FOUND:
			return nil, nil
		case nvml.ERROR_NOT_SUPPORTED:
			return nil, ErrUnknown
		default:
			return nil, fmt.Errorf("read use of %s: %s", uuid, returnText(ret))
		}
		var uses []Use
		for _, s := range samples {
			if s.TimeStamp > uint64(since.UnixMicro()) { // the buffer may hold more than it was filled with
				uses = append(uses, Use{PID: s.Pid, TimeUS: s.TimeStamp, Percent: s.SmUtil})
			}
		}
		return uses, nil
	})
}

// Events waits for events of cards. It is for one goroutine, and at most one
// thread of it waits in the driver.
type Events struct {
	n       *NVML
	set     nvml.EventSet
	names   map[nvml.Device][]gpu.UUID // a card that is lost cannot tell its own; all instances of a GPU
	pending chan eventAnswer
	more    []Event // of the last answer
}

type eventAnswer struct {
	events []Event // none, one, or the same of each instance
	err    error
}

// Events starts to listen to cards. Cards that report no events are left out;
// the error is ErrNoEvents when none does, or ErrNoAnswer.
func (n *NVML) Events(uuids []gpu.UUID) (*Events, error) {
	if slices.ContainsFunc(healthSymbols[3:], func(name string) bool { return n.missing[name] }) {
		return nil, ErrNoEvents
	}
	return ask(n, theNode, patience, "listen to events", func() (*Events, error) {
		set, ret := n.lib.EventSetCreate()
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("%w: %s", ErrNoEvents, returnText(ret))
		}
		names := map[nvml.Device][]gpu.UUID{}
		for _, uuid := range uuids {
			card, ret := n.lib.DeviceGetHandleByUUID(string(uuid))
			if ret == nvml.SUCCESS {
				card = n.whole(uuid, card)
			}
			if ret == nvml.SUCCESS && names[card] == nil {
				ret = card.RegisterEvents(nvml.EventTypeXidCriticalError, set)
			}
			if ret == nvml.SUCCESS {
				names[card] = append(names[card], uuid)
			}
		}
		if len(names) == 0 {
			_ = set.Free()
			return nil, ErrNoEvents
		}
		return &Events{n: n, set: set, names: names}, nil
	})
}

const (
	// eventWait is how long one question for events waits in the driver. At the
	// beginning of each, Go's monitor thread looks many times whether the call holds
	// others up: with half a second that was most of what an idle gresd woke for.
	eventWait = 5 * time.Second
	// nextWait is how long nobody hears anything of a question.
	nextWait = time.Second
)

// Next returns the next event, or false when there was none for a while or ctx
// is done. A driver that hangs delays nothing but events. After an error the
// set is of no use any more.
func (e *Events) Next(ctx context.Context) (Event, bool, error) {
	if len(e.more) > 0 {
		next := e.more[0]
		e.more = e.more[1:]
		return next, true, nil
	}
	if e.pending == nil {
		e.pending = make(chan eventAnswer, 1)
		e.n.listening.Add(1)
		go func(to chan<- eventAnswer) {
			defer e.n.listening.Add(-1)
			to <- e.ask()
		}(e.pending)
	}
	select {
	case <-ctx.Done():
	case <-time.After(nextWait):
	case got := <-e.pending:
		e.pending = nil
		if got.err != nil || len(got.events) == 0 {
			return Event{}, false, got.err
		}
		e.more = got.events[1:]
		return got.events[0], true, nil
	}
	return Event{}, false, nil
}

func (e *Events) ask() eventAnswer {
	data, ret := e.set.Wait(uint32(eventWait.Milliseconds()))
	switch ret {
	case nvml.SUCCESS:
	case nvml.ERROR_TIMEOUT:
		return eventAnswer{}
	default:
		return eventAnswer{err: fmt.Errorf("wait for events: %s", returnText(ret))}
	}
	if data.EventType != nvml.EventTypeXidCriticalError {
		return eventAnswer{}
	}
	uuids, known := e.names[data.Device]
	if !known {
		return eventAnswer{err: fmt.Errorf("XID %d of a card that is not listened to", data.EventData)}
	}
	var answer eventAnswer
	for _, uuid := range uuids {
		answer.events = append(answer.events, Event{UUID: uuid, XID: data.EventData})
	}
	return answer
}

// Close frees the set, once the driver has answered. It does not wait for that.
func (e *Events) Close() {
	if e.pending == nil {
		_ = e.set.Free()
		return
	}
	e.n.listening.Add(1) // the library is in use until then
	go func() {
		defer e.n.listening.Add(-1)
		<-e.pending
		_ = e.set.Free()
	}()
}
