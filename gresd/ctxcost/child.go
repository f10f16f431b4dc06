// SPDX-License-Identifier: Apache-2.0

package ctxcost

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// childTimeout bounds one measurement.
const childTimeout = 10 * time.Second

// Child measures a card in a process of its own: program is run with args, and
// must print a [Figure] in JSON. A child that does not end in time is killed;
// one that the driver holds is left behind.
func Child(ctx context.Context, program string, args []string, uuid gpu.UUID) (Figure, error) {
	type answer struct {
		figure Figure
		err    error
	}
	ctx, cancel := context.WithTimeout(ctx, childTimeout)
	defer cancel()
	done := make(chan answer, 1)
	go func() {
		f, err := child(ctx, program, args, uuid)
		done <- answer{f, err}
	}()
	select {
	case a := <-done:
		return a.figure, a.err
	case <-ctx.Done():
	}
	select { // it is being killed
	case a := <-done:
		return a.figure, a.err
	case <-time.After(time.Second):
		return Figure{}, fmt.Errorf("measure the context cost of %s: the driver holds the process: %w", uuid, ctx.Err())
	}
}

func child(ctx context.Context, program string, args []string, uuid gpu.UUID) (Figure, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir, cmd.Env, cmd.Stdout, cmd.Stderr = "/", Environment(os.Environ(), uuid), &out, &errs
	cmd.WaitDelay = time.Second
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return Figure{}, fmt.Errorf("measure the context cost of %s: %w: %s", uuid, err, strings.TrimSpace(errs.String()))
	}
	f, err := readFigure(out.Bytes())
	if err != nil {
		return Figure{}, fmt.Errorf("measure the context cost of %s: read answer: %w", uuid, err)
	}
	return f, nil
}

func readFigure(answer []byte) (f Figure, err error) {
	if err := json.Unmarshal(answer, &f); err != nil {
		return Figure{}, err
	}
	return f, f.check()
}
