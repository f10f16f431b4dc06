// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"context"
	"errors"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

// unanswered decides about a job that may have a share, and that gresd could not be asked about
// or had no answer for. It never fails: Slurm drains the node of a Prolog that does. A job with whole
// cards starts: Slurm gives these to nobody else. A batch job with a share goes back into the
// queue. Tasks of others that have a share are refused when they start, with the reason, by
// the SPANK plugin or by TaskProlog.
func (h *Hook) unanswered(ctx context.Context, job uint32, why error) int {
	client := h.slurm
	if client == nil {
		client = slurm.New(slurm.Options{Scontrol: h.Config.Scontrol, Conf: h.slurmConf(), Timeout: commandWait})
	}
	facts, err := client.Job(ctx, job, h.text("SLURMD_NODENAME"))
	switch {
	case err != nil:
		h.say("prolog: job %d: %v; slurmctld does not tell what the job has: %v", job, why, err)
	case len(facts.Units) == 0 && facts.Counted == 0:
		h.markPlain(job)
		if h.holdsShare() { // by what slurmd says, whole cards look like a share
			h.say("prolog: job %d: %v; it has no share of a card and starts", job, why)
		}
	case !facts.Batch:
		h.say("prolog: job %d: %v; its tasks are refused: a job that is not a batch job cannot go back into the queue", job, why)
	default:
		if err := client.Requeue(ctx, job); err != nil {
			h.say("prolog: job %d: %v; its tasks are refused: %v", job, why, err)
			break
		}
		h.say("prolog: job %d: %v; it is back in the queue", job, why)
	}
	return ExitOK
}

// slurmClient is what unanswered needs of Slurm.
type slurmClient interface {
	Job(ctx context.Context, job uint32, node string) (slurm.JobFacts, error)
	Requeue(ctx context.Context, job uint32) error
}

// takesPart says whether this node is one of those that share cards: it has gresd's folder,
// which systemd makes, or the configuration. Others run every job as if this program were not there.
func (h *Hook) takesPart() bool {
	if h.Config.Found || h.Getenv("VGPU_SOCKET") != "" {
		return true
	}
	_, err := os.Stat(h.Config.RunDir)
	return err == nil
}

const (
	// commandWait bounds each of Slurm's commands of a job without an answer; there are up to
	// three.
	commandWait = 5 * time.Second
	// plainWait is how long a job without cards waits for an answer, where such a job has no share.
	plainWait = 2 * time.Second
)

// errLate: gresd was asked, and had no answer within the time.
var errLate = errors.New("gresd did not answer in time")

// within bounds the time for an answer, so that the Prolog ends before Slurm ends it and drains
// the node for that: PrologEpilogTimeout of the slurm.conf that slurmd names, less what comes
// after the answer. 0: Slurm waits for ever, or there is no such line.
func (h *Hook) within() time.Duration {
	text, err := os.ReadFile(h.slurmConf())
	if err != nil {
		return 0
	}
	found := prologTimeout.FindSubmatch(text)
	if found == nil {
		return 0
	}
	seconds, err := strconv.ParseUint(string(found[1]), 10, 16)
	if err != nil || seconds == 0 || seconds >= noTimeout {
		return 0
	}
	return max(time.Second, time.Duration(seconds)*time.Second-3*commandWait-time.Second)
}

// noTimeout is how Slurm writes that there is none.
const noTimeout = 65534

var prologTimeout = regexp.MustCompile(`(?im)^[ \t]*Prolog(?:Epilog)?Timeout[ \t]*=[ \t]*(\d+)`)

// slurmConf is the slurm.conf in force: the administrator's word, then slurmd's.
func (h *Hook) slurmConf() string {
	if h.Config.SlurmConf != "" {
		return h.Config.SlurmConf
	}
	return h.conf()
}

// late names what a time-out means.
func late(err error) error {
	if errors.Is(err, context.DeadlineExceeded) || errors.Is(err, os.ErrDeadlineExceeded) {
		return fmt.Errorf("%w: %w", errLate, err)
	}
	return err
}
