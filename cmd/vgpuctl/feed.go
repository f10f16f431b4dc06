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
	"os/exec"
	"reflect"
	"slices"
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

// feed is the step on one node.
type feed struct {
	asked
	cmd     *exec.Cmd
	end     context.CancelFunc
	in      io.WriteCloser
	answers chan top.Sample // closed when the step has ended
	said    bytes.Buffer    // to stderr, complete when answers is closed
	err     error           // as said
}

func startFeed(ctx context.Context, client *slurm.Client, a asked) (*feed, error) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx)) // close ends it
	f := &feed{asked: a, end: cancel, answers: make(chan top.Sample)}
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
func (f *feed) close() {
	f.in.Close()
	late := time.AfterFunc(2*time.Second, f.end)
	for range f.answers {
	}
	late.Stop()
	f.end()
}

// ask returns the next sample.
func (f *feed) ask(ctx context.Context) (top.Sample, error) {
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
func (f *feed) ended() error {
	for range f.answers {
	}
	return f.err
}

// feeds are those of all nodes with jobs of the user. It is for one goroutine.
type feeds struct {
	s      *settings
	client *slurm.Client
	nodes  []asked
	next   time.Time // to ask Slurm
	open   map[string]*feed
	down   map[string]down
}

// down is a node that did not answer.
type down struct {
	err   error
	until time.Time
}

func (s *settings) feeds() *feeds {
	return &feeds{s: s, client: s.slurm("", stepLimit), open: map[string]*feed{}, down: map[string]down{}}
}

func (fs *feeds) close() {
	nodes := make([]asked, 0, len(fs.open))
	for _, f := range fs.open {
		nodes = append(nodes, f.asked)
	}
	each(nodes, func(_ int, a asked) { fs.open[a.node].close() })
}

// samples asks each node once. One that does not answer has a sample that says so.
func (fs *feeds) samples(ctx context.Context) ([]top.Sample, error) {
	if now := time.Now(); now.After(fs.next) {
		own, err := fs.s.ownJobs(ctx, 0)
		if err != nil {
			return nil, err
		}
		fs.next, fs.nodes = now.Add(asksAnew), nodesOf(own)
		for node, f := range fs.open {
			if !slices.ContainsFunc(fs.nodes, func(a asked) bool { return a.node == node }) {
				f.close()
				delete(fs.open, node)
			}
		}
	}
	nodes := fs.nodes[:min(len(fs.nodes), mostFeeds)]
	samples, errs, feeds := make([]top.Sample, len(nodes)), make([]error, len(nodes)), make([]*feed, len(nodes))
	for i, a := range nodes {
		feeds[i] = fs.open[a.node]
	}
	each(nodes, func(i int, a asked) {
		if last, is := fs.down[a.node]; is && time.Now().Before(last.until) {
			errs[i] = last.err
			return
		}
		if feeds[i] == nil {
			feeds[i], errs[i] = startFeed(ctx, fs.client, a)
		}
		if errs[i] == nil {
			samples[i], errs[i] = feeds[i].ask(ctx)
		}
		samples[i].Status.Node = a.node
		if errs[i] != nil && feeds[i] != nil && ctx.Err() == nil {
			feeds[i].end()
			feeds[i].close()
			feeds[i] = nil
		}
	})
	for i, a := range nodes {
		delete(fs.open, a.node)
		if feeds[i] != nil {
			fs.open[a.node] = feeds[i]
		}
		last, known := fs.down[a.node]
		switch {
		case errs[i] == nil:
			delete(fs.down, a.node)
		case !known || time.Now().After(last.until):
			fs.down[a.node] = down{errs[i], time.Now().Add(asksAnew)}
			fs.next = time.Time{} // its job may have ended
		}
		if errs[i] != nil {
			samples[i] = noSample(a.node, errs[i].Error())
		}
	}
	for _, a := range fs.nodes[len(nodes):] {
		samples = append(samples, noSample(a.node, fmt.Sprintf("not asked: %d nodes at the most", mostFeeds)))
	}
	return samples, ctx.Err()
}

func noSample(node, why string) top.Sample {
	return top.Sample{At: time.Now(), Status: wire.Status{Node: node, Problems: []string{why}}, Jobs: []wire.Job{}}
}
