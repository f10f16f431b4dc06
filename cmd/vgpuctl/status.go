// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/web"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// queueTimeout bounds the question to Slurm: without its answer the rest is
// printed all the same.
const queueTimeout = 3 * time.Second

// statusView is the answer of gresd and what Slurm says. Queue is nil where it
// was not asked or has not answered.
type statusView struct {
	*wire.Status
	Queue []web.Waiting `json:"queue"`
}

func (s *settings) status(cmd *cobra.Command, withQueue bool) error {
	rep, err := s.ask(cmd.Context(), wire.Request{Op: wire.OpStatus})
	if err != nil {
		return err
	}
	v := statusView{Status: rep.Status}
	if withQueue {
		v.Queue = s.queue(cmd.Context(), rep.Status.Scontrol)
	}
	out := cmd.OutOrStdout()
	return s.print(out, v, func(w io.Writer) error {
		p := s.paint(w)
		if err := writeStatus(w, p, *v.Status); err != nil {
			return err
		}
		return writeQueue(w, p, v.Queue)
	})
}

// queue asks as the user who asks us: Slurm decides what he may see, and one who
// is not root is told of his own jobs only, as by gresd. scontrol is where gresd finds Slurm's commands, "" where
// it does not.
func (s *settings) queue(ctx context.Context, scontrol string) []web.Waiting {
	uid := -1
	if os.Geteuid() != 0 {
		uid = os.Getuid()
	}
	text, err := s.slurm(scontrol, queueTimeout).Pending(ctx, uid)
	if err != nil {
		return nil // no Slurm here, or it does not answer: that is doctor's matter
	}
	return parseQueue(text)
}

// parseQueue keeps the jobs that ask for a share. Their users wrote what they ask for:
// nothing of it may command the terminal of who looks.
func parseQueue(text string) []web.Waiting {
	jobs := []web.Waiting{}
	for line := range strings.Lines(text) {
		f := strings.SplitN(strings.TrimSpace(strings.Map(visible, line)), "|", 4)
		if len(f) == 4 && (strings.Contains(f[2], "shard") || strings.Contains(f[2], "vgpu")) {
			jobs = append(jobs, web.Waiting{JobID: f[0], User: f[1], GRES: strings.TrimPrefix(f[2], "gres/"), Reason: f[3]})
		}
	}
	return jobs
}

func visible(r rune) rune {
	if unicode.IsPrint(r) || r == '\n' {
		return r
	}
	return '?'
}

// shownQueue is how many waiting jobs are listed; --json has all.
const shownQueue = 10

func writeQueue(w io.Writer, p paint, jobs []web.Waiting) error {
	rows := [][]string{{"JOB", "USER", "SHARE", "REASON"}}
	for _, j := range jobs {
		rows = append(rows, []string{j.JobID, j.User, j.GRES, j.Reason})
	}
	return waitTable(w, p, fmt.Sprintf("jobs that wait in Slurm's queue for a share: %d", len(jobs)), rows, shownQueue)
}
