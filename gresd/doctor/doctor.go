// SPDX-License-Identifier: Apache-2.0

// Package doctor checks a node from the driver to Slurm. [checks] is the table of its questions: each
// check reads some facts of the node and judges them. No check changes anything or
// waits for long: a driver or a slurmctld that hangs is a finding, too.
package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// Status is the result of a check.
type Status string

// Statuses. Skip: the check was not possible, for this user or because of a fault that
// another line names.
const (
	Pass Status = "pass"
	Warn Status = "warn"
	Fail Status = "fail"
	Skip Status = "skip"
)

// Finding is one line of the report.
type Finding struct {
	Check   string `json:"check"` // the name of a check
	Status  Status `json:"status"`
	Message string `json:"message"`
	Remedy  string `json:"remedy,omitempty"`
}

// Options of a run.
type Options struct {
	Config  string // path of vgpu.toml
	Version string // of the calling program, for comparison with gresd's
	// Local leaves out the questions that slurmctld has to answer, for programs that run on
	// every node every few minutes.
	Local bool
	// Timeout limits the run, and a sixth of it (at least a second) limits each check.
	Timeout time.Duration
	// Probe asks a child process with the library preloaded for the card's
	// memory; see [Probed].
	Probe func(ctx context.Context, library, cuda string) (Probed, error)
}

// Probed is the memory of the card that a child process with the library preloaded sees.
type Probed struct {
	ByName    gpu.Bytes `json:"by_name"`
	ByAddress gpu.Bytes `json:"by_address"`
}

// ProbeLimit is the limit of the child.
const ProbeLimit = 1 * gpu.GiB

// check is one line of the report.
type check struct {
	name, question string
	slow           bool // asks slurmctld
	// look reads the facts that judge needs. Its error is a finding, and judge is skipped.
	look   func(context.Context, *node) error
	remedy string // of an error of look, and of the faults that have no remedy of their own
	// judge reports the faults in the facts, and returns the message for a node without faults.
	judge  func(*node, *results) string
	always bool // the message is reported in each case
}

// results collects the findings of one check.
type results struct {
	check, remedy string
	found         []Finding
}

// fail, warn and skip report a fault if broken is set. The message is a format for the values. The remedy
// ("": that of the check) can contain verbs with explicit argument indexes for the same values.
func (r *results) fail(broken bool, remedy, message string, values ...any) {
	r.add(broken, Fail, cmp.Or(remedy, r.remedy), fmt.Sprintf(message, values...), values)
}

func (r *results) warn(broken bool, remedy, message string, values ...any) {
	r.add(broken, Warn, cmp.Or(remedy, r.remedy), fmt.Sprintf(message, values...), values)
}

func (r *results) skip(broken bool, message string, values ...any) {
	r.add(broken, Skip, "", fmt.Sprintf(message, values...), nil)
}

func (r *results) add(broken bool, status Status, remedy, message string, values []any) {
	if strings.Contains(remedy, "%[") {
		remedy = fmt.Sprintf(remedy, values...)
	}
	if broken {
		r.found = append(r.found, Finding{r.check, status, message, remedy})
	}
}

// skip is an error of look: the check is not possible.
type skip string

func (s skip) Error() string { return string(s) }

// findings are the faults in the facts of a node, or that it has none.
func (c check) findings(n *node) []Finding {
	r := results{check: c.name, remedy: c.remedy}
	if pass := c.judge(n, &r); len(r.found) == 0 || c.always {
		r.found = append(r.found, Finding{c.name, Pass, pass, ""})
	}
	return r.found
}

// Run does the checks and reports each finding as it comes. It returns when all are
// done or the time is up, whatever hangs; the process should then end.
func Run(ctx context.Context, o Options, report func(Finding)) {
	ctx, cancel := context.WithTimeout(ctx, o.Timeout)
	defer cancel()
	n := &node{Options: o}
	for _, c := range checks {
		switch {
		case ctx.Err() != nil:
			report(Finding{c.name, Skip, "no time left", "look at what took so long above, or give --timeout"})
		case c.slow && o.Local:
		default:
			n = c.run(ctx, n, max(o.Timeout/6, time.Second), report)
		}
	}
}

// run runs a check for so long at most. A check that hangs keeps its own copy of the node, so it
// disturbs no other check when it goes on.
func (c check) run(ctx context.Context, n *node, limit time.Duration, report func(Finding)) *node {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	own := *n
	done := make(chan []Finding, 1)
	go func() {
		var skipped skip
		switch err := c.look(ctx, &own); {
		case errors.As(err, &skipped):
			done <- []Finding{{c.name, Skip, err.Error(), ""}}
		case err != nil:
			done <- []Finding{{c.name, Fail, err.Error(), c.remedy}}
		default:
			done <- c.findings(&own)
		}
	}()
	// Commands and requests end with ctx; a system call that hangs does not.
	select {
	case found := <-done:
		for _, f := range found {
			report(f)
		}
		return &own
	case <-time.After(limit + 500*time.Millisecond):
		report(Finding{c.name, Fail, fmt.Sprintf("no answer within %s", limit), "dmesg, nvidia-smi: does the driver hang?"})
		return n
	}
}

// Worst is the gravest status of the findings.
func Worst(found []Finding) Status {
	for _, status := range []Status{Fail, Warn} {
		if slices.ContainsFunc(found, func(f Finding) bool { return f.Status == status }) {
			return status
		}
	}
	return Pass
}
