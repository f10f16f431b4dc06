// SPDX-License-Identifier: Apache-2.0

package watch

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

var (
	jobID   = regexp.MustCompile(`^JobId=(\d+) `)
	jobName = regexp.MustCompile(` JobName=(\S+) `)
	state   = regexp.MustCompile(` JobState=(\S+) `)
	gres    = regexp.MustCompile(` GRES=(\S+)`)
	words   = regexp.MustCompile(`(?:^|,)(gpu|shard|vgpu)(?::[A-Za-z]\w*)?(?::(\d+))?\(([^)]*)\)`)
)

// holding are states in which a job has its resources.
var holding = []string{"RUNNING", "COMPLETING", "SUSPENDED", "STOPPED", "CONFIGURING", "SIGNALING"}

// ParseJobs reads scontrol show job -d -o: what jobs hold of the node's cards,
// and the name of each job.
func ParseJobs(text string) (claims []Claim, names map[int]string, err error) {
	names = map[int]string{}
	for line := range strings.Lines(text) {
		id, name, st := jobID.FindStringSubmatch(line), jobName.FindStringSubmatch(line), state.FindStringSubmatch(line)
		if id == nil || name == nil || st == nil {
			continue // "No jobs in the system"
		}
		job, _ := strconv.Atoi(id[1])
		names[job] = name[1]
		if !slices.Contains(holding, st[1]) {
			continue
		}
		for _, held := range gres.FindAllStringSubmatch(line, -1) {
			of, err := parseGRES(job, held[1])
			if err != nil {
				return nil, nil, err
			}
			claims = append(claims, of...)
		}
	}
	return claims, names, nil
}

// parseGRES reads shard:sim:30(IDX:2), shard:sim:30(0/100,30/100), gpu:sim:2(IDX:0-1)
// and vgpu(CNT:80).
func parseGRES(job int, list string) ([]Claim, error) {
	var claims []Claim
	for _, w := range words.FindAllStringSubmatch(list, -1) {
		name, where := w[1], w[3]
		total, _ := strconv.Atoi(w[2])
		if count, is := strings.CutPrefix(where, "CNT:"); is {
			n, err := strconv.Atoi(count)
			if err != nil || name != "vgpu" {
				return nil, fmt.Errorf("job %d: GRES=%s", job, list)
			}
			claims = append(claims, Claim{Job: job, Card: -1, Units: n})
			continue
		}
		if where == "IDX:" && total == 0 {
			continue // 22.05, of a job whose shards it has lost
		}
		if index, is := strings.CutPrefix(where, "IDX:"); is {
			cards, err := indexes(index)
			if err != nil || (name == "shard" && len(cards) != 1) || (name == "gpu" && len(cards) != total) {
				return nil, fmt.Errorf("job %d: GRES=%s: %w", job, list, err)
			}
			for _, card := range cards {
				units := full
				if name == "shard" {
					units = total
				}
				claims = append(claims, Claim{Job: job, Card: card, Units: units})
			}
			continue
		}
		for card, pair := range strings.Split(where, ",") {
			held, _, _ := strings.Cut(pair, "/")
			n, err := strconv.Atoi(held)
			if err != nil {
				return nil, fmt.Errorf("job %d: GRES=%s: %w", job, list, err)
			}
			if n > 0 {
				claims = append(claims, Claim{Job: job, Card: card, Units: n})
			}
		}
	}
	return claims, nil
}

func indexes(list string) ([]int, error) {
	var all []int
	for _, part := range strings.Split(list, ",") {
		low, high, isRange := strings.Cut(part, "-")
		if !isRange {
			high = low
		}
		from, err := strconv.Atoi(low)
		to, err2 := strconv.Atoi(high)
		if err := errors.Join(err, err2); err != nil {
			return nil, err
		}
		for i := from; i <= to; i++ {
			all = append(all, i)
		}
	}
	return all, nil
}

// cards gives an index to each UUID.
type cards map[string]int

// claims are what records give.
func (c cards) claims(records map[uint32]json.RawMessage) ([]Claim, error) {
	var claims []Claim
	for _, id := range slices.Sorted(maps.Keys(records)) {
		var r struct {
			Placement struct {
				Cards []struct {
					UUID   string `json:"gpu_uuid"`
					Share  int    `json:"share"`
					Memory uint64 `json:"memory_bytes"`
				} `json:"cards"`
			} `json:"placement"`
		}
		if err := json.Unmarshal(records[id], &r); err != nil {
			return nil, fmt.Errorf("ledger: job %d: %w", id, err)
		}
		for _, card := range r.Placement.Cards {
			index, known := c[card.UUID]
			if !known {
				return nil, fmt.Errorf("ledger: job %d: no card has the UUID %q", id, card.UUID)
			}
			claims = append(claims, Claim{Job: int(id), Card: index, Units: card.Share, Memory: card.Memory})
		}
	}
	return claims, nil
}

// grants reads the files that bind jobs. A file that is there before all others
// were read, and is the same one after, was there together with them.
func (c cards) grants(folder string) ([]Claim, error) {
	before, _, err := c.readGrants(folder)
	if err != nil {
		return nil, err
	}
	after, claims, err := c.readGrants(folder)
	return slices.DeleteFunc(claims, func(claim Claim) bool {
		return before[claim.Job] == 0 || before[claim.Job] != after[claim.Job]
	}), err
}

// readGrants also returns the inode of each job's file.
func (c cards) readGrants(folder string) (map[int]uint64, []Claim, error) {
	files, err := filepath.Glob(filepath.Join(folder, "*", "grant"))
	inodes, claims := map[int]uint64{}, []Claim{}
	for _, file := range files {
		info, statErr := os.Stat(file)
		spec, _, readErr := libvgpu.ReadGrant(file)
		if errors.Is(statErr, fs.ErrNotExist) || errors.Is(readErr, fs.ErrNotExist) || errors.Is(readErr, libvgpu.ErrNotGrant) {
			continue // gone, or not whole yet
		}
		if err := errors.Join(statErr, readErr); err != nil {
			return nil, nil, err
		}
		if spec.Revoked {
			continue
		}
		inodes[int(spec.JobID)] = inode(info)
		for _, card := range spec.Cards {
			index, known := c[card.UUID]
			if !known {
				return nil, nil, fmt.Errorf("grant of job %d: no card has the UUID %q", spec.JobID, card.UUID)
			}
			claims = append(claims, Claim{Job: int(spec.JobID), Card: index, Units: int(card.Share), Memory: card.MemLimit})
		}
	}
	return inodes, claims, err
}

// Ends reads the file of jobcomp/filetxt: the last state of each job, by name
// and task of an array, which is 0 where there is none.
func Ends(path string) (ends map[string]map[int]string, err error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	ends = map[string]map[int]string{}
	for line := range strings.Lines(string(text)) {
		values := map[string]string{}
		for _, word := range strings.Fields(line) {
			if key, value, is := strings.Cut(word, "="); is {
				values[key] = value
			}
		}
		task, _ := strconv.Atoi(values["ArrayTaskId"])
		name := values["Name"]
		if ends[name] == nil {
			ends[name] = map[int]string{}
		}
		ends[name][task] = values["JobState"]
	}
	return ends, nil
}
