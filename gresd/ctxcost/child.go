// SPDX-License-Identifier: Apache-2.0

package ctxcost

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
)

const (
	// childTimeout bounds one measurement.
	childTimeout = 10 * time.Second
	// mostSaid is what is kept of what a child prints.
	mostSaid = 64 << 10
)

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
		f, err := measureIn(ctx, program, args, uuid)
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

// measureIn is Child for a driver that does not hold the process.
func measureIn(ctx context.Context, program string, args []string, uuid gpu.UUID) (Figure, error) {
	out, errs := process.Output{Most: mostSaid}, process.Output{Most: mostSaid}
	cmd := process.Command(ctx, program, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = Environment(os.Environ(), uuid), &out, &errs
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return Figure{}, fmt.Errorf("measure the context cost of %s: %w: %s", uuid, err, strings.TrimSpace(errs.String()))
	}
	f, err := readFigure([]byte(out.String()))
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
