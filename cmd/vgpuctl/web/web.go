// SPDX-License-Identifier: Apache-2.0

// Package web is a page in a browser that shows live what cards and jobs do. A
// [Feed] asks for all viewers together, and only while somebody looks; a [Server]
// lets in who has its token, and nobody from another site.
package web

import (
	"context"
	"embed"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

// page is all that a browser loads. vendor is written by tools/web-vendor.
//
//go:embed page
var page embed.FS

// Sample is one look at one or more nodes.
type Sample struct {
	At time.Time `json:"time"`
	// Nodes have each what vgpuctl top --once --json says of one. One that does not answer
	// has its reason among the problems, and no cards.
	Nodes []top.Sample `json:"nodes"`
	// Queue is who waits in Slurm's queue; nil: not known.
	Queue []Waiting `json:"queue"`
}

// Waiting is a job in Slurm's queue that asks for a share.
type Waiting struct {
	JobID  string `json:"job_id"` // "12_[3-5]" for tasks of an array
	User   string `json:"user"`
	GRES   string `json:"gres"`
	Reason string `json:"reason"`
}

const (
	// keep is how long the past is that charts show.
	keep = 5 * time.Minute
	// mostViewers bounds who looks at once.
	mostViewers = 32
)

// past is what jobs got, at each of Times (Unix time in ms). Keys are "JOB/UUID".
type past struct {
	Times []int64               `json:"times"`
	Got   map[string][]*float64 `json:"got"` // in tenths; nil: not known
}

// event is one of server-sent events.
type event struct {
	name string
	data []byte
}

// Feed asks for samples while it has viewers. Its first two fields must be set.
type Feed struct {
	Ask   func(context.Context) (Sample, error)
	Every time.Duration // between two answers and questions

	mu      sync.Mutex
	viewers map[chan event]bool
	end     context.CancelFunc // of what asks now
	ended   chan struct{}      // it has
	asked   time.Time          // last
	last    *Sample
	past    past
}

// watch returns what a new viewer is told first, if anything, and what comes after.
// A viewer that is slow misses samples, and no other viewer waits for it.
func (f *Feed) watch() (first []event, next <-chan event, leave func(), err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.viewers) >= mostViewers {
		return nil, nil, nil, fmt.Errorf("%d viewers look already: close one of their windows", mostViewers)
	}
	if time.Since(f.asked) > keep {
		f.last, f.past = nil, past{}
	}
	if f.last != nil {
		all := struct {
			Past   past   `json:"past"`
			Sample Sample `json:"sample"`
		}{f.past, *f.last}
		first = append(first, encode("all", all))
	}
	ch := make(chan event, 1)
	if f.viewers == nil {
		f.viewers = map[chan event]bool{}
	}
	f.viewers[ch] = true
	if len(f.viewers) == 1 {
		ctx, cancel := context.WithCancel(context.Background())
		before, done := f.ended, make(chan struct{})
		f.end, f.ended = cancel, done
		go func() {
			defer close(done)
			if before != nil {
				<-before // never two questions at once
			}
			f.run(ctx)
		}()
	}
	return first, ch, func() { f.leave(ch) }, nil
}

func (f *Feed) leave(ch chan event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.viewers, ch)
	if len(f.viewers) == 0 {
		f.end()
	}
}

func (f *Feed) run(ctx context.Context) {
	f.mu.Lock()
	wait := f.Every - time.Since(f.asked)
	f.mu.Unlock()
	for wakeup.Wait(ctx, wait) {
		s, err := f.Ask(ctx)
		if ctx.Err() != nil {
			return
		}
		f.publish(s, err)
		wait = f.Every
	}
}

func (f *Feed) publish(s Sample, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.asked = time.Now()
	var e event
	if err != nil {
		e = encode("problem", struct {
			Problem string `json:"problem"`
		}{err.Error()})
	} else {
		f.last = &s
		f.remember(s)
		e = encode("sample", s)
	}
	for ch := range f.viewers {
		select {
		case <-ch: // what it has not read yet
		default:
		}
		ch <- e
	}
}

// remember adds what jobs got. Those that have ended are forgotten at once: nothing
// shows them any more.
func (f *Feed) remember(s Sample) {
	now := map[string]*float64{}
	for _, n := range s.Nodes {
		for _, j := range n.Jobs {
			for _, c := range j.Cards {
				got := c.GotPercent
				if got != nil {
					got = new(math.Round(10**got) / 10)
				}
				now[fmt.Sprintf("%d/%s", j.JobID, c.UUID)] = got
			}
		}
	}
	old := len(f.past.Times)
	drop := 0
	for drop < old && s.At.UnixMilli()-f.past.Times[drop] > keep.Milliseconds() {
		drop++
	}
	f.past.Times = append(f.past.Times[drop:], s.At.UnixMilli())
	if f.past.Got == nil {
		f.past.Got = map[string][]*float64{}
	}
	maps.DeleteFunc(f.past.Got, func(key string, _ []*float64) bool { _, here := now[key]; return !here })
	for key, got := range now {
		column := f.past.Got[key]
		if column == nil {
			column = make([]*float64, old)
		}
		f.past.Got[key] = append(column[drop:], got)
	}
}

// encode never fails: what gresd says was JSON before.
func encode(name string, v any) event {
	data, err := json.Marshal(v)
	if err != nil {
		name, data = "problem", []byte(`{"problem":"an answer that is no JSON"}`)
	}
	return event{name, data}
}
