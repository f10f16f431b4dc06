// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/report"
	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/series"
)

// hung is how long a tenant may do no work. The least share is 10 %, and the
// longest kernel 50 ms, so half a second is nothing unusual.
const hung = 5 * time.Second

// memoryNoise in MiB is far less than any context takes.
const memoryNoise = 16

// guest is a tenant of the churn.
type guest struct {
	t          tenant
	procs      []*proc
	leave      func() error
	from, ends int64 // when it works
	kill       bool  // its end is a SIGKILL
}

// tally is what happened.
type tally struct {
	began                                 int64
	jobs, killed, finished, hangs, errors float64
	stalls                                []standstill // the longest, longest first
	problems                              []error
}

// standstill is a time in which a process did nothing.
type standstill struct {
	length time.Duration
	who    string
}

// stallsKept are enough to tell a rule from chance.
const stallsKept = 8

func (s *tally) stood(length time.Duration, who string) {
	s.stalls = append(s.stalls, standstill{length, who})
	slices.SortFunc(s.stalls, func(a, b standstill) int { return cmp.Compare(b.length, a.length) })
	s.stalls = s.stalls[:min(len(s.stalls), stallsKept)]
}

func churn(ctx context.Context, b *bench, sys system, ses session) {
	b.do(ctx, "churn", fmt.Sprintf("%s, seed %d", b.churn, b.seed), sys, b.churn+30*time.Second, func() (report.Record, error) {
		return b.churnFor(ctx, ses.(*ours))
	})
}

func (b *bench) churnFor(ctx context.Context, o *ours) (report.Record, error) {
	choose := rand.New(rand.NewPCG(b.seed, 0))
	var guests []*guest
	sum := tally{began: monotonic()}
	granted := 0
	end := time.Now().Add(b.churn)
	willKill := b.churnJobs == 0
	for ctx.Err() == nil && (time.Now().Before(end) || sum.errors == 0 && (int(sum.jobs) < b.churnJobs || !willKill)) {
		var kept []*guest
		for _, g := range guests {
			if monotonic() < g.ends {
				kept = append(kept, g)
				continue
			}
			granted -= g.t.share
			sum.see(g, guests)
		}
		guests = kept
		share := []int{10, 15, 20, 25, 30, 40}[choose.IntN(6)]
		if granted+share <= 100 {
			if g, err := b.newGuest(ctx, o, choose, share, end); err != nil {
				sum.fail(err)
			} else {
				sum.jobs++
				willKill = willKill || g.kill
				granted += share
				guests = append(guests, g)
			}
		}
		time.Sleep(time.Duration(50+choose.IntN(400)) * time.Millisecond)
	}
	for _, g := range guests {
		time.Sleep(time.Duration(g.ends - monotonic()))
		sum.see(g, guests)
	}
	return b.churned(ctx, o, sum)
}

// newGuest starts a tenant that works for 2 to 15 s, but not beyond the end by much.
func (b *bench) newGuest(ctx context.Context, o *ours, choose *rand.Rand, share int, end time.Time) (g *guest, err error) {
	shapes := []string{"20us", "200us", "1ms", "5ms", "20ms", "50ms", "graph", "product", "burst"}
	g = &guest{kill: choose.IntN(2) == 0, t: tenant{
		shape: shapes[choose.IntN(len(shapes))], share: share,
		mode: []string{"", "soft"}[choose.IntN(2)], priority: []string{"", "high", "low"}[choose.IntN(3)],
		procs: 1 + choose.IntN(3)/2, // one, one or two
	}}
	length := time.Duration(2000+choose.IntN(13000)) * time.Millisecond
	length = max(time.Second, min(length, time.Until(end)))
	defer func() {
		if err != nil {
			err = errors.Join(err, g.end())
		}
	}()
	var env []string
	if env, g.leave, err = o.join(ctx, b, g.t); err != nil {
		return g, err
	}
	for range g.t.procs {
		p, err := b.startTenant(ctx, env, g.t)
		if err != nil {
			return g, err
		}
		g.procs = append(g.procs, p)
	}
	for _, p := range g.procs {
		if err := p.ready(); err != nil {
			return g, err
		}
	}
	g.from = monotonic()
	g.ends = g.from + int64(length)
	for _, p := range g.procs {
		works := g.ends
		if g.kill {
			works += int64(time.Minute) // it is killed at work
		}
		if err := p.begin(g.from, works); err != nil {
			p.kill()
			return g, p.failed(err)
		}
	}
	return g, nil
}

// end kills what is left of a guest and ends its job.
func (g *guest) end() error {
	for _, p := range g.procs {
		p.kill()
	}
	if g.leave == nil {
		return nil
	}
	return g.leave()
}

