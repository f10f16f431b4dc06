// SPDX-License-Identifier: Apache-2.0

// Package prolog is the logic of vgpu-prolog: one program that Slurm runs as
// Prolog, Epilog, TaskProlog, TaskEpilog and HealthCheckProgram. It learns its
// role from SLURM_SCRIPT_CONTEXT, passes what Slurm says of a job to gresd, and
// turns the answer into an exit code.
//
// A Prolog that exits non-zero drains its node, so it does so only where gresd
// says that the node is broken. All other trouble is told to the job's user by
// the SPANK plugin, or by TaskProlog where there is none.
package prolog

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Exit codes.
const (
	ExitOK    = 0
	ExitFault = 1 // Prolog: the node is broken. TaskProlog: the task must not run.
	ExitUsage = 2 // run by hand, outside Slurm
	// ExitUnknown: late Prolog only. The job may have lost its share: the SPANK plugin hides the cards.
	ExitUnknown = 3
)

// selfGrant is where the SPANK plugin binds the grant of a task.
const selfGrant = "/run/vgpu/self/grant"

// Hook is one run of the program.
type Hook struct {
	Getenv func(string) string
	Config Config
	Stdout io.Writer
	Stderr io.Writer
	// Log tells the administrator; Slurm keeps nothing of what a hook prints.
	Log func(line string)
	// Patience is how long a job with a share waits for a gresd that is not there, for example
	// because of an upgrade.
	Patience time.Duration
	// AnswerWait is how long such a job waits in all, also for a gresd that does not answer.
	AnswerWait time.Duration

	askSlurmctldAfter time.Duration
	selfGrant         string      // for tests
	slurm             slurmClient // nil: Slurm's commands
}

// New returns a Hook with the values that production uses.
func New(getenv func(string) string, config Config, stdout, stderr io.Writer, log func(string)) *Hook {
	return &Hook{
		Getenv: getenv, Config: config, Stdout: stdout, Stderr: stderr, Log: log,
		Patience: 5 * time.Second, AnswerWait: 150 * time.Second,
		askSlurmctldAfter: askSlurmctldAfter, selfGrant: selfGrant,
	}
}

// Run does the work of the context that Slurm has set and returns the exit code.
func (h *Hook) Run(ctx context.Context) int {
	switch role := h.Getenv("SLURM_SCRIPT_CONTEXT"); role {
	case "prolog_slurmd":
		return h.prolog(ctx)
	case latePrologContext:
		return h.latePrologOf(ctx)
	case "epilog_slurmd":
		return h.epilog(ctx)
	case "prolog_task":
		return h.taskProlog()
	case "epilog_task":
		return ExitOK
	case "":
		if h.Getenv("SLURMD_NODENAME") != "" {
			return h.healthCheck(ctx)
		}
		fmt.Fprintln(h.Stderr, "vgpu-prolog: run by Slurm as Prolog, Epilog, TaskProlog, TaskEpilog or HealthCheckProgram")
		return ExitUsage
	default:
		// PrologSlurmctld and the like: there is nothing to do, and no job is
		// to fail for a mistake in slurm.conf.
		h.say("%s: nothing to do here: want Prolog, Epilog, TaskProlog, TaskEpilog or HealthCheckProgram", role)
		return ExitOK
	}
}

func (h *Hook) prolog(ctx context.Context) int {
	req, err := h.request(wire.OpGrant)
	if err != nil {
		h.say("prolog: %v", err)
		return ExitOK
	}
	if !h.isSharingNode() {
		return ExitOK
	}
	if timeout := h.timeout(); timeout > 0 {
		// One deadline for the answer and for all commands.
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(timeout-exitMargin, timeout/2))
		defer cancel()
		h.AnswerWait = min(h.AnswerWait, answerDeadline(timeout))
		h.setWithin(&req)
	}
	if err := h.clearState(req.JobID); err != nil { // the Epilog of an earlier run can be lost
		return h.requeueOrRefuse(ctx, req.JobID, err, tasksRefused)
	}
	return h.decide(ctx, req)
}

