// SPDX-License-Identifier: Apache-2.0

package top

import (
	"cmp"
	"fmt"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Row is a job on one of its cards. Card is nil if the job has none.
type Row struct {
	Node string
	Job  wire.Job
	Card *wire.JobCard
}

// Rows returns one row for each card of each job.
func Rows(node string, jobs []wire.Job) (rows []Row) {
	for _, j := range jobs {
		if len(j.Cards) == 0 {
			rows = append(rows, Row{node, j, nil})
		}
		for i := range j.Cards {
			rows = append(rows, Row{node, j, &j.Cards[i]})
		}
	}
	return rows
}

// cells are the columns of all tables of jobs. docs/architecture.md explains the words.
var cells = map[string]func(Row) string{
	"JOB":        func(r Row) string { return fmt.Sprint(r.Job.JobID) },
	"USER":       func(r Row) string { return r.Job.Who() },
	"NODE":       func(r Row) string { return r.Node },
	"CARD":       func(r Row) string { return fmt.Sprint(r.Card.Index) },
	"SHARE":      func(r Row) string { return Share(r.Card.Share, r.Card.Cores) },
	"GOT":        func(r Row) string { return Percent(r.Card.GotPercent) },
	"THROTTLED":  func(r Row) string { return Percent(r.Card.ThrottledPercent) },
	"LIMITED BY": func(r Row) string { return cmp.Or(r.Card.LimitedBy, "-") },
	"MEMORY":     func(r Row) string { return Memory(r.Card.UsedBytes, r.Card.LimitBytes) },
	"MODE":       func(r Row) string { return Mode(r.Job) },
	"GPU TIME":   func(r Row) string { return Known(r.Card.GPUSeconds, Seconds) },
	"PROCS":      func(r Row) string { return Known(r.Card.Processes, func(n int) string { return fmt.Sprint(n) }) },
	"SLICE":      slice,
	"PRIO":       func(r Row) string { return r.Job.Priority },
	"ACCOUNT":    func(r Row) string { return r.Job.Account },
}

// Cells are the texts of a row in columns of these titles. A job without cards has its state as MODE.
func (r Row) Cells(titles ...string) (texts []string) {
	for _, title := range titles {
		switch {
		case r.Card != nil || title == "JOB" || title == "USER" || title == "NODE":
			texts = append(texts, cells[title](r))
		case title == "MODE":
			texts = append(texts, r.Job.State)
		default:
			texts = append(texts, "-")
		}
	}
	return texts
}

// Known writes "?" for a value that gresd could not read.
func Known[T any](v *T, write func(T) string) string {
	if v == nil {
		return "?"
	}
	return write(*v)
}

// Percent has no fraction.
func Percent(v *float64) string {
	return Known(v, func(v float64) string { return fmt.Sprintf("%.0f%%", v) })
}

// Share is the share of a card, and of its compute if this differs: "50%/20%".
func Share(share, cores uint32) string {
	if share == cores {
		return fmt.Sprintf("%d%%", share)
	}
	return fmt.Sprintf("%d%%/%d%%", share, cores)
}

// Memory is "3.2/8G": both in the unit of the limit.
func Memory(used *uint64, limit uint64) string {
	unit, letter := float64(gpu.GiB), "G"
	if limit < uint64(gpu.GiB) {
		unit, letter = float64(gpu.MiB), "M"
	}
	number := func(b uint64) string {
		if v := float64(b) / unit; v < 9.95 {
			return strings.TrimSuffix(fmt.Sprintf("%.1f", v), ".0")
		}
		return fmt.Sprintf("%.0f", float64(b)/unit)
	}
	return Known(used, number) + "/" + number(limit) + letter
}

// Mode is the mode of a job, with its ceiling.
func Mode(j wire.Job) string { return gpu.FormatMode(gpu.Mode(j.Mode), gpu.Share(j.Ceiling)) }

// Seconds is "1h2m3.5s".
func Seconds(s float64) string {
	return time.Duration(s * float64(time.Second)).Round(100 * time.Millisecond).String()
}

// slice is the time slice, or the engine that replaces it.
func slice(r Row) string {
	text := "driver's"
	switch {
	case r.Job.Engine != "":
		text = r.Job.Engine
	case r.Card.SliceUS != 0:
		text = fmt.Sprintf("%.3g ms", float64(r.Card.SliceUS)/1000)
	}
	if r.Card.Gate {
		text += " gate"
	}
	return text
}
