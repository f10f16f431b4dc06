// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"bufio"
	"net"
	"os"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// A gresd that is stopped takes connections and does not answer; one that is killed
// meanwhile breaks them. Neither is a reason to drain the node.
func TestPrologWaitsForAGresdThatDoesNotAnswer(t *testing.T) {
	for _, c := range []struct {
		name   string
		broken []time.Duration // how long a connection is held before it is broken
		answer time.Duration   // of the next; 0: never
	}{
		{"stopped for longer than the patience", nil, 600 * time.Millisecond},
		{"stopped, then killed and started", []time.Duration{500 * time.Millisecond}, time.Millisecond},
		{"stopped for good", nil, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			config := testConfig(t)
			listener, err := net.Listen("unix", config.socket())
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			go func() {
				for n := 0; ; n++ {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					switch {
					case n < len(c.broken):
						time.Sleep(c.broken[n])
						conn.Close()
					case c.answer > 0:
						time.Sleep(c.answer)
						_, _ = wire.ReadRequest(bufio.NewReader(conn))
						_ = wire.WriteReply(conn, wire.Reply{OK: true, Result: wire.Granted})
						conn.Close()
					}
				}
			}()
			r := runHook(t, config, jobEnv("prolog_slurmd"))
			if answered := len(r.log) == 0; r.code != ExitOK || answered != (c.answer > 0) {
				t.Errorf("exit %d after %s, want 0, and an answer: %v: %s", r.code, r.took, c.answer > 0, r.stderr)
			}
			if c.answer == 0 && r.took < 1100*time.Millisecond {
				t.Errorf("gave up after %s", r.took)
			}
		})
	}
}

// gresdThatDies takes a request, dies when it has been at work for a time, and comes back, when the
// channel is closed.
func gresdThatDies(t *testing.T, config Config, after time.Duration) <-chan struct{} {
	t.Helper()
	listener, err := net.Listen("unix", config.socket())
	if err != nil {
		t.Fatal(err)
	}
	up := make(chan struct{})
	go func() {
		defer close(up)
		conn, err := listener.Accept()
		if err != nil {
			return
		}
		_, _ = wire.ReadRequest(bufio.NewReader(conn))
		time.Sleep(after)
		listener.Close()
		conn.Close()
		_ = os.Remove(config.socket())
		time.Sleep(100 * time.Millisecond)
		startGresd(t, config.socket(), wire.Reply{OK: true, Result: wire.Granted})
	}()
	return up
}

// gresd dies after it has been at work on a job for longer than Prolog's patience,
// as it is while slurmctld starts, and comes back: a Prolog that fails then drains
// its node.
func TestPrologWaitsForAGresdThatDiesAtWork(t *testing.T) {
	config := testConfig(t)
	up := gresdThatDies(t, config, 600*time.Millisecond) // twice the patience of the test
	if r := runHook(t, config, jobEnv("prolog_slurmd")); r.code != ExitOK {
		t.Errorf("exit code %d after %s: %s", r.code, r.took, r.stderr)
	}
	<-up
}
