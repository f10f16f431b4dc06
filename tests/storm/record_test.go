// SPDX-License-Identifier: Apache-2.0

package storm

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// What a client knows of a job of its own. It is what gresd is held to.
type belief int

const (
	askedGrant   belief = iota // no answer
	granted                    // the answer was yes
	refused                    // the answer was that the job is refused
	askedRelease               // no answer
	released                   // the answer was that it is released
)

func (b belief) String() string {
	return [...]string{"asked for", "granted", "refused", "to be released", "released"}[b]
}

type known struct {
	Job
	belief belief
	cores  int // compute share
	maybe  int // compute share that was asked for without an answer; 0: none
}

// Record is the answers that clients have got. It may be used by many.
type Record struct {
	node  *Node
	NoSet bool // clients never change a compute share

	mu      sync.Mutex
	jobs    map[uint32]*known
	last    uint32
	Answers int
}

// NewRecord is that of a node without jobs.
func NewRecord(n *Node) *Record { return &Record{node: n, jobs: map[uint32]*known{}} }

// ErrDead says that gresd gave no answer.
var ErrDead = errors.New("gresd is dead")

// Client asks for grants, changes and releases of its own jobs, until gresd dies
// or steps are done. The same seed asks the same, whatever the answers.
func (r *Record) Client(seed uint64, steps int) error {
	dice := rand.New(rand.NewPCG(seed, 1))
	var own []*known // jobs that hold something, or may
	for range steps {
		var err error
		switch kind := dice.IntN(10); {
		case kind < 5 || len(own) == 0:
			var job *known
			job, err = r.grant(dice)
			own = append(own, job)
		case kind < 6:
			err = r.set(own[dice.IntN(len(own))])
		default:
			i := dice.IntN(len(own))
			err = r.Release(own[i])
			own = slices.Delete(own, i, i+1)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (r *Record) grant(dice *rand.Rand) (*known, error) {
	share := []int{5, 10, 20, 30, 60, 100}[dice.IntN(6)]
	job := &known{Job: Job{UID: uint32(1000 + dice.IntN(3)), Card: dice.IntN(r.node.Cards), Share: share}, cores: share}
	if dice.IntN(2) == 0 {
		job.MemMiB = CardMiB * share / 100 / 2
	}
	r.mu.Lock()
	r.last++
	job.ID = r.last
	r.jobs[job.ID] = job
	r.mu.Unlock()
	if err := r.node.Submit(job.Job); err != nil {
		return job, err
	}
	return job, r.prolog(job)
}

func (r *Record) prolog(job *known) error {
	rep, err := r.node.Prolog(context.Background(), job.Job)
	if err != nil {
		return unanswered(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Answers++
	switch rep.Result {
	case wire.Granted:
		job.belief = granted
	case wire.Refused:
		job.belief = refused
	default:
		return fmt.Errorf("grant of job %d: %s: %s", job.ID, rep.Result, rep.Message)
	}
	return nil
}

// unanswered tells an answer that is an error from no answer.
func unanswered(err error) error {
	var said *wire.Error
	if errors.As(err, &said) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrDead, err)
}

func (r *Record) set(job *known) error {
	if job.belief != granted || r.NoSet {
		return nil
	}
	to := 1 + job.cores/2
	r.mu.Lock()
	job.maybe = to
	r.mu.Unlock()
	_, err := r.node.Client().Do(context.Background(), wire.Request{Op: wire.OpSet, JobID: job.ID, Cores: uint32(to)})
	if err != nil {
		return unanswered(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Answers++
	job.cores, job.maybe = to, 0
	return nil
}

// Release ends a job as its Epilog does. Slurm goes on to name it as one that lives
// until Settle, so that only gresd's own record can know better.
func (r *Record) Release(job *known) error {
	r.mu.Lock()
	job.belief = askedRelease
	r.mu.Unlock()
	_, err := r.node.Epilog(context.Background(), job.ID)
	if err != nil {
		return unanswered(err)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.Answers++
	job.belief = released
	return nil
}

// Settle asks again what was not answered, as slurmd does, and then ends all jobs.
func (r *Record) Settle() error {
	for _, id := range slices.Sorted(maps.Keys(r.jobs)) {
		job := r.jobs[id]
		if job.belief == askedGrant {
			if err := r.prolog(job); err != nil {
				return err
			}
		}
	}
	for _, id := range slices.Sorted(maps.Keys(r.jobs)) {
		if job := r.jobs[id]; job.belief != released {
			if err := r.Release(job); err != nil {
				return err
			}
		}
	}
	return nil
}

// Forget lets Slurm forget the jobs that were released, and those that were refused:
// they end when their task starts.
func (r *Record) Forget() error {
	for id, job := range r.jobs {
		if job.belief != released && job.belief != refused {
			continue
		}
		if err := r.node.End(id); err != nil {
			return err
		}
		delete(r.jobs, id)
	}
	return nil
}
