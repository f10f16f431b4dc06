// SPDX-License-Identifier: Apache-2.0

package storm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// held is what something says that a job holds; all of it is compared.
type held struct {
	granted    bool
	uid        uint32
	card       int
	share      int
	cores      int
	memory     uint64
	uuid       string
	cardsOfJob int
}

// onDisk is what the ledger says.
func (n *Node) onDisk() (map[uint32]held, error) {
	entries, err := ReadLedger(n.Ledger())
	if err != nil {
		return nil, err
	}
	jobs := map[uint32]held{}
	for id, e := range entries {
		h := held{granted: e.Granted, uid: e.UID, cardsOfJob: len(e.Cards)}
		for _, c := range e.Cards {
			h.card, h.share, h.cores, h.memory, h.uuid = c.Index, c.Share, c.Cores, c.Memory, c.UUID
		}
		jobs[id] = h
	}
	return jobs, nil
}

// answered is what gresd says now.
func (n *Node) answered() (map[uint32]held, error) {
	rep, err := n.Client().Do(context.Background(), wire.Request{Op: wire.OpJobs})
	if err != nil {
		return nil, err
	}
	jobs := map[uint32]held{}
	for _, j := range rep.Jobs {
		h := held{granted: j.State == "granted", uid: j.UID, cardsOfJob: len(j.Cards)}
		for _, c := range j.Cards {
			h.card, h.share, h.cores, h.memory, h.uuid = c.Index, int(c.Share), int(c.Cores), c.LimitBytes, c.UUID
		}
		jobs[j.JobID] = h
	}
	return jobs, nil
}

// CheckDead holds what a dead gresd has left against the record: every answer was
// durable before it was given.
func (r *Record) CheckDead() error {
	jobs, err := r.node.onDisk()
	if err != nil {
		return err
	}
	errs := []error{r.compare("ledger of the dead gresd", jobs)}
	for id, job := range r.jobs {
		if job.belief == granted {
			errs = append(errs, r.node.files(id, jobs[id]))
		}
	}
	return errors.Join(errs...)
}

// CheckAlive holds ledger, files and answers of a gresd that was started again
// against the record and against each other.
func (r *Record) CheckAlive() error {
	live, err := r.node.answered()
	if err != nil {
		return err
	}
	disk, err := r.node.onDisk()
	if err != nil {
		return err
	}
	errs := []error{r.compare("answers", live), r.compare("ledger", disk)}
	folders, err := os.ReadDir(r.node.JobsDir())
	if err != nil {
		return err
	}
	for _, f := range folders {
		id, err := strconv.ParseUint(f.Name(), 10, 32)
		if _, recorded := live[uint32(id)]; err != nil || !recorded {
			errs = append(errs, fmt.Errorf("folder %q belongs to no job", f.Name()))
		}
	}
	for id, l := range live {
		if d := disk[id]; d != l {
			errs = append(errs, fmt.Errorf("job %d: the ledger says %+v, gresd answers %+v", id, d, l))
		}
		if l.granted {
			errs = append(errs, r.node.files(id, l))
		} else if _, err := os.Stat(filepath.Join(r.node.JobsDir(), fmt.Sprint(id), "refused")); err != nil {
			errs = append(errs, fmt.Errorf("job %d is refused without a word: %w", id, err))
		}
	}
	return errors.Join(append(errs, r.node.checkCards(live))...)
}

// checkCards compares gresd's sums with those of its jobs.
func (n *Node) checkCards(jobs map[uint32]held) error {
	rep, err := n.Client().Do(context.Background(), wire.Request{Op: wire.OpStatus})
	if err != nil {
		return err
	}
	var errs []error
	for _, card := range rep.Status.Cards {
		var share, memory uint64
		for _, h := range jobs {
			if h.granted && h.uuid == card.UUID {
				share += uint64(h.share)
				memory += h.memory
			}
		}
		if uint64(card.Share) != share || card.GrantedBytes != memory {
			errs = append(errs, fmt.Errorf("card %d: status says %d %% and %d bytes, its jobs hold %d %% and %d bytes",
				card.Index, card.Share, card.GrantedBytes, share, memory))
		}
	}
	return errors.Join(errs...)
}

// compare holds one account of all jobs against the record.
func (r *Record) compare(what string, jobs map[uint32]held) error {
	var errs []error
	wrong := func(format string, args ...any) { errs = append(errs, fmt.Errorf(what+": "+format, args...)) }
	share, memory := map[int]int{}, map[int]uint64{}
	for id, h := range jobs {
		if r.jobs[id] == nil {
			wrong("job %d: nobody asked for it: %+v", id, h)
		}
		if h.granted {
			share[h.card] += h.share
			memory[h.card] += h.memory
		}
	}
	for card, sum := range share {
		if sum > 100 || memory[card] > CardMiB<<20 {
			wrong("card %d: %d %% and %d MiB are granted", card, sum, memory[card]>>20)
		}
	}
	for id, job := range r.jobs {
		h, there := jobs[id]
		switch job.belief {
		case granted:
			if !there || !h.granted {
				wrong("job %d was granted and is lost: %+v", id, h)
			}
		case refused:
			if there && h.granted {
				wrong("job %d was refused and holds %+v", id, h)
			}
		case released:
			if there {
				wrong("job %d was released and is back: %+v", id, h)
			}
		}
		if !there || !h.granted {
			continue
		}
		bytes := uint64(job.MemMiB) << 20
		if bytes == 0 {
			bytes = uint64(CardMiB) << 20 * uint64(job.Share) / 100
		}
		if h.uid != job.UID || h.card != job.Card || h.share != job.Share || h.cardsOfJob != 1 || h.memory>>20 != bytes>>20 ||
			h.cores != job.cores && (job.maybe == 0 || h.cores != job.maybe) {
			wrong("job %d, %s: holds %+v, asked for %+v, compute share %d", id, job.belief, h, job.Job, job.cores)
		}
	}
	return errors.Join(errs...)
}

// files says what is wrong with the grant and the cache of a job.
func (n *Node) files(id uint32, h held) error {
	dir := filepath.Join(n.JobsDir(), fmt.Sprint(id))
	spec, _, err := libvgpu.ReadGrant(filepath.Join(dir, "grant"))
	if err != nil {
		return err
	}
	if spec.JobID != id || spec.UID != h.uid || spec.Revoked || len(spec.Cards) != 1 ||
		spec.Cards[0].UUID != h.uuid || spec.Cards[0].MemLimit != h.memory || int(spec.Cards[0].Share) != h.share {
		return fmt.Errorf("grant of job %d says %+v, want %+v", id, spec, h)
	}
	view, err := libvgpu.ReadCache(filepath.Join(dir, "cache"))
	if err != nil {
		return err
	}
	if view.JobID != id || len(view.Cards) != 1 || view.Cards[0].UUID != h.uuid {
		return fmt.Errorf("cache of job %d says %+v, want %+v", id, view, h)
	}
	return nil
}
