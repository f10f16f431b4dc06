// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// doubtAfter is how long gresd is waited for until slurmctld is asked whether the job has a share
// at all: one with whole cards looks like it, and does not need gresd.
const doubtAfter = 3 * time.Second

// errNoShare: gresd does not answer, and need not.
var errNoShare = errors.New("gresd does not answer: it has no share of a card, and starts")

// errNobodyKnows: neither gresd nor slurmctld says whether the job has lost a share, and nothing
// else tells of one. It starts, and its tasks are shown no card.
var errNobodyKnows = errors.New("nobody knows whether it asks for a share: it starts without a card")

// answer asks gresd. Where that takes long, or fails, it asks slurmctld as well. A job that has no
// share, as slurmctld says, starts (errNoShare). Only a job of whole cards goes on waiting, while
// gresd answers other questions: others have shares of its cards. For a job that has a share, as
// slurmctld says and nothing else does, gresd is waited for as long as for any job with a share: it
// may have been restarted while the job waited for room.
func (h *Hook) answer(ctx context.Context, req wire.Request) (wire.Reply, error) {
	began := time.Now()
	type result struct {
		rep wire.Reply
		err error
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	done := make(chan result, 1)
	go func() {
		rep, err := h.ask(ctx, req)
		done <- result{rep, err}
	}()
	var got *result
	select {
	case r := <-done:
		if r.err == nil || isAnswer(r.err) && !isBusy(r.err) || !h.mayShare() {
			return r.rep, r.err
		}
		got = &r
	case <-time.After(h.doubtAfter):
	}
	facts, unknown := h.client().Job(ctx, req.JobID, h.text("SLURMD_NODENAME"))
	lost := unknown == nil && facts.LostShares()
	noShare := unknown == nil && !lost && len(facts.Units) == 0 && facts.Counted == 0
	if noShare && (got != nil || len(facts.WholeCards) == 0 || !h.placedByGresd() || !h.isWell(ctx)) {
		return wire.Reply{}, errNoShare
	}
	if got == nil {
		r := <-done
		got = &r
	}
	if noShare && got.err != nil && (!isAnswer(got.err) || isBusy(got.err)) {
		return wire.Reply{}, errNoShare
	}
	if lost {
		if err := h.mark(lostJob, req.JobID); err != nil {
			h.say("prolog: job %d: %v", req.JobID, err)
		}
	}
	left := h.AnswerWait - time.Since(began)
	if unknown != nil && got.err != nil && !h.hasSign() {
		return wire.Reply{}, fmt.Errorf("%w: %w; %w", errNobodyKnows, got.err, unknown)
	}
	if got.err == nil || isAnswer(got.err) || unknown != nil || h.patient || h.holdsShare() || left <= 0 {
		return got.rep, got.err
	}
	h.patient, h.AnswerWait = true, left
	req.Within = uint32(max(1, (left - answerMargin).Seconds()))
	return h.ask(ctx, req)
}

// isWell says that gresd answers at all.
func (h *Hook) isWell(ctx context.Context) bool {
	client := wire.Client{Socket: h.socket(), Timeout: h.doubtAfter}
	_, err := client.Do(ctx, wire.Request{Op: wire.OpPing})
	return err == nil
}

// mayShare says whether the job may have a share: where gresd places, or slurmctld may have lost
// shards, any job may.
func (h *Hook) mayShare() bool { return h.hasSign() || h.losesShards() }

// hasSign says that something tells of a share: where nobody can be asked, such a job must not run.
// All others must, whatever is broken.
func (h *Hook) hasSign() bool { return h.patient || h.holdsShare() || h.placedByGresd() }

// losesShards says that slurmctld may start a job without the shards that it asks for: gresd
// leaves a mark.
func (h *Hook) losesShards() bool {
	_, err := os.Stat(filepath.Join(h.Config.RunDir, "loses-shards"))
	return err == nil
}

// unanswered decides about a job that has a share, or may have one, and that gresd had no answer
// for. It never fails: Slurm drains the node of a Prolog that does. A batch job goes back into
// the queue. Tasks of others are refused when they start, with the reason, by the SPANK plugin
// or by TaskProlog. The log line says otherwise about the tasks of a job that stays.
func (h *Hook) unanswered(ctx context.Context, job uint32, why error, otherwise string) int {
	err := h.client().Requeue(ctx, job)
	switch {
	case err == nil:
		h.say("prolog: job %d: %v; it is back in the queue", job, why)
	default:
		h.say("prolog: job %d: %v; %s: %v", job, why, otherwise, err)
	}
	return ExitOK
}

const tasksRefused = "its tasks are refused"

func (h *Hook) client() slurmClient {
	if h.slurm != nil {
		return h.slurm
	}
	scontrol := h.Config.Scontrol
	if _, err := slurm.Find(scontrol, runsThis()...); err != nil {
		scontrol = "" // to send a job back, any that works will do
	}
	return slurm.New(slurm.Options{Scontrol: scontrol, Slurmds: runsThis, Conf: h.slurmConf(), Timeout: commandWait})
}

// runsThis is the slurmd that runs this hook. Slurm gives a hook no PATH: its commands are beside it.
func runsThis() []string {
	slurmd, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", os.Getppid()))
	if err != nil {
		return nil
	}
	return []string{slurmd}
}

// slurmClient is what unanswered needs of Slurm.
type slurmClient interface {
	Job(ctx context.Context, job uint32, node string) (slurm.JobFacts, error)
	Requeue(ctx context.Context, job uint32) error
}

// takesPart reports whether this node shares cards: it has gresd's folder, which systemd makes, or
// the configuration. Every other node runs its jobs as if this program were not there.
func (h *Hook) takesPart() bool {
	if h.Config.Found || h.Getenv("VGPU_SOCKET") != "" {
		return true
	}
	_, err := os.Stat(h.Config.RunDir)
	return err == nil
}

const (
	// commandWait limits each of Slurm's commands of a job without an answer; there are up to
	// three.
	commandWait = 5 * time.Second
	// exitMargin is the time between the Prolog's own deadline and Slurm's timeout.
	exitMargin = time.Second
	// plainWait is how long a job without cards waits for an answer, where such a job has no share.
	plainWait = 2 * time.Second
)

// within limits the time for an answer, so that the Prolog ends before Slurm ends it and drains
// the node for that. The rest of the timeout is for Slurm's commands. 0: Slurm has no timeout.
func (h *Hook) within() time.Duration {
	timeout := h.timeout()
	if timeout == 0 {
		return 0
	}
	return max(time.Second, timeout-3*commandWait-exitMargin)
}

// timeout returns the time after which Slurm ends the Prolog: PrologTimeout of the slurm.conf that
// slurmd names, else PrologEpilogTimeout. 0: neither is set.
func (h *Hook) timeout() time.Duration {
	said, _ := slurm.ReadConf(h.slurmConf()) // an unreadable file sets nothing
	seconds, err := strconv.ParseUint(cmp.Or(said["prologtimeout"], said["prologepilogtimeout"]), 10, 16)
	if err != nil || seconds >= slurm.NoTimeout {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// cluster is the ClusterName of slurmd's slurm.conf, as Slurm writes it; "" where that is not known.
func (h *Hook) cluster() string {
	said, _ := slurm.ReadConf(cmp.Or(h.conf(), h.Config.SlurmConf))
	return strings.ToLower(clean(said["clustername"]))
}

// slurmConf is the slurm.conf in force: the administrator's word, then slurmd's.
func (h *Hook) slurmConf() string {
	return cmp.Or(h.Config.SlurmConf, h.conf())
}
