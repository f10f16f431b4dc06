// SPDX-License-Identifier: Apache-2.0

package mps

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
	"unicode"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/timeout"
)

// commandEnvironment is all that NVIDIA's programs get of gresd's own: with the
// rest, such as a preload list or CUDA's settings, they would do something else.
// The daemon looks for the server's program along PATH; it is beside its own.
func commandEnvironment(program string) []string {
	env := []string{"PATH=" + filepath.Dir(program) + ":/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}
	// Where containers keep a driver that comes from their host.
	if path := os.Getenv("LD_LIBRARY_PATH"); path != "" {
		env = append(env, "LD_LIBRARY_PATH="+path)
	}
	return env
}

// asUser makes a command run in a session of its own as the daemon's user.
func (s *server) asUser(cmd *exec.Cmd) {
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true, Credential: &syscall.Credential{Uid: s.key.UID, Gid: s.gid},
	}
}

// mostUnanswered limits the programs of one server that can neither answer nor be killed.
const mostUnanswered = 4

// ask sends one command to the daemon and returns the answer. It returns soon after the time limit
// for an answer, even if the program cannot be killed.
func (s *server) ask(ctx context.Context, command string) (string, error) {
	limit := s.m.cfg.Times.Answer
	ctx, cancel := context.WithTimeout(ctx, limit)
	out := process.Output{Most: mostOutput}
	err, ended := timeout.Run(s.calls, s.key.Card, limit+2*time.Second, func() error {
		defer cancel()
		cmd := exec.CommandContext(ctx, s.m.cfg.Control)
		cmd.Env = append(commandEnvironment(cmd.Path), s.folder.environment()...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(command+"\n"), &out, &out
		cmd.WaitDelay = time.Second
		s.asUser(cmd)
		cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
		err := cmd.Run()
		return cmp.Or(ctx.Err(), err)
	})
	switch {
	case !ended:
		return "", fmt.Errorf("%s: the program can neither be answered nor killed", command)
	case errors.Is(err, context.Canceled):
		return "", fmt.Errorf("%s: %w", command, err)
	case errors.Is(err, context.DeadlineExceeded):
		return "", fmt.Errorf("%s: no answer within %s", command, limit)
	case err != nil:
		return "", fmt.Errorf("%s: %w: %s", command, err, lastLine(out.String()))
	}
	return out.String(), nil
}

// mostServers is more than a daemon has: one that serves, and others that end.
const mostServers = 8

// serverList are the process ids that the daemon names. They are for commands
// to it only: a user's daemon may say anything.
func (s *server) serverList(ctx context.Context) ([]int, error) {
	text, err := s.ask(ctx, "get_server_list")
	if err != nil {
		return nil, err
	}
	return readServers(text)
}

func readServers(text string) (pids []int, err error) {
	words := strings.Fields(text)
	if len(words) > mostServers {
		return nil, fmt.Errorf("get_server_list: %q: want at most %d process ids", clip(text), mostServers)
	}
	for _, word := range words {
		pid, err := strconv.Atoi(word)
		if err != nil || pid <= 0 {
			return nil, fmt.Errorf("get_server_list: %q: want process ids", clip(text))
		}
		pids = append(pids, pid)
	}
	return pids, nil
}

// setPercent bounds what a client can have that does not name a percentage, or
// names a larger one: of servers to come, and of the one that runs. Clients that
// run keep what they started with.
func (s *server) setPercent(ctx context.Context, percent uint32) error {
	if _, err := s.ask(ctx, fmt.Sprintf("set_default_active_thread_percentage %d", percent)); err != nil {
		return err
	}
	pids, err := s.serverList(ctx)
	for _, pid := range pids {
		if _, err := s.ask(ctx, fmt.Sprintf("set_active_thread_percentage %d %d", pid, percent)); err != nil {
			return err
		}
	}
	return err
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return clip(strings.TrimSpace(lines[len(lines)-1]))
}

// clip makes a text of a program fit for one line of a log.
func clip(text string) string {
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return ' '
		}
		return r
	}, text)
	if len(text) > 200 {
		text = text[:200] + "…"
	}
	return strings.ToValidUTF8(text, "?")
}
