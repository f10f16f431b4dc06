// SPDX-License-Identifier: Apache-2.0

// Package outbox sends messages to slurmctld: about sick cards, to users of jobs, and about requeued
// jobs. It repeats messages about cards and earlier starts of requeued jobs until slurmctld accepts
// them. It sends a notice to a user only once: the notice is also in the job's folder.
package outbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/cards"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/health"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
)

// tellEvery is the time until what slurmctld did not take is tried again.
const tellEvery = time.Minute

// Outbox is made with [Open]; [Outbox.Run] empties it.
type Outbox struct {
	config *config.InForce
	cards  *cards.Cards
	node   *node.Node
	grants *grant.Store
	log    *slog.Logger

	wake wakeup.Bell
	well atomic.Bool // a card became well

	// For TellNodes alone: what slurmctld was told, and when it is asked again whether it
	// still says so.
	said string
	next time.Time

	mu      sync.Mutex
	notices []notice

	queued queued
}

type notice struct {
	jobID uint32
	text  string
}

// Open reads what an earlier gresd has left to say.
func Open(inForce *config.InForce, of *cards.Cards, here *node.Node, grants *grant.Store, log *slog.Logger) (*Outbox, error) {
	o := &Outbox{config: inForce, cards: of, node: here, grants: grants, log: log, wake: wakeup.NewBell()}
	if err := o.queued.open(inForce.Get().Paths.Queued(), log); err != nil {
		return nil, err
	}
	// A card that became well meanwhile is not told of any more.
	if o.Waits() && len(of.Sick()) == 0 && of.Now().Err == nil {
		o.well.Store(true)
		o.Wake()
	}
	return o, nil
}

// Wake has all said that is still to be said.
func (o *Outbox) Wake() { o.wake.Ring() }

// Run says to slurmctld what is still to be said, until ctx is done. Only this waits for
// slurmctld.
func (o *Outbox) Run(ctx context.Context) {
	timer := time.NewTimer(rand.N(tellEvery))
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-o.wake:
		case <-timer.C:
			timer.Reset(node.Around(tellEvery))
		}
		o.TellNodes(ctx)
		o.tellNotices(ctx)
		o.Retry(ctx)
	}
}

// CardChanged is called when a card became sick or well. The jobs on it are told.
func (o *Outbox) CardChanged(c health.Change, jobs []uint32) {
	name := o.cards.Name(c.UUID)
	text := fmt.Sprintf("vgpu: health: card %s is well again", name)
	switch {
	case c.Faulty:
		text = fmt.Sprintf("vgpu: health: card %s: %s: what this job computes on it may be wrong or fail", name, c.Why)
	case c.Why != "":
		text = fmt.Sprintf("vgpu: health: card %s: %s: this job goes on, new ones do not get the card", name, c.Why)
	}
	for _, jobID := range jobs {
		o.TellJob(jobID, text)
	}
	if c.Why == "" {
		o.well.Store(true)
	}
	o.Wake()
}

// CardIsWell lets jobs start that were put off for a card that the driver reads now.
func (o *Outbox) CardIsWell() {
	o.well.Store(true)
	o.Wake()
}

// TellJob writes a line into a job's folder, and has slurmctld show it to the
// job's user. The same text is told once.
func (o *Outbox) TellJob(jobID uint32, text string) {
	added, err := o.grants.Tell(jobID, text)
	if err != nil {
		o.log.Warn("a job could not be told", "job_id", jobID, "error", err)
	}
	if !added {
		return
	}
	o.mu.Lock()
	o.notices = append(o.notices, notice{jobID, text})
	o.mu.Unlock()
	o.Wake()
}

// tellNotices sends notices to users. If slurmctld does not answer, it drops all of them, because
// messages about cards must not wait for them. A dropped notice is still in the job's folder.
func (o *Outbox) tellNotices(ctx context.Context) {
	o.mu.Lock()
	notices := o.notices
	o.notices = nil
	o.mu.Unlock()
	for _, n := range notices {
		for _, conf := range o.node.All() {
			err := o.node.Slurm(conf).Notify(ctx, n.jobID, n.text)
			if err == nil {
				break
			}
			o.log.Debug("notify", "job_id", n.jobID, "error", err)
			if errors.Is(err, slurm.ErrSilent) {
				return
			}
		}
	}
}

// Explain leaves words for a job's user in Slurm now, or takes them away, "". Nothing depends on
// them.
func (o *Outbox) Explain(ctx context.Context, conf string, jobID uint32, words string) {
	if err := o.node.Slurm(conf).Explain(ctx, jobID, words); err != nil {
		o.log.Warn("tell the user of a job", "job_id", jobID, "error", err)
	}
}

// TellNodes makes what slurmctld says of this node fit its cards.
func (o *Outbox) TellNodes(ctx context.Context) {
	cfg := o.config.Get()
	if cfg.Health.Action == config.HealthNone {
		return
	}
	var wrong []string
	sick := o.cards.Sick()
	for _, c := range o.cards.Now().Cards {
		if why := sick[c.UUID]; why != "" {
			wrong = append(wrong, fmt.Sprintf("card %d: %s", c.Index, why))
		}
	}
	wrong = append(wrong, o.cards.UnreadCards()...)
	words, known := strings.Join(wrong, "; "), o.node.All()
	draining := cfg.Health.Action == config.HealthDrain
	silent := cfg.Paths.Silent()
	if words == "" && (len(known) == 0 || isThere(silent) || !isThere(cfg.Paths.StateOfCards())) {
		return // also where no card was ever sick
	}
	if said := fmt.Sprint(words, draining); said != o.said {
		o.said, o.next = said, time.Time{}
	}
	if time.Now().Before(o.next) {
		return
	}
	err := atomicfile.Remove(silent)
	for name, conf := range known {
		err = errors.Join(err, health.Tell(ctx, o.node.Slurm(conf), o.cards, name, words, draining))
	}
	if err == nil && words == "" {
		err = os.WriteFile(silent, nil, 0o600)
	}
	if err == nil {
		o.next = time.Now().Add(node.Around(node.Seldom))
	} else if ctx.Err() == nil {
		o.log.Warn("slurmctld could not be told about sick cards", "node", o.node.List(), "error", err)
	}
}

func isThere(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}
