// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"bufio"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
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

// gresdThatDies takes a request, works for some time, dies, and is away for some time. It is back when the
// channel is closed.
func gresdThatDies(t *testing.T, config Config, after, away time.Duration) <-chan struct{} {
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
		time.Sleep(away)
		startGresd(t, config.socket(), wire.Reply{OK: true, Result: wire.Granted})
	}()
	return up
}

// gresd dies after it has been at work on a job for longer than Prolog's patience,
// as it is while slurmctld starts, and comes back: a Prolog that fails then drains
// its node.
func TestPrologWaitsForAGresdThatDiesAtWork(t *testing.T) {
	config := testConfig(t)
	up := gresdThatDies(t, config, 600*time.Millisecond, 100*time.Millisecond) // twice the patience of the test
	if r := runHook(t, config, jobEnv("prolog_slurmd")); r.code != ExitOK {
		t.Errorf("exit code %d after %s: %s", r.code, r.took, r.stderr)
	}
	<-up
}

// A gresd that dies at work is restarted, and may be away for longer than one that was never there.
func TestPrologWaitsForARestart(t *testing.T) {
	for name, env := range map[string]map[string]string{
		"a job with shards":  jobEnv("prolog_slurmd"),
		"a job with a count": jobEnv("prolog_slurmd", "SLURM_JOB_GPUS", ""),
	} {
		t.Run(name, func(t *testing.T) {
			config := testConfig(t)
			if err := os.WriteFile(filepath.Join(config.RunDir, "ask-gresd"), nil, 0o644); err != nil {
				t.Fatal(err)
			}
			requeued := 0
			up := gresdThatDies(t, config, 0, time.Second)
			r := runHook(t, config, env, func(h *Hook) {
				h.RestartWait, h.AnswerWait = time.Minute, time.Minute
				h.slurm = fakeSlurm{facts: slurm.JobFacts{Batch: true, Counted: 60}, requeued: &requeued}
			})
			if <-up; r.code != ExitOK || requeued != 0 || len(r.log) != 0 {
				t.Errorf("code %d after %s, requeued %d times, log %q; want a grant", r.code, r.took, requeued, r.log)
			}
		})
	}
}
