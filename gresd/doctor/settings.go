// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"slices"
	"strconv"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

const (
	// leastPrologTime is what a Prolog may need at least where gresd or slurmctld is slow: three
	// commands of Slurm, and some time for an answer.
	leastPrologTime = 30
	// noTimeout is how Slurm writes that there is none.
	noTimeout = 65534
)

// checkSettings looks at what slurm.conf may say and a share job would notice.
func checkSettings(f *facts, engines config.MPS, say func(Status, string, string)) {
	for _, name := range []string{"PrologEpilogTimeout", "PrologTimeout"} {
		seconds, err := strconv.Atoi(f.get(name))
		if err == nil && seconds > 0 && seconds < leastPrologTime && seconds != noTimeout {
			say(Warn, name+" is "+f.get(name)+" s: a job with a share is sent back when slurmctld does not answer at once", name+"=30 or more in slurm.conf")
		}
	}
	if f.get("JobRequeue") == "0" {
		say(Warn, "JobRequeue is 0: a batch job that finds its card out of use fails", "JobRequeue=1 in slurm.conf, or sbatch --requeue")
	}
	if engines.DefaultEngine == gpu.Auto && engines.Trust == config.TrustAccount && !slices.Contains(f.list("AccountingStorageEnforce"), "associations") {
		say(Warn, "AccountingStorageEnforce lacks associations: users name any account, and the engine auto trusts users of one account",
			`AccountingStorageEnforce=associations in slurm.conf, or [mps] trust = "user"`)
	}
}
