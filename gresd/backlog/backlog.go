// SPDX-License-Identifier: Apache-2.0

// Package backlog is the line of jobs that found no card on this node, where
// gresd chooses the cards. slurmctld only counts there: it starts a job whenever
// the free shares of all cards together are enough, and small jobs could take
// every share before a large one. So the first in line that found no room often
// enough gets cards held: no other job is placed on them, and those that are there
// end. Cards that have the room at last are held only for a job that waits on the node,
// and not for one that waits for Slurm's requeue delay.
//
// The line survives a restart. Its methods are for one goroutine at a time.
package backlog

import (
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

const (
	// HoldFor is how long cards are held for a job that does not come: Slurm lets a
	// requeued job start after AuthInfo=cred_expire, two minutes unless the site says
	// otherwise.
	HoldFor = 10 * time.Minute

	// most bounds the line. Jobs behind it are not counted until it is shorter.
	most = 200
)

// Job is one job in the line.
type Job struct {
	ID    uint32    `json:"job_id"`
	Since time.Time `json:"since"` // it found no room for the first time
	Times uint32    `json:"times"` // it came and found no room
	// Request is what it asks for.
	Request request.Request `json:"request,omitzero"`
	// Held are the cards that are held for it.
	Held []gpu.UUID `json:"held,omitempty"`
	// Seen is when it was here last.
	Seen time.Time `json:"seen,omitzero"`
}

// Line is the jobs, by Since.
type Line struct {
	// Save writes the jobs. It is [Write], unless the user of the line writes them later.
	Save     func(path string, jobs []Job) error
	path     string
	patience uint32
	jobs     []Job
}

// Open reads the line. patience is after how many times without room cards are held
// for a job; 0: never. A file that cannot be read is an empty line: jobs come back.
func Open(path string, patience uint32, log *slog.Logger) (*Line, error) {
	jobs, err := atomicfile.ReadJSON[[]Job](path, log)
	if err != nil {
		return nil, fmt.Errorf("read waiting jobs: %w", err)
	}
	return &Line{Save: Write, path: path, patience: patience, jobs: jobs}, nil
}

// Jobs returns the line.
func (l *Line) Jobs() []Job { return slices.Clone(l.jobs) }

// Get returns one job of the line.
func (l *Line) Get(id uint32) (Job, bool) {
	if i := l.find(id); i >= 0 {
		return l.jobs[i], true
	}
	return Job{}, false
}

// NoRoom counts that a job has come and found no room.
func (l *Line) NoRoom(id uint32, req request.Request, now time.Time) (times uint32, err error) {
	i := l.find(id)
	if i < 0 {
		if len(l.jobs) >= most {
			return 1, nil
		}
		l.jobs = append(l.jobs, Job{ID: id, Since: now})
		i = len(l.jobs) - 1
	}
	l.jobs[i].Times++
	l.jobs[i].Request, l.jobs[i].Seen = req, now
	return l.jobs[i].Times, l.save()
}

// Next is the job for which cards should be held now: the first of those that have
// been patient, where cards are held for nobody.
func (l *Line) Next() (job Job, ok bool) {
	first := slices.IndexFunc(l.jobs, func(j Job) bool { return l.patience > 0 && j.Times >= l.patience })
	if _, held := l.Holder(); held || first < 0 {
		return Job{}, false
	}
	return l.jobs[first], true
}

// Kept are the cards that no other job may have now, and the job for which they are
// held. here says of a job that it waits on the node; room, whether the cards that are
// held for it could serve it. Cards with the room are not left idle for a job that is in
// Slurm's queue: who is here has them, and the job waits on.
func (l *Line) Kept(here func(uint32) bool, room func(Job) bool) (id uint32, cards []gpu.UUID) {
	job, ok := l.Holder()
	if !ok || !here(job.ID) && room(job) {
		return 0, nil
	}
	return job.ID, job.Held
}

// Holder returns the job for which cards are held.
func (l *Line) Holder() (job Job, ok bool) {
	i := slices.IndexFunc(l.jobs, func(j Job) bool { return len(j.Held) > 0 })
	if i < 0 {
		return Job{}, false
	}
	return l.jobs[i], true
}

// Hold holds cards for a job of the line.
func (l *Line) Hold(id uint32, cards []gpu.UUID) error {
	i := l.find(id)
	if i < 0 {
		return nil
	}
	l.jobs[i].Held = slices.Clone(cards)
	return l.save()
}

// Look sees to it that cards are not held for a job that has not been here for HoldFor:
// somebody holds it, or it waits for CPUs. It goes to the end of the line; late is then
// true.
func (l *Line) Look(now time.Time, here func(uint32) bool) (late bool, err error) {
	holder, ok := l.Holder()
	if !ok {
		return false, nil
	}
	i := l.find(holder.ID)
	switch {
	case here(holder.ID), holder.Seen.After(now): // the clock was set back
		l.jobs[i].Seen = now
	case now.Sub(holder.Seen) < HoldFor:
		return false, nil
	default:
		l.jobs = append(slices.Delete(l.jobs, i, i+1), Job{ID: holder.ID, Since: now, Request: holder.Request, Seen: now})
		late = true
	}
	return late, l.save()
}

// Leave takes a job out of the line: it was placed, or is not wanted any more.
func (l *Line) Leave(id uint32) error {
	i := l.find(id)
	if i < 0 {
		return nil
	}
	l.jobs = slices.Delete(l.jobs, i, i+1)
	return l.save()
}

func (l *Line) find(id uint32) int {
	return slices.IndexFunc(l.jobs, func(j Job) bool { return j.ID == id })
}

func (l *Line) save() error { return l.Save(l.path, l.jobs) }

// Write replaces the file of a line.
func Write(path string, jobs []Job) error {
	if err := atomicfile.WriteJSON(path, jobs); err != nil {
		return fmt.Errorf("remember waiting jobs: %w", err)
	}
	return nil
}
