// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// system is one way to share a card.
type system struct {
	name string
	ours bool
	mps  bool
	open func(ctx context.Context, b *bench) (session, error)
}

// session is a system that is up. Tenants join and leave it.
type session interface {
	// join returns the environment of the tenant's processes, and what to do
	// when they have ended.
	join(ctx context.Context, b *bench, t tenant) (env []string, leave func() error, err error)
	close() error
}

// systemsOf lists what the command line names.
func systemsOf(o options) ([]system, error) {
	all := []system{
		{name: "native", open: func(context.Context, *bench) (session, error) { return native{}, nil }},
		oursNamed("ours", ""),
	}
	for _, p := range o.ours {
		all = append(all, oursNamed(p[0], p[1]))
	}
	for _, p := range o.peers {
		library, err := filepath.Abs(p[1])
		if err != nil {
			return nil, err
		}
		if !exists(library) {
			return nil, fmt.Errorf("--peer %s: %s: no such file", p[0], library)
		}
		all = append(all, system{name: p[0], open: func(_ context.Context, b *bench) (session, error) {
			// Tenants may not be able to read the place that it comes from.
			copied := b.program(p[0] + ".so")
			return peer{library: copied, env: o.peerEnv}, copyFile(library, copied)
		}})
	}
	if o.mps {
		all = append(all, system{name: "mps", mps: true, open: startMPS(false)})
	}
	if o.mpsFree {
		all = append(all, system{name: "mps-free", mps: true, open: startMPS(true)})
	}
	var names []string
	for _, s := range all {
		if slices.Contains(names, s.name) {
			return nil, fmt.Errorf("system %q is given twice: want names that differ", s.name)
		}
		names = append(names, s.name)
	}
	for _, want := range o.systems {
		if !slices.Contains(names, want) {
			return nil, fmt.Errorf("--system %q: want some of %s", want, strings.Join(names, ", "))
		}
	}
	return slices.DeleteFunc(all, func(s system) bool {
		return len(o.systems) > 0 && !slices.Contains(o.systems, s.name)
	}), nil
}

func nothing() error { return nil }

// native is the driver alone.
type native struct{}

func (native) join(context.Context, *bench, tenant) ([]string, func() error, error) {
	return nil, nothing, nil
}

func (native) close() error { return nil }

// ours is libvgpu with gresd.
type ours struct{ node *node }

func oursNamed(name, toml string) system {
	return system{name: name, ours: true, open: func(ctx context.Context, b *bench) (session, error) {
		n, err := startNode(ctx, b, toml)
		return &ours{n}, err
	}}
}

func (o *ours) join(ctx context.Context, _ *bench, t tenant) ([]string, func() error, error) {
	id, env, err := o.node.grant(ctx, t)
	leave := func() error { return o.node.release(context.WithoutCancel(ctx), id) }
	if err != nil {
		return nil, nothing, errors.Join(err, leave())
	}
	return env, leave, nil
}

func (o *ours) close() error { return o.node.close() }

// peer is another library that is preloaded, with its limits in the environment.
type peer struct{ library, env string }

func (p peer) join(_ context.Context, b *bench, t tenant) ([]string, func() error, error) {
	dir, err := b.userFolder("peer")
	if err != nil {
		return nil, nil, err
	}
	env := []string{"LD_PRELOAD=" + p.library}
	for _, word := range strings.Fields(p.env) {
		word = strings.ReplaceAll(word, "%d", fmt.Sprint(t.share))
		env = append(env, strings.ReplaceAll(word, "%s", dir))
	}
	return env, nothing, nil
}

func (peer) close() error { return nil }

// mps is NVIDIA's Multi-Process Service, one control daemon of the tenants' user.
type mps struct {
	free  bool // without percentages
	cmd   *exec.Cmd
	env   []string
	ended chan struct{}
}

const mpsControl = "nvidia-cuda-mps-control"

func startMPS(free bool) func(context.Context, *bench) (session, error) {
	return func(ctx context.Context, b *bench) (session, error) {
		if b.sim {
			return nil, errors.New("the simulated card has no MPS")
		}
		dir, err := b.userFolder("mps")
		if err != nil {
			return nil, err
		}
		return startControl(ctx, b, dir, free)
	}
}

func startControl(ctx context.Context, b *bench, dir string, free bool) (session, error) {
	m := &mps{free: free, env: []string{"CUDA_MPS_PIPE_DIRECTORY=" + dir, "CUDA_MPS_LOG_DIRECTORY=" + dir}, ended: make(chan struct{})}
	m.cmd = exec.CommandContext(ctx, mpsControl, "-f")
	m.cmd.Env = append(append([]string{}, b.env...), m.env...)
	m.cmd.SysProcAttr = b.asUser()
	if err := m.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start MPS: %w", err)
	}
	go func() { _ = m.cmd.Wait(); close(m.ended) }()
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if exists(filepath.Join(dir, "control")) {
			return m, nil
		}
	}
	return nil, errors.Join(errors.New("start MPS: no control pipe after 10 s"), m.close())
}

func (m *mps) join(_ context.Context, _ *bench, t tenant) ([]string, func() error, error) {
	percent := t.share
	if m.free {
		percent = 100
	}
	// The server sees one card, and its clients count what it sees.
	return append([]string{fmt.Sprintf("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE=%d", percent), "CUDA_VISIBLE_DEVICES=0"}, m.env...), nothing, nil
}

// close asks the daemon to end, which ends its server too.
func (m *mps) close() error {
	quit := exec.Command(mpsControl)
	quit.Env, quit.Stdin = append(os.Environ(), m.env...), strings.NewReader("quit\n")
	quit.SysProcAttr = m.cmd.SysProcAttr
	quit.WaitDelay = time.Second
	err := quit.Run()
	select {
	case <-m.ended:
		return err
	case <-time.After(10 * time.Second):
		_ = m.cmd.Process.Kill() // it may have ended by itself
		<-m.ended
		return errors.Join(err, errors.New("MPS did not stop within 10 s"))
	}
}
