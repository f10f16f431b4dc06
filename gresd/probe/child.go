// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
)

const (
	// childTimeout is the time limit of one measurement. Most of this time is for making contexts.
	childTimeout = 10 * time.Second
	// endTimeout is the time limit for a child to end its work, and then to die.
	endTimeout = time.Second
	// maxOutput is the number of bytes kept of a child's output.
	maxOutput = 64 << 10
)

// child is a process that has a context on one card. It ends when its standard input is closed, or
// earlier.
type child struct {
	cmd       *exec.Cmd
	in        io.WriteCloser
	out, errs process.Output
	ended     chan struct{} // closed when the process has ended
	status    error         // of the ended process
}

// start runs a command with one card. env is added to its environment.
func start(command []string, card gpu.UUID, env ...string) (c *child, err error) {
	c = &child{ended: make(chan struct{}), out: process.Output{Most: maxOutput}, errs: process.Output{Most: maxOutput}}
	c.cmd = process.Command(context.Background(), command[0], command[1:]...)
	c.cmd.Env = append(environment(os.Environ(), card), env...)
	c.cmd.Stdout, c.cmd.Stderr = &c.out, &c.errs
	if c.in, err = c.cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err = c.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		c.status = c.cmd.Wait()
		close(c.ended)
	}()
	return c, nil
}

func (c *child) pid() uint32 { return uint32(c.cmd.Process.Pid) }

// exit returns an error with the status and the error output of an ended child.
func (c *child) exit() error {
	return fmt.Errorf("%v: %s", c.status, strings.TrimSpace(c.errs.String()))
}

// output waits for the end of the child and returns its output. When ctx is done, it kills the
// child.
func (c *child) output(ctx context.Context) (string, error) {
	defer c.stop()
	select {
	case <-c.ended:
	case <-ctx.Done():
		_ = c.cmd.Process.Kill()
		if !c.endsIn(endTimeout) {
			return "", fmt.Errorf("the driver blocks the process: %w", ctx.Err())
		}
		return "", fmt.Errorf("%w: %s", ctx.Err(), strings.TrimSpace(c.errs.String()))
	}
	if c.status != nil {
		return "", c.exit()
	}
	return c.out.String(), nil
}

// stop asks the child to end its work.
func (c *child) stop() { _ = c.in.Close() }

// end ends the child. It leaves a child that the driver blocks.
func (c *child) end() {
	c.stop()
	if !c.endsIn(endTimeout) {
		_ = c.cmd.Process.Kill()
		c.endsIn(endTimeout)
	}
}

func (c *child) endsIn(d time.Duration) bool {
	select {
	case <-c.ended:
		return true
	case <-time.After(d):
		return false
	}
}

// environment returns the environment of gresd for a child with one card. It leaves out preload
// libraries, settings of CUDA, MPS servers and the sockets of systemd: they change the context.
func environment(env []string, uuid gpu.UUID) []string {
	clean := slices.DeleteFunc(slices.Clone(env), func(v string) bool {
		return slices.ContainsFunc([]string{"LD_PRELOAD", "LD_AUDIT", "CUDA_", "VGPU_", "GPU_CORE_", "NOTIFY_SOCKET", "WATCHDOG_"},
			func(prefix string) bool { return strings.HasPrefix(v, prefix) })
	})
	return append(clean, fmt.Sprintf("CUDA_VISIBLE_DEVICES=%s", uuid), "CUDA_CACHE_DISABLE=1",
		// A client of MPS shares the context of its server, which costs less.
		"CUDA_MPS_PIPE_DIRECTORY=/nonexistent")
}
