// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/tests/bench/series"
)

// readyTimeout is how long a program may take to be ready: PyTorch is slow.
const readyTimeout = 90 * time.Second

// errHung is for a program that did not end in time.
var errHung = errors.New("did not end in time")

// proc is one process of a tenant.
type proc struct {
	name    string
	cmd     *exec.Cmd
	in      io.WriteCloser
	lines   chan string // of its standard output; closed at its end
	err     bytes.Buffer
	ended   chan struct{}
	exit    error // once ended is closed
	samples string
}

// start starts a program as the tenants' user, with a folder of its own.
func (b *bench) start(ctx context.Context, name string, env []string, argv ...string) (*proc, error) {
	dir, err := b.userFolder("p")
	if err != nil {
		return nil, err
	}
	p := &proc{name: name, lines: make(chan string, 16), ended: make(chan struct{}), samples: filepath.Join(dir, "samples")}
	if filepath.Base(argv[0]) == "vgpu-load" && len(argv) > 2 {
		argv = append(argv, "--samples", p.samples)
	}
	p.cmd = exec.CommandContext(ctx, argv[0], argv[1:]...)
	p.cmd.Dir, p.cmd.Env = dir, append(append([]string{}, b.env...), append([]string{"HOME=" + dir}, env...)...)
	p.cmd.Stderr = &p.err
	p.cmd.WaitDelay = time.Second
	p.cmd.SysProcAttr = b.asUser()
	if p.in, err = p.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := p.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	go func() {
		lines := bufio.NewScanner(out)
		lines.Buffer(nil, 64<<20)
		for lines.Scan() {
			p.lines <- lines.Text()
		}
		p.exit = p.cmd.Wait()
		close(p.lines)
		close(p.ended)
	}()
	return p, nil
}

// userFolder makes a folder that belongs to the tenants' user.
func (b *bench) userFolder(prefix string) (string, error) {
	dir, err := os.MkdirTemp(b.dir, prefix)
	if err != nil {
		return "", err
	}
	return dir, os.Chown(dir, int(b.uid), int(b.gid))
}

func (p *proc) failed(err error) error {
	text := strings.TrimSpace(p.err.String())
	if len(text) > 600 {
		text = "…" + text[len(text)-600:]
	}
	return fmt.Errorf("%s: %w: %s", p.name, err, text)
}

// line returns the next line that the program prints.
func (p *proc) line(limit time.Duration) (string, error) {
	select {
	case text, ok := <-p.lines:
		if !ok {
			<-p.ended
			return "", p.failed(fmt.Errorf("ended without an answer: %v", p.exit))
		}
		return text, nil
	case <-time.After(limit):
		p.kill()
		return "", p.failed(errHung)
	}
}

// ready waits until the program can begin at once.
func (p *proc) ready() error {
	text, err := p.line(readyTimeout)
	if err == nil && text != "ready" {
		p.kill()
		err = fmt.Errorf("%s: said %q: want ready", p.name, text)
	}
	return err
}

// begin tells the program when to work.
func (p *proc) begin(start, end int64) error {
	_, err := fmt.Fprintf(p.in, "go %d %d\n", start, end)
	return err
}

// answer reads the line of JSON that a program prints when it was told to begin, and has
// ended; it then waits to be told again.
func (p *proc) answer(limit time.Duration, into any) error {
	text, err := p.line(limit)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(text), into); err != nil {
		return fmt.Errorf("%s: said %q: %w", p.name, text, err)
	}
	return nil
}

// result is answer of a program that is not needed any more.
func (p *proc) result(limit time.Duration, into any) error {
	if err := p.answer(limit, into); err != nil {
		return err
	}
	_ = p.in.Close() // it may have ended by itself
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		p.kill()
		return p.failed(errHung)
	}
	if p.exit != nil {
		return p.failed(p.exit)
	}
	return nil
}

// leave ends a program that waits to be told again: at the end of its input.
func (p *proc) leave() {
	_ = p.in.Close() // it may have ended by itself
	select {
	case <-p.ended:
	case <-time.After(5 * time.Second):
		p.kill()
	}
}

// kill ends the process and waits for its end.
func (p *proc) kill() {
	_ = p.cmd.Process.Kill() // it may have ended by itself
	for range p.lines {      // let the reader see the end
	}
	<-p.ended
}

// outcome is what a process did.
type outcome struct {
	Series series.Series `json:"-"`
	// Bursts are the requests of vgpu-load: when begun in ns, how long in ms.
	Bursts [][2]float64 `json:"bursts"`
	// Steps are those of PyTorch, in the same form.
	Steps [][2]float64 `json:"steps"`
	// PerStep are the units of a step of a rhythm, whose Series counts steps.
	PerStep float64 `json:"kernels_per_step"`
	Sent    float64 `json:"sent"` // steps of a rhythm
	// LateS is for how many seconds the process wanted a processor and had none, on the simulated card.
	LateS float64 `json:"late_s"`
}

// finish waits for the end and reads what was done.
func (p *proc) finish(limit time.Duration) (outcome, error) {
	var o outcome
	if err := p.result(limit, &o); err != nil {
		return o, err
	}
	return o, p.see(&o)
}

// round waits for the end of a run of a program that goes on to wait for the next, and
// reads what was done.
func (p *proc) round(limit time.Duration) (outcome, error) {
	var o outcome
	if err := p.answer(limit, &o); err != nil {
		return o, err
	}
	return o, p.see(&o)
}

// see makes a series of what a program told.
func (p *proc) see(o *outcome) error {
	if o.Steps == nil {
		var err error
		o.Series, err = series.Read(p.samples)
		for i := range o.Series {
			o.Series[i].Units /= max(1, o.PerStep)
		}
		return err
	}
	for i, s := range o.Steps {
		if i == 0 {
			o.Series = append(o.Series, series.Sample{T: int64(s[0])})
		}
		o.Series = append(o.Series, series.Sample{T: int64(s[0] + s[1]*1e6), Units: float64(i + 1)})
	}
	return nil
}

// asUser is for processes of tenants. They do not outlive the benchmark.
func (b *bench) asUser() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{
		Credential: &syscall.Credential{Uid: b.uid, Gid: b.gid}, Pdeathsig: syscall.SIGKILL,
	}
}
