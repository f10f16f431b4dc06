// SPDX-License-Identifier: Apache-2.0

package notify

import (
	"context"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
)

// slurmctld does not know that a card is out of use, and gives a requeued job the same card again.
// Slurm delays a requeued job for the lifetime of a credential (AuthInfo=cred_expire, 120 s). From the
// longDelayAfter-th restart on, gresd delays it for longer. gresd does not delay a job that found no
// room: the room that is reserved for the job must not wait for it.
const (
	longDelayAfter = 3
	firstDelay     = 2 * time.Minute
	longestDelay   = 10 * time.Minute
	// afterCredential is the time for the job's Epilog and for the difference of two clocks.
	afterCredential = 5 * time.Second
)

// delayOf returns the delay of a job after that many restarts; 0: that of Slurm.
func delayOf(restarts uint32) time.Duration {
	if restarts < longDelayAfter {
		return 0
	}
	return min(firstDelay<<min(restarts-longDelayAfter, 8), longestDelay)
}

// PutOff delays a requeued job for longer than Slurm does.
func (n *Notifier) PutOff(ctx context.Context, conf string, jobID, restarts uint32) {
	delay := delayOf(restarts)
	if delay == 0 {
		return
	}
	settings, err := n.node.Settings(ctx, conf)
	if err == nil {
		err = n.node.Slurm(conf).Delay(ctx, jobID, max(delay, settings.CredentialLife+afterCredential))
	}
	if err != nil {
		n.log.Warn("cannot delay a requeued job", "job_id", jobID, "error", err)
	}
}

// Started is called when a job has its grant. It removes gresd's comment; explained reports whether
// the job has one.
func (n *Notifier) Started(ctx context.Context, conf string, jobID uint32, explained bool) {
	if explained && n.config.Get().Placement.By != config.PlacementGresd {
		n.Explain(ctx, conf, jobID, "")
	}
}
