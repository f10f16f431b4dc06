// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Reboot does to the first node what a power failure does: every process of it
// is gone at once, and so is what lay below /run. The disk stays. slurmctld and
// the other daemons are of other machines.
func (c *Cluster) Reboot() error {
	var others []int
	for _, d := range slices.Concat([]*Daemon{c.Slurmctld, c.munged}, c.accounts) {
		others = append(others, d.PID())
	}
	c.Slurmd.Kill()
	c.Gresd.Kill()
	if !until(5*time.Second, 20*time.Millisecond, func() bool {
		left := slices.DeleteFunc(processes(), func(p Process) bool {
			return slices.Contains(others, p.PID) || strings.HasSuffix(p.Command, "slurmscriptd")
		})
		for _, p := range left {
			_ = syscall.Kill(p.PID, syscall.SIGKILL)
		}
		return len(left) == 0
	}) {
		return fmt.Errorf("processes outlive the reboot")
	}
	files, err := filepath.Glob(runDir + "/*")
	if err != nil {
		return err
	}
	for _, file := range files {
		if err := os.RemoveAll(file); err != nil {
			return err
		}
	}
	if err := command(simTool, "init", "--config", simDir+"/cards.toml", "--state", simState); err != nil {
		return err
	}
	if err := c.Gresd.Start(); err != nil {
		return err
	}
	// -b: slurmd says that the machine has just started. Its node may take jobs at
	// once, and is not idle then.
	ready, argv := c.Slurmd.ready, c.Slurmd.argv
	defer func() { c.Slurmd.ready, c.Slurmd.argv = ready, argv }()
	c.Slurmd.ready, c.Slurmd.argv = func() bool { return true }, append(slices.Clone(argv), "-b")
	return c.Slurmd.Start()
}
