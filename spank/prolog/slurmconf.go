// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

const (
	// commandWait limits each of Slurm's commands. A Prolog runs up to three of them.
	commandWait = 5 * time.Second
	// exitMargin is the time between the Prolog's own deadline and Slurm's timeout.
	exitMargin = time.Second
)

func (h *Hook) client() slurmClient {
	if h.slurm != nil {
		return h.slurm
	}
	scontrol := h.Config.Scontrol
	if _, err := slurm.Find(scontrol, ownSlurmd()...); err != nil {
		scontrol = "" // any scontrol can requeue a job
	}
	return slurm.New(slurm.Options{Scontrol: scontrol, Slurmds: ownSlurmd, Conf: h.slurmConf(), Timeout: commandWait})
}

// ownSlurmd returns the slurmd that runs this hook. Slurm gives a hook no PATH, but its commands are
// next to slurmd.
func ownSlurmd() []string {
	slurmd, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", os.Getppid()))
	if err != nil {
		return nil
	}
	return []string{slurmd}
}

// answerDeadline returns how long a Prolog with this timeout may wait for an answer, so that it ends
// before Slurm ends it and drains the node. The rest of the timeout is for Slurm's commands.
func answerDeadline(timeout time.Duration) time.Duration {
	return max(time.Second, timeout-3*commandWait-exitMargin)
}

// timeout returns Slurm's limit for the Prolog: PrologTimeout of the slurm.conf that slurmd names,
// else PrologEpilogTimeout. 0: neither is set.
func (h *Hook) timeout() time.Duration {
	conf, _ := slurm.ReadConf(h.slurmConf()) // an unreadable file sets nothing
	seconds, err := strconv.ParseUint(cmp.Or(conf["prologtimeout"], conf["prologepilogtimeout"]), 10, 16)
	if err != nil || seconds >= slurm.NoTimeout {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// cluster returns the ClusterName of slurmd's slurm.conf in lower case, as Slurm does; "": unknown.
func (h *Hook) cluster() string {
	conf, _ := slurm.ReadConf(cmp.Or(h.conf(), h.Config.SlurmConf))
	return strings.ToLower(clean(conf["clustername"]))
}

// slurmConf returns the slurm.conf in force: that of vgpu.toml, else that of slurmd.
func (h *Hook) slurmConf() string { return cmp.Or(h.Config.SlurmConf, h.conf()) }
