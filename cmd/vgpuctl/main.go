// SPDX-License-Identifier: Apache-2.0

// Command vgpuctl shows what gresd granted on this node, and checks the node. See
// docs/man/vgpuctl.1. Exit status: 0, 1 for an answer that is an error, 2 for
// a wrong command line.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
)

// version is set by the linker.
var version = "dev"

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	os.Exit(execute(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// failure is an error of the work itself, and not of the command line.
type failure struct{ error }

func (f failure) Unwrap() error { return f.error }

// failed makes an error that of the work.
func failed(err error) error {
	if err == nil {
		return nil
	}
	return failure{err}
}

// errSilent ends with exit status 1 and nothing more to say.
var errSilent = errors.New("")

func execute(ctx context.Context, args []string, out, errs io.Writer) int {
	cmd := command()
	cmd.SetArgs(args)
	cmd.SetOut(out)
	cmd.SetErr(errs)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	if !errors.Is(err, errSilent) {
		fmt.Fprintf(errs, "vgpuctl: %v\n", err)
	}
	if errors.As(err, new(failure)) {
		return 1
	}
	return 2
}
