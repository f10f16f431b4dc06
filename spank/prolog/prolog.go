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
	"errors"
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
	// Patience is how long a job that holds a share waits for gresd to come
	// back, for example from an upgrade.
	Patience time.Duration
	// AnswerWait is how long such a job waits in all, for a gresd that is there
	// and does not answer.
	AnswerWait time.Duration

	doubtAfter time.Duration
	selfGrant  string      // for tests
	slurm      slurmClient // nil: Slurm's commands
	patient    bool        // wait for gresd also for a job that shows no share
}

// answerMargin is how much sooner than it waits a Prolog asks for an answer.
const answerMargin = 3 * time.Second

// New returns a Hook with the values that production uses.
func New(getenv func(string) string, config Config, stdout, stderr io.Writer, log func(string)) *Hook {
	return &Hook{
		Getenv: getenv, Config: config, Stdout: stdout, Stderr: stderr, Log: log,
		Patience: 5 * time.Second, AnswerWait: 150 * time.Second, doubtAfter: doubtAfter, selfGrant: selfGrant,
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
	if !h.takesPart() {
		return ExitOK
	}
	if limit := h.within(); limit > 0 {
		// One deadline for the answer and for all commands.
		timeout := h.timeout()
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, max(timeout-exitMargin, timeout/2))
		defer cancel()
		h.AnswerWait = min(h.AnswerWait, limit)
		req.Within = uint32(max(1, (h.AnswerWait - answerMargin).Seconds()))
	}
	if err := h.unmark(req.JobID); err != nil { // its Epilog may have been lost
		return h.unanswered(ctx, req.JobID, err, tasksRefused)
	}
	rep, err := h.answer(ctx, req)
	switch {
	case errors.Is(err, errNoShare):
		h.markPlain(req.JobID)
		if h.holdsShare() { // by what slurmd says, whole cards look like a share
			h.say("prolog: job %d: %v", req.JobID, err)
		}
		return ExitOK
	case err == nil:
		if rep.Result == wire.Refused || rep.Result == wire.Requeued {
			h.say("prolog: job %d: %s: %s", req.JobID, rep.Result, rep.Message)
		}
		if rep.Result == wire.None {
			h.markPlain(req.JobID)
		}
		return ExitOK
	case errors.Is(err, errNobodyKnows):
		if markErr := h.mark(unknownJob, req.JobID); markErr != nil {
			return h.unanswered(ctx, req.JobID, markErr, "its tasks see no card")
		}
		h.say("prolog: job %d: %v", req.JobID, err)
		return ExitOK
	case isUsersFault(err):
		h.say("prolog: job %d: %v", req.JobID, err)
		return ExitOK
	case isNodesFault(err):
		h.say("prolog: job %d: %v", req.JobID, err)
		return ExitFault
	case !h.mayShare():
		return ExitOK
	}
	return h.unanswered(ctx, req.JobID, err, tasksRefused)
}

// latePrologContext is the SLURM_SCRIPT_CONTEXT that the SPANK plugin sets.
const latePrologContext = "vgpu_late_prolog"

// latePrologOf is Prolog for a task whose job had none (spank/plugin/late.c). Its
// exit code fails the task and never the node, so it is not 0 unless the task may
// run: gresd has granted, has refused in words of its own, or has nothing to do
// with the job. ExitUnknown: gresd does not answer, and the job shows no sign of a share.
func (h *Hook) latePrologOf(ctx context.Context) int {
	req, err := h.request(wire.OpGrant)
	if err != nil {
		h.say("late prolog: %v", err)
		return ExitFault
	}
	job := fmt.Sprint(req.JobID)
	h.patient = h.holdsShare() || h.placedByGresd() || h.isMarked(lostJob, job) || !h.losesShards() && !h.isMarked(unknownJob, job)
	rep, err := h.ask(ctx, req)
	switch {
	case !h.patient && err != nil && (!isAnswer(err) || isBusy(err)):
		h.Log(fmt.Sprintf("vgpu: late prolog: job %d: %v: %v", req.JobID, errNobodyKnows, err))
		return ExitUnknown
	case err != nil:
		h.say("late prolog: job %d: %v", req.JobID, err)
		return ExitFault
	case rep.Result == wire.Requeued:
		h.say("late prolog: job %d: %s: %s", req.JobID, rep.Result, rep.Message)
		return ExitFault
	case rep.Result == wire.None:
		h.markPlain(req.JobID)
	default:
		h.Log(fmt.Sprintf("vgpu: late prolog: job %d: slurmd had left it out: %s", req.JobID, rep.Result))
	}
	return ExitOK
}