func (s *tally) fail(err error) {
	s.errors++
	s.problems = append(s.problems, err)
}

// others names who was there while a guest worked, and still is.
func others(g *guest, all []*guest) string {
	var names []string
	for _, o := range all {
		if o != g && o.from < g.ends && o.ends > g.from {
			names = append(names, fmt.Sprintf("%d%% %s %s %s", o.t.share, o.t.shape, cmp.Or(o.t.mode, "hard"), cmp.Or(o.t.priority, "normal")))
		}
	}
	return "beside " + cmp.Or(strings.Join(names, ", "), "nobody")
}

// see ends a guest whose time has come, and looks at what it did.
func (s *tally) see(g *guest, all []*guest) {
	for i, p := range g.procs {
		var did series.Series
		var err error
		if g.kill {
			p.kill()
			s.killed++
			did, err = series.Read(p.samples)
		} else {
			var o outcome
			o, err = p.finish(hung + 10*time.Second)
			did = o.Series
			s.finished++
		}
		if errors.Is(err, errHung) {
			s.hangs++
		}
		if err != nil {
			s.fail(err)
			continue
		}
		stall, at := did.LongestStall(g.from, g.ends)
		s.stood(stall, fmt.Sprintf("%d%% %s %s %s, %d of %d processes, %.1f s after the start of %.1f s, at %.1f s; %s",
			g.t.share, g.t.shape, cmp.Or(g.t.mode, "hard"), cmp.Or(g.t.priority, "normal"), i+1, len(g.procs),
			float64(at-g.from)/1e9, float64(g.ends-g.from)/1e9, float64(at-s.began)/1e9, others(g, all)))
		if stall > hung {
			s.hangs++
			s.problems = append(s.problems, fmt.Errorf("%s did nothing for %s", p.name, stall))
		}
	}
	if err := g.end(); err != nil {
		s.fail(err)
	}
}

// churned looks at what is left when all are gone.
func (b *bench) churned(ctx context.Context, o *ours, s tally) (report.Record, error) {
	r := report.Record{Seconds: b.churn.Seconds(), Numbers: map[string]float64{
		"jobs": s.jobs, "processes_killed": s.killed, "processes_finished": s.finished, "hangs": s.hangs, "errors": s.errors,
	}}
	for _, stall := range s.stalls {
		r.Notes = append(r.Notes, fmt.Sprintf("%.0f ms: %s", float64(stall.length)/1e6, stall.who))
	}
	if len(s.stalls) > 0 {
		r.Numbers["stall_max_ms"] = float64(s.stalls[0].length) / 1e6
	}
	left, err := o.node.left(ctx)
	if err != nil {
		return r, err
	}
	var after uint64
	for range 50 { // the driver frees the memory of the dead a moment later
		if after, err = b.memoryUsed(ctx); err != nil {
			return r, err
		}
		if after <= b.idleMemory+memoryNoise {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	r.Numbers["jobs_left"], r.Numbers["memory_left_mib"] = float64(left), float64(after)-float64(b.idleMemory)
	if left > 0 {
		s.problems = append(s.problems, fmt.Errorf("%d jobs are left in gresd", left))
	}
	if after > b.idleMemory+memoryNoise {
		s.problems = append(s.problems, fmt.Errorf("%d MiB more in use on the card than before", after-b.idleMemory))
	}
	if s.jobs == 0 {
		s.problems = append(s.problems, errors.New("no job was started"))
	}
	return r, errors.Join(s.problems...)
}

// memoryUsed is what is in use on the card, in MiB.
func (b *bench) memoryUsed(ctx context.Context) (uint64, error) {
	if b.sim {
		out, err := exec.CommandContext(ctx, filepath.Join(b.build, "simgpu/bin/simgpu"), "status", "--json", "--state", filepath.Join(b.dir, "card")).Output()
		if err != nil {
			return 0, fmt.Errorf("simgpu status: %w", err)
		}
		var cards []struct{ Used uint64 }
		if err := json.Unmarshal(out, &cards); err != nil || len(cards) == 0 {
			return 0, fmt.Errorf("simgpu status said %q: %v", out, err)
		}
		return cards[0].Used >> 20, nil
	}
	out, err := exec.CommandContext(ctx, "nvidia-smi", fmt.Sprintf("--id=%d", b.gpu), "--query-gpu=memory.used", "--format=csv,noheader,nounits").Output()
	if err != nil {
		return 0, fmt.Errorf("nvidia-smi: %w", err)
	}
	return strconv.ParseUint(strings.TrimSpace(string(out)), 10, 64)
}
