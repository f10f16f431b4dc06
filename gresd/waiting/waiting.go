// SPDX-License-Identifier: Apache-2.0

// Package waiting is the line of jobs that found no card on this node, where
// gresd chooses the cards. slurmctld only counts there: it starts a job whenever
// the free shares of all cards together are enough, and small jobs could take
// every share before a large one comes back. So the first in line that was sent
// back often enough gets cards held: no other job is placed on them, those that
// are there end, and the job finds room when it comes again.
//
// The line survives a restart. Its methods are for one goroutine at a time.
package waiting

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/durable"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

const (
	// HoldFor is how long cards that have the room are held for a job that does
	// not come: Slurm lets a requeued job start after AuthInfo=cred_expire, two
	// minutes unless the site says otherwise.
	HoldFor = 10 * time.Minute

	// most bounds the line. Jobs behind it are not counted until it is shorter.
	most = 200
)

// Job is one job in the line.
type Job struct {
	ID    uint32    `json:"job_id"`
	Since time.Time `json:"since"` // it was sent back for the first time
	Times uint32    `json:"times"` // it was sent back
	// Held are the cards that are held for it.
	Held []gpu.UUID `json:"held,omitempty"`
	// Room is since when these have had the room; zero: they do not have it.
	Room time.Time `json:"room,omitzero"`
}

// Line is the jobs, by Since.
type Line struct {
	path     string
	patience uint32
	jobs     []Job
}

// Open reads the line. patience is after how many times cards are held for a
// job; 0: never. A file that cannot be read is an empty line: jobs come back.
func Open(path string, patience uint32) (*Line, error) {
	l := &Line{path: path, patience: patience}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return l, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read waiting jobs: %w", err)
	}
	if json.Unmarshal(text, &l.jobs) != nil {
		l.jobs = nil
	}
	return l, nil
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

// SentBack counts that a job was sent back. turn says that cards should be held
// for it now: it is the first of those that have been patient, and nobody holds
// any.
func (l *Line) SentBack(id uint32, now time.Time) (times uint32, turn bool, err error) {
	i := l.find(id)
	if i < 0 {
		if len(l.jobs) >= most {
			return 1, false, nil
		}
		l.jobs = append(l.jobs, Job{ID: id, Since: now})
		i = len(l.jobs) - 1
	}
	l.jobs[i].Times++
	_, _, held := l.Holder()
	first := slices.IndexFunc(l.jobs, func(j Job) bool { return l.patience > 0 && j.Times >= l.patience })
	return l.jobs[i].Times, !held && first == i, l.save()
}

// Holder returns the job for which cards are held.
func (l *Line) Holder() (id uint32, cards []gpu.UUID, ok bool) {
	i := slices.IndexFunc(l.jobs, func(j Job) bool { return len(j.Held) > 0 })
	if i < 0 {
		return 0, nil, false
	}
	return l.jobs[i].ID, l.jobs[i].Held, true
}

// Hold holds cards for a job of the line.
func (l *Line) Hold(id uint32, cards []gpu.UUID) error {
	i := l.find(id)
	if i < 0 {
		return nil
	}
	l.jobs[i].Held, l.jobs[i].Room = slices.Clone(cards), time.Time{}
	return l.save()
}

// Look says whether the cards of the holder have its room now. One that has not
// come for HoldFor while they had goes to the end of the line; late is then true.
func (l *Line) Look(room bool, now time.Time) (late bool, err error) {
	id, _, ok := l.Holder()
	if !ok {
		return false, nil
	}
	i := l.find(id)
	j := &l.jobs[i]
	switch {
	case room && j.Room.After(now): // the clock was set back
		j.Room = now
	case room == !j.Room.IsZero() && (!room || now.Sub(j.Room) < HoldFor):
		return false, nil
	case !room:
		j.Room = time.Time{}
	case j.Room.IsZero():
		j.Room = now
	default:
		l.jobs = append(slices.Delete(l.jobs, i, i+1), Job{ID: id, Since: now})
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

func (l *Line) save() error {
	text, err := json.Marshal(l.jobs)
	if err == nil {
		err = durable.WriteFile(l.path, append(text, '\n'))
	}
	if err != nil {
		return fmt.Errorf("remember waiting jobs: %w", err)
	}
	return nil
}
