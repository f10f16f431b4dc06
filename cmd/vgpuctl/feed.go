// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"reflect"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// A live view keeps one step on each node. For each line that the step reads it answers with a
// sample; when its input ends it ends, so that it cannot outlive who looks: the input is a pipe of
// his, which closes whatever ended him. A step that hears nothing for long ends by itself, in
// case that srun was killed.

const (
	// mostFeeds bounds the nodes that a live view looks at.
	mostFeeds = 16
	// heardWithin is how soon a step expects the next line.
	heardWithin = time.Minute
	// asksAnew is how often Slurm is asked which jobs run, and a node that did not answer is
	// asked again.
	asksAnew = 15 * time.Second
	// longestSample bounds a line of an answer.
	longestSample = wire.MaxReply
)

// answerEach writes a sample for each line of in.
func (s *settings) answerEach(ctx context.Context, in io.Reader, out io.Writer) error {
	lines := make(chan struct{})
	go func() {
		defer close(lines)
		for scan := bufio.NewScanner(in); scan.Scan(); {
			select {
			case lines <- struct{}{}:
			case <-ctx.Done():
				return
			}
		}
	}()
	for {
		select {
		case _, open := <-lines:
			if !open {
				return nil
			}
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(heardWithin):
			return fmt.Errorf("top: nobody has asked for %s", heardWithin)
		}
		sample, err := s.sample(ctx)
		if err != nil {
			return err
		}
		if err := json.NewEncoder(out).Encode(sample); err != nil {
			return err
		}
	}
}

// step is the step on one node.
type step struct {
	cmd     *exec.Cmd
	end     context.CancelFunc
	in      io.WriteCloser
	answers chan top.Sample // closed when the step has ended
	said    bytes.Buffer    // to stderr, complete when answers is closed
	err     error           // as said
}

func startStep(ctx context.Context, client *slurm.Client, a asked) (*step, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // close ends it
	f := &step{end: cancel, answers: make(chan top.Sample)}
	f.cmd = client.Step(ctx, a.jobs[0].JobID, a.node, hereEnv+"=1", "vgpuctl", "top", "--json", "--on-request")
	f.cmd.Stderr = &f.said
	in, err := f.cmd.StdinPipe()
	if err != nil {
		cancel()
		return nil, err
	}
	f.in = in
	out, err := f.cmd.StdoutPipe()
	if err == nil {
		err = f.cmd.Start()
	}
	if err != nil {
		cancel()
		return nil, err
	}
	go func() {
		defer close(f.answers)
		scan := bufio.NewScanner(out)
		scan.Buffer(nil, longestSample)
		var mistake error
		for scan.Scan() {
			var sample top.Sample
			if mistake = json.Unmarshal(scan.Bytes(), &sample); mistake != nil {
				cancel()
				break
			}
			cleanText(reflect.ValueOf(&sample))
			select {
			case f.answers <- sample:
			case <-ctx.Done():
			}
		}
		_, _ = io.Copy(io.Discard, out)
		f.err = stepError(errors.Join(f.cmd.Wait(), mistake, scan.Err()), f.said.String())
	}()
	return f, nil
}

// close lets the step end by itself, and else ends it.
func (f *step) close() {
	f.in.Close()
	late := time.AfterFunc(2*time.Second, f.end)
	for range f.answers {
	}
	late.Stop()
	f.end()
}

// ask returns the next sample.
func (f *step) ask(ctx context.Context) (top.Sample, error) {
	if _, err := f.in.Write([]byte("\n")); err != nil {
		return top.Sample{}, f.ended()
	}
	select {
	case sample, open := <-f.answers:
		if !open {
			return sample, f.ended()
		}
		return sample, nil
	case <-time.After(stepLimit):
		return top.Sample{}, fmt.Errorf("no answer within %s", stepLimit)
	case <-ctx.Done():
		return top.Sample{}, ctx.Err()
	}
}

// ended is why the step has ended.
func (f *step) ended() error {
	for range f.answers {
	}
	return f.err
}

// feed is a node with its step.
type feed struct {
	asked
	step  *step // nil: none
	err   error // why it did not answer
	until time.Time
}

// sample asks the node, unless it did not answer a short time ago.
func (f *feed) sample(ctx context.Context, client *slurm.Client) (sample top.Sample, err error) {
	if time.Now().Before(f.until) {
		return sample, f.err
	}
	if f.step == nil {
		f.step, err = startStep(ctx, client, f.asked)
	}
	if err == nil {
		sample, err = f.step.ask(ctx)
	}
	if err != nil && ctx.Err() == nil {
		if f.step != nil {
			f.step.end()
		}
		f.close()
		f.err, f.until = err, time.Now().Add(asksAnew)
	}
	return sample, err
}

func (f *feed) close() {
	if f.step != nil {
		f.step.close()
		f.step = nil
	}
}

// feeds are those of all nodes with jobs of the user. It is for one goroutine.
type feeds struct {
	s      *settings
	client *slurm.Client
	most   int // nodes that are asked
	nodes  []asked
	next   time.Time // to ask Slurm
	open   map[string]*feed
}

func (fs *feeds) close() { each(fs.nodes, func(_ int, a asked) { fs.open[a.node].close() }) }

// samples asks each node once. One that does not answer has a sample that says so.
func (fs *feeds) samples(ctx context.Context) ([]top.Sample, error) {
	now := time.Now()
	if now.After(fs.next) {
		own, err := fs.s.ownJobs(ctx, 0)
		if err != nil {
			return nil, err
		}
		before := fs.open
		fs.next, fs.nodes, fs.open = now.Add(asksAnew), nodesOf(own), map[string]*feed{}
		for _, a := range fs.nodes {
			f := cmp.Or(before[a.node], &feed{})
			f.asked, fs.open[a.node] = a, f
			delete(before, a.node)
		}
		for _, f := range before {
			f.close()
		}
	}
	nodes := fs.nodes[:min(len(fs.nodes), fs.most)]
	samples := make([]top.Sample, len(nodes))
	each(nodes, func(i int, a asked) {
		sample, err := fs.open[a.node].sample(ctx, fs.client)
		if samples[i] = sample; err != nil {
			samples[i] = noSample(a.node, err.Error())
		}
		samples[i].Status.Node = a.node
	})
	for _, a := range nodes {
		if fs.open[a.node].until.After(now.Add(asksAnew)) { // it has not answered now
			fs.next = time.Time{} // its job may have ended
		}
	}
	for _, a := range fs.nodes[len(nodes):] {
		samples = append(samples, noSample(a.node, fmt.Sprintf("not asked: %d nodes at the most", fs.most)))
	}
	return samples, ctx.Err()
}

func noSample(node, why string) top.Sample {
	return top.Sample{At: time.Now(), Status: wire.Status{Node: node, Problems: []string{why}}, Jobs: []wire.Job{}}
}
