// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// maxText is the longest text that is passed on. Names are shorter; a longer
// option value is a mistake of its user, and stays one when it is cut.
const maxText = 256

// request reads what Slurm says of the job.
func (h *Hook) request(op wire.Op) (wire.Request, error) {
	job, err := strconv.ParseUint(h.Getenv("SLURM_JOB_ID"), 10, 32)
	if err != nil || job == 0 {
		return wire.Request{}, fmt.Errorf("SLURM_JOB_ID: %q: want a job id", h.Getenv("SLURM_JOB_ID"))
	}
	return wire.Request{
		Op:        op,
		JobID:     uint32(job),
		UID:       h.number("SLURM_JOB_UID"),
		GID:       h.number("SLURM_JOB_GID"),
		User:      h.text("SLURM_JOB_USER"),
		Account:   h.text("SLURM_JOB_ACCOUNT"),
		Partition: h.text("SLURM_JOB_PARTITION"),
		GPUs:      cardIndexes(h.Getenv("SLURM_JOB_GPUS")),
		Conf:      h.conf(),
		Node:      h.text("SLURMD_NODENAME"),
		Cluster:   h.cluster(),
		Restart:   h.number("SLURM_JOB_RESTART_COUNT"),
		Options:   h.options(),
	}, nil
}

func (h *Hook) options() wire.Options {
	return wire.Options{
		Mem:      h.text("SPANK_VGPU_MEM"),
		Cores:    h.text("SPANK_VGPU_CORES"),
		Cards:    h.text("SPANK_VGPU_CARDS"),
		Mode:     h.text("SPANK_VGPU_MODE"),
		Priority: h.text("SPANK_VGPU_PRIORITY"),
		Policy:   h.text("SPANK_VGPU_POLICY"),
		Engine:   h.text("SPANK_VGPU_ENGINE"),
	}
}

func (h *Hook) number(name string) uint32 {
	n, err := strconv.ParseUint(h.Getenv(name), 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// text returns a variable so that gresd accepts the line.
func (h *Hook) text(name string) string { return clean(h.Getenv(name)) }

// clean makes words fit for a request: SPANK variables hold whatever a user made of them, and must
// not make one that cannot be sent, because that would look like a broken node.
func clean(words string) string {
	words = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(words, "?"))
	if len(words) > maxText {
		words = strings.ToValidUTF8(words[:maxText], "")
	}
	return words
}

func (h *Hook) conf() string {
	if path := h.text("SLURM_CONF"); strings.HasPrefix(path, "/") {
		return path
	}
	return ""
}

// cardIndexes reads "0,2" and "0-2". What is no index is left out: gresd asks
// slurmctld for the truth.
func cardIndexes(list string) []int {
	var all []int
	for word := range strings.SplitSeq(list, ",") {
		some, _ := gpu.Ranges(word, 256)
		for _, card := range some {
			if len(all) < wire.MaxCards && !slices.Contains(all, card) {
				all = append(all, card)
			}
		}
	}
	return all
}
