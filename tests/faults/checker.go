// SPDX-License-Identifier: Apache-2.0

package faults

import (
	"fmt"
	"os"
	"sync"
	"time"
)

// Checker looks at a node again and again, beside what is done to it.
type Checker struct {
	mu      sync.Mutex
	inv     *Invariants
	eyes    *Observer
	slurm   *SlurmView
	wrong   []string
	samples int

	stop chan struct{}
	done sync.WaitGroup
}

// Watch starts to look at the first node of the cluster that runs.
func Watch(node string, every time.Duration) (*Checker, error) {
	eyes, err := NewObserver()
	if err != nil {
		return nil, err
	}
	k := &Checker{inv: NewInvariants(), eyes: eyes, stop: make(chan struct{})}
	k.repeat(every, k.look)
	// slurmctld may be the one that does not answer: it is asked beside.
	k.repeat(250*time.Millisecond, func() {
		if view, err := AskSlurm(node); err == nil {
			k.mu.Lock()
			k.slurm = view
			k.mu.Unlock()
		}
	})
	return k, nil
}

func (k *Checker) repeat(every time.Duration, do func()) {
	k.done.Add(1)
	go func() {
		defer k.done.Done()
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-k.stop:
				return
			case <-tick.C:
				do()
			}
		}
	}()
}

func (k *Checker) look() {
	k.mu.Lock()
	defer k.mu.Unlock()
	o := k.eyes.Look()
	o.Slurm = k.slurm
	k.samples++
	k.note(o.At, k.inv.Check(o))
}

func (k *Checker) note(at time.Time, wrong []string) {
	const most = 200 // a node that is wrong is wrong in every observation
	for _, w := range wrong {
		if len(k.wrong) < most {
			k.wrong = append(k.wrong, at.Format("15:04:05.000 ")+w)
		}
	}
}

// Expect tells what a job asked for, before it can run.
func (k *Checker) Expect(job int, w Want) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inv.want[uint32(job)] = w
}

// Orphan says that the processes of a job have outlived their slurmstepd, which
// only Slurm could have ended.
func (k *Checker) Orphan(job int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inv.exempt[uint32(job)] = true
}

// Ended says that the Epilog of a job has begun: its grant may go.
func (k *Checker) Ended(job int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inv.ended[uint32(job)] = true
}

// AllowDrain says that the node may be drained for a reason with these words; "": for none.
func (k *Checker) AllowDrain(words string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.inv.drainOK = words
}

// Rebooted says that the simulated cards are other ones.
func (k *Checker) Rebooted() error {
	eyes, err := NewObserver()
	k.mu.Lock()
	defer k.mu.Unlock()
	if err == nil {
		k.eyes = eyes
	}
	return err
}

// Wrong takes what was found wrong since the last call.
func (k *Checker) Wrong() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	wrong := k.wrong
	k.wrong = nil
	return wrong
}

// Released checks a node without jobs.
func (k *Checker) Released() []string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.inv.Released(k.eyes.Look())
}

// Counts are the observations so far, the invariants looked at in them, and how
// often a job that had its card alone was looked at.
func (k *Checker) Counts() (samples, checked, alone int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.samples, k.inv.Checked, k.inv.Alone
}

// Over is the most GPU time that a job had beyond its share in three seconds, and what there
// is to find out why.
func (k *Checker) Over() (alone, beside time.Duration, told string) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.inv.Over.Alone, k.inv.Over.Beside, k.inv.Over.BesideTold
}

// Stop ends it.
func (k *Checker) Stop() {
	close(k.stop)
	k.done.Wait()
}

// HostName is the node that the checker asks Slurm about.
func HostName() (string, error) {
	name, err := os.Hostname()
	if err != nil {
		return "", fmt.Errorf("name of the node: %w", err)
	}
	return name, nil
}
