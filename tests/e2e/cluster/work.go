// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Scripts of jobs on tests/gpu's worker program. Its commands print one line
// of JSON each.
const (
	// Worker is the program's path.
	Worker = Dir + "/bin/vgpu-worker"

	// LookScript tells what the card's memory looks like and takes it until it
	// is refused; [Looks] reads what it prints.
	LookScript = Worker + " --report --fill"

	// WorkScript keeps the card busy when [Cluster.Measure] says so.
	WorkScript = "until [ -s go.$SLURM_JOB_ID ]; do sleep 0.1; done; " + Worker + " $(cat go.$SLURM_JOB_ID)"
)

// BusyScript keeps the card busy for some seconds.
func BusyScript(seconds int) string {
	return fmt.Sprintf("%s --alloc 1G --saturate %d", Worker, seconds)
}

// Look is what a program was told and given of its card's memory, in bytes.
type Look struct {
	Total     uint64 // by CUDA
	NVMLTotal uint64
	Granted   uint64 // taken before one more was refused
	Used      uint64 // the whole job's, by CUDA, when it was
	Refusal   string // the error's name; "" when nothing was refused
}

// line is one line of the worker.
type line struct {
	Cmd       string  `json:"cmd"`
	Total     uint64  `json:"total"`
	Free      uint64  `json:"free"`
	NVMLTotal uint64  `json:"nvml_total"`
	Granted   uint64  `json:"granted"`
	Size      uint64  `json:"size"`
	Result    int     `json:"result"`
	Error     string  `json:"error"`
	Devices   int     `json:"devices"`
	Rate      float64 `json:"rate"`
	KernelUS  float64 `json:"kernel_us"`
	GapNS     float64 `json:"gap_ns"`
	UnitNS    float64 `json:"ns_per_unit"`
	Late      float64 `json:"late"`
	Kind      string  `json:"kind"`
	Name      string  `json:"name"`
	UUID      string  `json:"uuid"`
	// Parts of what the card can do, in each 100 ms.
	FirstWindows []float64 `json:"first_windows"`
}

func lines(output string) []line {
	var out []line
	for text := range strings.Lines(output) {
		var l line
		if json.Unmarshal([]byte(text), &l) == nil && l.Cmd != "" {
			out = append(out, l)
		}
	}
	return out
}

// Looks reads the output of [LookScript], run any number of times.
func Looks(output string) []Look {
	var out []Look
	for _, l := range lines(output) {
		if l.Cmd != "fill" {
			continue
		}
		look := Look{Total: l.Total, NVMLTotal: l.NVMLTotal, Granted: l.Granted, Used: l.Total - l.Free}
		if l.Result != 0 {
			look.Refusal = l.Error
		}
		out = append(out, look)
	}
	return out
}

// Look waits until a batch job has run [LookScript] once.
func (c *Cluster) Look(user string, job int) (Look, error) {
	var looks []Look
	if until(60*time.Second, 100*time.Millisecond, func() bool {
		looks = Looks(c.Output(user, job))
		return len(looks) > 0
	}) {
		return looks[0], nil
	}
	return Look{}, fmt.Errorf("job %d: told nothing of its memory; output:\n%s", job, c.Output(user, job))
}

// Taken reads the output of "vgpu-worker --alloc": the bytes that were given,
// and how many pieces were refused.
func Taken(output string) (bytes uint64, refused int) {
	for _, l := range lines(output) {
		switch {
		case l.Cmd != "alloc":
		case l.Result != 0:
			refused++
		default:
			bytes += l.Size
		}
	}
	return bytes, refused
}

// Devices reads the output of "vgpu-worker --count".
func Devices(output string) int {
	for _, l := range lines(output) {
		if l.Cmd == "count" {
			return l.Devices
		}
	}
	return -1
}

// Listed is a GPU or a MIG instance in the output of "vgpu-worker --list".
type Listed struct {
	Kind, Name, UUID string
	Total            uint64
}

// List reads that output.
func List(output string) []Listed {
	var out []Listed
	for _, l := range lines(output) {
		if l.Cmd == "list" {
			out = append(out, Listed{l.Kind, l.Name, l.UUID, l.Total})
		}
	}
	return out
}

// Work is a job that runs [WorkScript].
type Work struct {
	User string
	Job  int
}

// Measure is [Cluster.MeasureLate] where it is enough to know the work.
func (c *Cluster) Measure(seconds int, works ...Work) ([]float64, error) {
	rates, _, err := c.MeasureLate(seconds, works...)
	return rates, err
}

// MeasureLate lets the jobs work over the same seconds, and returns the work that
// each did in a second. Only the quotient of two of these numbers means
// something. late is the part of the time in which a job wanted a processor and had none: it can have
// done so much less, and the others so much more.
func (c *Cluster) MeasureLate(seconds int, works ...Work) (rates, late []float64, err error) {
	for _, w := range works {
		if _, err := c.WaitState(w.Job, 30*time.Second, "RUNNING"); err != nil {
			return nil, nil, err
		}
	}
	start := time.Now().Add(2 * time.Second) // the worker measures its kernel before
	args := fmt.Sprintf("--start-at %.3f --saturate %d\n", float64(start.UnixMilli())/1000, seconds)
	for _, w := range works {
		file := filepath.Join(c.Home(w.User), fmt.Sprintf("go.%d", w.Job))
		if err := os.WriteFile(file, []byte(args), 0o644); err != nil {
			return nil, nil, err
		}
	}
	time.Sleep(time.Until(start) + time.Duration(seconds)*time.Second)
	rates, late = make([]float64, len(works)), make([]float64, len(works))
	for i, w := range works {
		if !until(20*time.Second, 100*time.Millisecond, func() bool {
			rates[i], late[i] = 0, 0
			// Kernels are of about the same length; their number of units is
			// exact. A job of several processes has a line of each.
			for _, l := range lines(c.Output(w.User, w.Job)) {
				if l.Cmd == "saturate" && l.UnitNS > 0 {
					rates[i] += l.Rate * (l.KernelUS*1000 - l.GapNS) / l.UnitNS
					late[i] = max(late[i], min(1, l.Late))
				}
			}
			return rates[i] > 0
		}) {
			return nil, nil, fmt.Errorf("job %d: told nothing of its work; output:\n%s", w.Job, c.Output(w.User, w.Job))
		}
	}
	return rates, late, nil
}

// FirstWindows is what a job did in each of the first 100 ms that [Cluster.Measure] let it
// work, in percent of what its card can do; of several processes, the first's.
func (c *Cluster) FirstWindows(w Work) []float64 {
	var percent []float64
	for _, l := range lines(c.Output(w.User, w.Job)) {
		if l.Cmd == "saturate" && percent == nil {
			for _, part := range l.FirstWindows {
				percent = append(percent, 100*part)
			}
		}
	}
	return percent
}

// Solo is what a job does that has a card alone.
func (c *Cluster) Solo(user string, seconds int) (float64, error) {
	job, err := c.Sbatch(user, []string{"--gres=vgpu:100"}, WorkScript)
	if err != nil {
		return 0, err
	}
	rates, err := c.Measure(seconds, Work{user, job})
	if err != nil {
		return 0, err
	}
	_, err = c.Wait(job, 20*time.Second)
	return rates[0], err
}

// Cancel cancels a job and waits for its end.
func (c *Cluster) Cancel(user string, job int) error {
	if r := c.As(user, "scancel", fmt.Sprint(job)); r.Code != 0 {
		return fmt.Errorf("scancel %d: %s", job, r)
	}
	_, err := c.Wait(job, 30*time.Second)
	return err
}
