// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
)

// ErrNoCommand: there is no such command of Slurm on this node, as far as can be seen. It is an
// ErrUnavailable, too; to ask again does not help.
var ErrNoCommand = errors.New("no such command of Slurm is found")

// scontrolName is the command that the others are beside.
const scontrolName = "scontrol"

// Find returns the path of scontrol. configured is the administrator's: a path is taken at its word;
// a name, "" for scontrol, is looked for in PATH, and then beside the slurmds, whose programs it
// belongs to: a Slurm in /opt/slurm is in the PATH of administrators and of nobody else. Errors:
// ErrNoCommand.
func Find(configured string, slurmds ...string) (string, error) {
	if configured == "" {
		configured = scontrolName
	}
	if strings.Contains(configured, "/") {
		if err := isProgram(configured); err != nil {
			return "", missing("%w", err)
		}
		return configured, nil
	}
	if path, err := exec.LookPath(configured); err == nil {
		return path, nil
	}
	for _, slurmd := range slurmds {
		path := filepath.Join(filepath.Dir(filepath.Dir(slurmd)), "bin", configured)
		if isProgram(path) == nil && sameOwner(slurmd, path) {
			return path, nil
		}
	}
	return "", missing("%s is not in PATH (%s), and beside no slurmd that runs here", configured, os.Getenv("PATH"))
}

func missing(format string, args ...any) error {
	return fmt.Errorf("%w: %w; want the path in vgpu.toml, for example [slurm] scontrol = \"/opt/slurm/bin/scontrol\"",
		ErrNoCommand, fmt.Errorf(format, args...))
}

func isProgram(path string) error {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return err
	case !info.Mode().IsRegular() || info.Mode()&0o111 == 0:
		return fmt.Errorf("%s: not a program", path)
	}
	return nil
}

// sameOwner says whether two programs are of one installation that only its owner can change.
func sameOwner(a, b string) bool {
	var of [2]unix.Stat_t
	for i, path := range []string{a, b} {
		if unix.Stat(path, &of[i]) != nil || of[i].Mode&0o022 != 0 {
			return false
		}
	}
	return of[0].Uid == of[1].Uid
}

// Slurmds are the programs of the slurmds that run. Users can give a process that name, and not
// root as its real user.
func Slurmds() []string {
	var found []string
	for _, dir := range process.All("/proc") {
		if dir.Comm() != "slurmd" {
			continue
		}
		if uid, ok := dir.UID(); !ok || uid != 0 {
			continue
		}
		if program := dir.Link("exe"); filepath.Base(program) == "slurmd" && !slices.Contains(found, program) {
			found = append(found, program)
		}
	}
	return found
}

// programs are Slurm's commands as they were found. slurmd may start after gresd, and the folder
// of a site may come late or move: what is not found is looked for again each time.
type programs struct {
	configured string
	slurmds    func() []string

	mu       sync.Mutex
	scontrol string // "": not found yet
	missing  error  // why, as of looked
	looked   time.Time
	answered bool  // a command has had an answer of slurmctld since the start
	silent   error // what [Client.Check] had in its place
}

// lookAgain is how long it counts that there is no command: to look for it takes milliseconds.
const lookAgain = time.Second

// path is where a command is. Errors: ErrNoCommand, which is an ErrUnavailable.
func (p *programs) path(name string) (string, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.scontrol != "" && isProgram(p.scontrol) != nil {
		p.scontrol = ""
	}
	if p.scontrol == "" {
		if now := time.Now(); now.Sub(p.looked) > lookAgain {
			p.scontrol, p.missing = Find(p.configured, p.slurmds()...)
			p.looked = now
		}
		if p.missing != nil {
			return "", fmt.Errorf("%w: %w", ErrUnavailable, p.missing)
		}
	}
	if name == scontrolName {
		return p.scontrol, nil
	}
	beside := filepath.Join(filepath.Dir(p.scontrol), name)
	if isProgram(beside) != nil && !strings.Contains(p.configured, "/") {
		if other, err := exec.LookPath(name); err == nil {
			return other, nil
		}
	}
	return beside, nil
}

// Check looks whether Slurm's commands work here, by one "scontrol ping". It says whether they have
// worked once since the client was made; [Client.Problem] says what is wrong.
func (c *Client) Check(ctx context.Context) bool {
	text, err := c.run(ctx, scontrolName, "ping")
	if err == nil && !strings.Contains(text, " UP") {
		err = fmt.Errorf("scontrol ping: %w: %s", ErrUnavailable, clip(strings.Join(strings.Fields(text), " ")))
	}
	c.programs.mu.Lock()
	defer c.programs.mu.Unlock()
	if err == nil {
		c.programs.answered = true
	}
	if c.programs.silent = nil; !c.programs.answered {
		c.programs.silent = err
	}
	return c.programs.answered
}

// Problem says why Slurm's commands do not work here, "" if they do or nobody knows yet. A command
// that has worked once is looked for again; whether slurmctld answers now is not asked.
func (c *Client) Problem() string {
	if _, err := c.programs.path(scontrolName); err != nil {
		return fmt.Sprintf("gresd cannot ask Slurm: %v", err)
	}
	c.programs.mu.Lock()
	defer c.programs.mu.Unlock()
	if c.programs.silent != nil && !errors.Is(c.programs.silent, ErrNoCommand) {
		return fmt.Sprintf("gresd cannot ask Slurm: %v", c.programs.silent)
	}
	return ""
}

// Scontrol is the path of scontrol, "" where there is none.
func (c *Client) Scontrol() string {
	path, _ := c.programs.path(scontrolName)
	return path
}
