// SPDX-License-Identifier: Apache-2.0

package process

import (
	"bytes"
	"context"
	"os/exec"
	"syscall"
	"time"
)

// Command returns a command with a session of its own. It ends with gresd and with ctx.
func Command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second
	return cmd
}

// Output keeps the head of what is written. The buffer is not embedded: io.Copy
// would find its ReadFrom, which knows no limit.
type Output struct {
	Most int // bytes
	text bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	if room := o.Most - o.text.Len(); room > 0 {
		o.text.Write(p[:min(len(p), room)])
	}
	return len(p), nil
}

func (o *Output) String() string { return o.text.String() }
