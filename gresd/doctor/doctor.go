// SPDX-License-Identifier: Apache-2.0

// Package doctor checks a node from the driver to Slurm. Each check looks at one
// thing, changes nothing, and says what to do about what it found. None waits for
// long: a driver or a slurmctld that hangs is a finding, too.
package doctor

import (
	"context"
	"fmt"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Status is what became of a check.
type Status string

// Statuses. Skip: it could not be looked at, by this user or for a fault that
// another line names.
const (
	Pass Status = "pass"
	Warn Status = "warn"
	Fail Status = "fail"
	Skip Status = "skip"
)

// Finding is one line of the report.
type Finding struct {
	Check   string `json:"check"` // a word of a fixed list, see [Checks]
	Status  Status `json:"status"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// Options say what is looked at.
type Options struct {
	Config  string // path of vgpu.toml
	Version string // of the program that asks; gresd's is compared with it
	// Local leaves out what slurmctld has to answer, for programs that run on
	// every node every few minutes.
	Local bool
	// Timeout bounds the whole, and a sixth of it (at least a second) each check.
	Timeout time.Duration
	// Probe asks a child process with the library preloaded for the card's
	// memory; see [Probed].
	Probe func(ctx context.Context, library, cuda string) (Probed, error)
}

// check is one of the list. It sends what it finds; a check that has nothing to
// complain of sends one line that passes.
type check struct {
	name string
	slow bool // asks slurmctld
	run  func(context.Context, *node, func(Status, string, string))
}

// node is what checks know of each other's matter.
type node struct {
	Options
	cfg   config.Config
	cards *driver.NVML // nil: no driver
	slurm *facts       // nil: not asked, or no answer
	gresd *wire.Status // nil: no answer
}

var checks = []check{
	{"config", false, checkConfig},
	{"driver", false, checkDriver},
	{"cards", false, checkCards},
	{"limits", false, checkLimits},
	{"library", false, checkLibrary},
	{"preload", false, checkPreload},
	{"gresd", false, checkGresd},
	{"slices", false, checkSlices},
	{"socket", false, checkSocket},
	{"space", false, checkSpace},
	{"clock", false, checkClock},
	{"slurm", true, checkSlurm},
	{"hooks", false, checkHooks},
	{"lua", false, checkLua},
	{"plugstack", false, checkPlugstack},
	{"gres.conf", false, checkGresConf},
	{"cgroup", false, checkCgroup},
}

// Run does the checks and tells each finding as it comes. It returns when all are
// done or the time is up, whatever hangs; the process should then end.
func Run(ctx context.Context, o Options, tell func(Finding)) {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	n := &node{Options: o}
	for _, c := range checks {
		switch {
		case ctx.Err() != nil:
			tell(Finding{c.name, Skip, "no time left", "look at what took so long above, or give --timeout"})
		case c.slow && o.Local:
		default:
			n = one(ctx, c, n, max(o.Timeout/6, time.Second), tell)
		}
	}
}

// one runs a check for so long at most. One that hangs keeps the copy of the node
// that it has, so that it disturbs no other when it wakes up.
func one(ctx context.Context, c check, n *node, limit time.Duration, tell func(Finding)) *node {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	own := *n
	done := make(chan []Finding, 1)
	go func() {
		var found []Finding
		c.run(ctx, &own, func(s Status, message, remedy string) {
			if s == Pass {
				remedy = ""
			}
			found = append(found, Finding{c.name, s, message, remedy})
		})
		done <- found
	}()
	// What it asks ends with ctx; only a system call that hangs does not.
	hangs := time.NewTimer(limit + 500*time.Millisecond)
	defer hangs.Stop()
	select {
	case found := <-done:
		for _, f := range found {
			tell(f)
		}
		return &own
	case <-hangs.C:
		tell(Finding{c.name, Fail, fmt.Sprintf("no answer within %s", limit), "dmesg, nvidia-smi: does the driver hang?"})
		return n
	}
}

// Worst is the gravest status of the findings.
func Worst(found []Finding) Status {
	worst := Pass
	for _, f := range found {
		switch {
		case f.Status == Fail:
			return Fail
		case f.Status == Warn:
			worst = Warn
		}
	}
	return worst
}
