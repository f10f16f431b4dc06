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
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
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
	// Patience is how long a job with a share waits for a gresd that is not there.
	Patience time.Duration
	// RestartWait replaces Patience after gresd has taken the request: gresd is being restarted. On a
	// busy node, gresd needs several seconds for its end and its start. A requeued job loses more: it
	// waits for two minutes (AuthInfo=cred_expire).
	RestartWait time.Duration
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
		Patience: 5 * time.Second, RestartWait: 30 * time.Second, AnswerWait: 150 * time.Second,
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

// The decision about a job. A sign is an environment, a comment or an option that names a share.
// If gresd places, every job has a sign. gresd has no reply while it is busy.
//
//	gresd                      slurmctld      sign   decision
//	granted, refused, requeued any            any    exit 0
//	none                       any            any    exit 0, state no-share
//	user error                 any            any    exit 0, report
//	node error                 any            any    exit 1: Slurm drains the node
//	no reply                   not asked (1)  no     start
//	no reply                   no share (2)   any    start, state no-share
//	no reply                   lost shards    any    state lost, wait, requeue or refuse
//	no reply                   has a share    any    wait, requeue or refuse
//	no reply                   no reply       yes    requeue or refuse
//	no reply                   no reply       no     start without a card, state undecided
//
// (1) The job has no sign, and this Slurm drops no shards.
// (2) If gresd places and replies to pings, a job of whole cards waits for gresd first: other jobs
// can have shares of its cards.

// askSlurmctldAfter is the time that gresd has before the Prolog asks slurmctld, too.
const askSlurmctldAfter = 3 * time.Second

// decide asks gresd, and slurmctld if necessary, and returns the exit code of the Prolog.
func (h *Hook) decide(ctx context.Context, req wire.Request) int {
	began := time.Now()
	askCtx, cancel := context.WithCancel(ctx)
	defer cancel()
	gresd := sync.OnceValue(func() answer { return h.ask(askCtx, req, h.namesShare()) })
	replied := make(chan struct{})
	go func() { gresd(); close(replied) }()
	select {
	case <-replied:
		if gresd().isFinal() {
			return h.conclude(req.JobID, gresd())
		}
		if !h.mayHaveShare() {
			return ExitOK
		}
	case <-time.After(h.askSlurmctldAfter):
	}

	facts, err := h.client().Job(ctx, req.JobID, h.text("SLURMD_NODENAME"))
	lost := facts.LostShares()
	switch {
	case err != nil:
		if a := gresd(); a.isFinal() {
			return h.conclude(req.JobID, a)
		} else if h.mustNotRunUnlimited() {
			return h.requeueOrRefuse(ctx, req.JobID, a.err, tasksRefused)
		} else if stateErr := h.setState(req.JobID, undecided); stateErr != nil {
			return h.requeueOrRefuse(ctx, req.JobID, stateErr, "its tasks see no card")
		} else {
			h.say("prolog: job %d: %s: %v; %v", req.JobID, startsWithoutCard, a.err, err)
		}
		return ExitOK

	case !lost && len(facts.Units) == 0 && facts.Counted == 0:
		if len(facts.WholeCards) > 0 && h.placedByGresd() && h.ping(ctx, h.askSlurmctldAfter) == nil && gresd().isFinal() {
			return h.conclude(req.JobID, gresd())
		}
		if h.namesShare() { // SLURM_JOB_GPUS also names whole cards
			h.say("prolog: job %d: gresd does not answer: the job has no share of a card, and starts", req.JobID)
		}
		if err := h.noteNoShare(req.JobID); err != nil && h.placedByGresd() { // its tasks would wait for gresd
			return h.requeueOrRefuse(ctx, req.JobID, err, tasksRefused)
		}
		return ExitOK
	}

	if lost {
		if err := h.setState(req.JobID, lostShards); err != nil {
			return h.requeueOrRefuse(ctx, req.JobID, err, tasksRefused)
		}
	}
	a := gresd()
	// The first question did not wait: gresd can have restarted while the job waited for room.
	if left := h.AnswerWait - time.Since(began); !a.isAnswer() && !h.namesShare() && left > 0 {
		h.AnswerWait = left
		h.setWithin(&req)
		a = h.ask(ctx, req, true)
	}
	if a.isFinal() {
		return h.conclude(req.JobID, a)
	}
	return h.requeueOrRefuse(ctx, req.JobID, a.err, tasksRefused)
}

// conclude returns the exit code for a decision of gresd.
func (h *Hook) conclude(job uint32, a answer) int {
	switch {
	case a.err != nil:
		h.say("prolog: job %d: %v", job, a.err)
		if a.kind() != wire.KindUser {
			return ExitFault
		}
	case a.reply.Result == wire.Refused, a.reply.Result == wire.Requeued:
		h.say("prolog: job %d: %s: %s", job, a.reply.Result, a.reply.Message)
	case a.reply.Result == wire.None && h.mayHaveShare():
		_ = h.noteNoShare(job)
	}
	return ExitOK
}

// noteNoShare writes the state of a job without a share, and logs an error. Without the state, the tasks
// of the job ask gresd.
func (h *Hook) noteNoShare(job uint32) error {
	err := h.setState(job, noShare)
	if err != nil {
		h.say("prolog: job %d: %v", job, err)
	}
	return err
}

// mayHaveShare reports whether the job must not start before gresd or slurmctld has answered.
func (h *Hook) mayHaveShare() bool { return h.mustNotRunUnlimited() || h.mayDropShards() }

// mustNotRunUnlimited reports whether the job has a sign.
func (h *Hook) mustNotRunUnlimited() bool { return h.namesShare() || h.placedByGresd() }

// startsWithoutCard is the log message for the state undecided.
const startsWithoutCard = "it is unknown whether the job has a share: it starts without a card"

// tasksRefused is the fate of the tasks of a job that cannot be requeued.
const tasksRefused = "its tasks are refused"

// requeueOrRefuse ends the Prolog of a job that must not run now. It returns 0, because Slurm drains
// the node of a Prolog that fails. A batch job goes back into the queue. The SPANK plugin or
// TaskProlog refuses the tasks of other jobs. For these, the log has the text otherwise.
func (h *Hook) requeueOrRefuse(ctx context.Context, job uint32, why error, otherwise string) int {
	if err := h.client().Requeue(ctx, job); err != nil {
		h.say("prolog: job %d: %v; %s: %v", job, why, otherwise, err)
	} else {
		h.say("prolog: job %d: %v; it is back in the queue", job, why)
	}
	return ExitOK
}

// slurmClient is the part of [slurm.Client] that a Prolog needs.
type slurmClient interface {
	Job(ctx context.Context, job uint32, node string) (slurm.JobFacts, error)
	Requeue(ctx context.Context, job uint32) error
}