// latePrologContext is the SLURM_SCRIPT_CONTEXT that the SPANK plugin sets.
const latePrologContext = "vgpu_late_prolog"

// latePrologOf is the Prolog of a task whose job had none (spank/plugin/late.c). Its exit code fails
// the task and never the node. 0: gresd has granted or refused the job, or has nothing to do with it.
// ExitUnknown: gresd does not answer, and the job has no sign of a share.
func (h *Hook) latePrologOf(ctx context.Context) int {
	req, err := h.request(wire.OpGrant)
	if err != nil {
		h.say("late prolog: %v", err)
		return ExitFault
	}
	state := h.state(fmt.Sprint(req.JobID))
	hasShare := h.mustNotRunUnlimited() || state == lostShards || state != undecided && !h.mayDropShards()
	a := h.ask(ctx, req, hasShare)
	switch {
	case !hasShare && !a.isFinal():
		h.Log(fmt.Sprintf("vgpu: late prolog: job %d: %s: %v", req.JobID, startsWithoutCard, a.err))
		return ExitUnknown
	case a.err != nil:
		h.say("late prolog: job %d: %v", req.JobID, a.err)
		return ExitFault
	case a.reply.Result == wire.Requeued:
		h.say("late prolog: job %d: %s: %s", req.JobID, a.reply.Result, a.reply.Message)
		return ExitFault
	case a.reply.Result == wire.None:
		_ = h.noteNoShare(req.JobID)
	default:
		h.Log(fmt.Sprintf("vgpu: late prolog: job %d: slurmd had left it out: %s", req.JobID, a.reply.Result))
	}
	return ExitOK
}

// epilog never fails and does not wait for long: gresd finds ended jobs by itself.
func (h *Hook) epilog(ctx context.Context) int {
	if !h.isSharingNode() {
		return ExitOK
	}
	h.Patience, h.AnswerWait = min(h.Patience, noShareWait), min(h.AnswerWait, noShareWait)
	req, err := h.request(wire.OpRelease)
	if err != nil {
		h.say("epilog: job %d: %v", req.JobID, err)
		return ExitOK
	}
	if err := h.clearState(req.JobID); err != nil {
		h.say("epilog: job %d: %v", req.JobID, err)
	}
	a := h.ask(ctx, wire.Request{Op: wire.OpRelease, JobID: req.JobID, Cluster: req.Cluster}, h.namesShare())
	if a.err != nil && (a.isAnswer() || h.namesShare()) {
		h.say("epilog: job %d: %v", req.JobID, a.err)
	}
	return ExitOK
}

// healthCheck never drains: slurmd goes on without gresd, and the jobs that
// need it are stopped one by one.
func (h *Hook) healthCheck(ctx context.Context) int {
	if !h.isSharingNode() {
		return ExitOK
	}
	if err := h.ping(ctx, 5*time.Second); err != nil {
		h.say("health check: %v", err)
	}
	return ExitOK
}

func (h *Hook) socket() string {
	if path := h.Getenv("VGPU_SOCKET"); path != "" {
		return path
	}
	return filepath.Join(h.Config.RunDir, "gresd.sock")
}

// namesShare reports whether slurmd's environment, the comment or an option of the job names a share.
func (h *Hook) namesShare() bool {
	return h.Getenv("SLURM_JOB_GPUS") != "" || request.HasToken(h.Getenv("SLURM_JOB_COMMENT")) || h.options() != wire.Options{}
}

// isSharingNode reports whether this node shares cards: it has gresd's folder, which systemd makes, or
// a configuration. On other nodes the hooks do nothing.
func (h *Hook) isSharingNode() bool {
	if h.Config.Found || h.Getenv("VGPU_SOCKET") != "" {
		return true
	}
	_, err := os.Stat(h.Config.RunDir)
	return err == nil
}

func (h *Hook) say(format string, args ...any) {
	line := "vgpu: " + fmt.Sprintf(format, args...)
	fmt.Fprintln(h.Stderr, line)
	h.Log(line)
}
