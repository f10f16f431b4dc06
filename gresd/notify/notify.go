// SPDX-License-Identifier: Apache-2.0

// Package notify sends messages to slurmctld: about sick cards, to users of jobs, and about requeued
// jobs. It repeats messages about cards until slurmctld accepts them. It sends a notice to a user only
// once: the notice is also in the job's folder.
package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/cards"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/health"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

// tellEvery is the time until a message that slurmctld did not accept is sent again.
const tellEvery = time.Minute

// Notifier is made with [New]. [Notifier.Run] sends the messages.
type Notifier struct {
	config *config.InForce
	cards  *cards.Cards
	node   *node.Node
	grants *grant.Store
	log    *slog.Logger

	wake wakeup.Bell

	// Only TellNodes uses these: the text that slurmctld has, and when TellNodes compares it again.
	said string
	next time.Time

	mu      sync.Mutex
	notices []notice
}

type notice struct {
	jobID uint32
	text  string
}

// New returns a Notifier for this node.
func New(inForce *config.InForce, of *cards.Cards, here *node.Node, grants *grant.Store, log *slog.Logger) *Notifier {
	return &Notifier{config: inForce, cards: of, node: here, grants: grants, log: log, wake: wakeup.NewBell()}
}

// Wake sends all messages now.
func (n *Notifier) Wake() { n.wake.Ring() }

// Run sends messages until ctx is done. Run waits for slurmctld, so that no caller of the other methods
// does, except for [Notifier.Explain].
func (n *Notifier) Run(ctx context.Context) {
	timer := time.NewTimer(rand.N(tellEvery))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-n.wake:
		case <-timer.C:
			timer.Reset(node.Around(tellEvery))
		}
		n.TellNodes(ctx)
		n.tellNotices(ctx)
	}
}

// CardChanged is called when a card became sick or well. It sends a notice to the jobs on the card.
func (n *Notifier) CardChanged(c health.Change, jobs []uint32) {
	name := n.cards.Name(c.UUID)
	text := fmt.Sprintf("vgpu: health: card %s is well again", name)
	switch {
	case c.Faulty:
		text = fmt.Sprintf("vgpu: health: card %s: %s: what this job computes on it may be wrong or fail", name, c.Why)
	case c.Why != "":
		text = fmt.Sprintf("vgpu: health: card %s: %s: this job goes on, new ones do not get the card", name, c.Why)
	}
	for _, jobID := range jobs {
		n.TellJob(jobID, text)
	}
	n.Wake()
}

// TellJob writes a line into a job's folder, and slurmctld shows it to the job's user. A repeated text
// has no effect.
func (n *Notifier) TellJob(jobID uint32, text string) {
	added, err := n.grants.Tell(jobID, text)
	if err != nil {
		n.log.Warn("cannot write a notice into the job's folder", "job_id", jobID, "error", err)
	}
	if !added {
		return
	}
	n.mu.Lock()
	n.notices = append(n.notices, notice{jobID, text})
	n.mu.Unlock()
	n.Wake()
}

// tellNotices sends notices to users. If slurmctld does not answer, it drops all of them, because
// messages about cards must not wait for them. A dropped notice is still in the job's folder.
func (n *Notifier) tellNotices(ctx context.Context) {
	n.mu.Lock()
	notices := n.notices
	n.notices = nil
	n.mu.Unlock()
	for _, send := range notices {
		for _, conf := range n.node.All() {
			err := n.node.Slurm(conf).Notify(ctx, send.jobID, send.text)
			if err == nil {
				break
			}
			n.log.Debug("cannot send a notice to a user", "job_id", send.jobID, "error", err)
			if errors.Is(err, slurm.ErrSilent) {
				return
			}
		}
	}
}

// Explain sets gresd's comment of a job, which its user sees; "" removes it.
func (n *Notifier) Explain(ctx context.Context, conf string, jobID uint32, words string) {
	if err := n.node.Slurm(conf).Explain(ctx, jobID, words); err != nil {
		n.log.Warn("cannot set the job's comment in Slurm", "job_id", jobID, "error", err)
	}
}

// TellNodes sets the comment or the drain of this node in slurmctld by the state of its cards.
func (n *Notifier) TellNodes(ctx context.Context) {
	cfg := n.config.Get()
	if cfg.Health.Action == config.HealthNone {
		return
	}
	var wrong []string
	sick := n.cards.Sick()
	for _, c := range n.cards.Now().Cards {
		if why := sick[c.UUID]; why != "" {
			wrong = append(wrong, fmt.Sprintf("card %d: %s", c.Index, why))
		}
	}
	wrong = append(wrong, n.cards.UnreadCards()...)
	words, known := strings.Join(wrong, "; "), n.node.All()
	draining := cfg.Health.Action == config.HealthDrain
	hasText := false
	for name := range known {
		texts := n.cards.Written(name)
		hasText = hasText || len(texts.Reasons)+len(texts.Comments) > 0
	}
	if len(known) == 0 || words == "" && !hasText {
		return
	}
	if said := fmt.Sprint(words, draining); said != n.said {
		n.said, n.next = said, time.Time{}
	}
	if time.Now().Before(n.next) {
		return
	}
	var err error
	for name, conf := range known {
		err = errors.Join(err, health.Tell(ctx, n.node.Slurm(conf), n.cards, name, words, draining))
	}
	if err == nil {
		n.next = time.Now().Add(node.Around(node.Seldom))
	} else if ctx.Err() == nil {
		n.log.Warn("cannot report sick cards to slurmctld", "node", n.node.List(), "error", err)
	}
}