// Marks are files by which tasks know what was found out about their job (spank/plugin/marks.c).
const (
	// plainJob: its Prolog has run, and it has no share, whatever its environment says: sbatch inside
	// of a job with a share hands that on.
	plainJob = "plain"
	// lostJob: slurmctld has started it without the shards that it asks for, and gresd has not decided
	// yet. Its tasks must not run.
	lostJob = "lost"
	// unknownJob: nobody could say whether it has lost a share. The SPANK plugin hides the cards from
	// its tasks.
	unknownJob = "unknown"
)

func (h *Hook) mark(kind string, job uint32) error {
	path := h.markOf(kind, fmt.Sprint(job))
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = os.WriteFile(path, nil, 0o644)
	}
	if err != nil {
		return fmt.Errorf("mark the job: %w", err)
	}
	return nil
}

func (h *Hook) isMarked(kind, job string) bool {
	_, err := os.Stat(h.markOf(kind, job))
	return err == nil
}

func (h *Hook) markOf(kind, job string) string { return filepath.Join(h.Config.RunDir, kind, job) }

// unmark removes the marks of an earlier run of the job.
func (h *Hook) unmark(job uint32) error {
	for _, kind := range []string{plainJob, lostJob, unknownJob} {
		// A read-only folder fails for an absent file, too.
		if err := os.Remove(h.markOf(kind, fmt.Sprint(job))); err != nil && h.isMarked(kind, fmt.Sprint(job)) {
			return fmt.Errorf("remove the job's mark: %w", err)
		}
	}
	return nil
}

// placedByGresd says that gresd chooses the cards on this node: it leaves a mark.
func (h *Hook) placedByGresd() bool {
	_, err := os.Stat(filepath.Join(h.Config.RunDir, "ask-gresd"))
	return err == nil
}

// markPlain: without the mark, tasks ask again, which only takes longer.
func (h *Hook) markPlain(job uint32) {
	if h.mayShare() || h.isMarked(unknownJob, fmt.Sprint(job)) {
		_ = h.mark(plainJob, job)
	}
}

// epilog never fails, and does not wait for long: gresd takes back by itself what no job holds
// any more.
func (h *Hook) epilog(ctx context.Context) int {
	if !h.takesPart() {
		return ExitOK
	}
	h.Patience, h.AnswerWait = min(h.Patience, plainWait), min(h.AnswerWait, plainWait)
	req, err := h.request(wire.OpRelease)
	if err == nil {
		if err := h.unmark(req.JobID); err != nil {
			h.say("epilog: job %d: %v", req.JobID, err)
		}
		_, err = h.ask(ctx, wire.Request{Op: wire.OpRelease, JobID: req.JobID, Cluster: req.Cluster})
	}
	if err != nil && (isAnswer(err) || h.holdsShare()) {
		h.say("epilog: job %d: %v", req.JobID, err)
	}
	return ExitOK
}

// healthCheck never drains: slurmd goes on without gresd, and the jobs that
// need it are stopped one by one.
func (h *Hook) healthCheck(ctx context.Context) int {
	if !h.takesPart() {
		return ExitOK
	}
	client := wire.Client{Socket: h.socket(), Timeout: 5 * time.Second}
	if _, err := client.Do(ctx, wire.Request{Op: wire.OpPing}); err != nil {
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

// holdsShare says whether the job may have a share of a card of this node, by what slurmd and its
// own options say.
func (h *Hook) holdsShare() bool {
	return h.Getenv("SLURM_JOB_GPUS") != "" || request.HasToken(h.Getenv("SLURM_JOB_COMMENT")) || h.options() != wire.Options{}
}

func (h *Hook) say(format string, args ...any) {
	line := "vgpu: " + fmt.Sprintf(format, args...)
	fmt.Fprintln(h.Stderr, line)
	h.Log(line)
}
