// SPDX-License-Identifier: Apache-2.0

package process

import (
	"regexp"
	"strconv"
	"strings"
)

// CgroupOfJob finds Slurm's folder of a job in the text of /proc/<pid>/cgroup:
//
//	v1: 4:devices:/slurm/uid_1000/job_7/step_0/task_0, also /slurm_<node>/…
//	v2: 0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0, also /<node>_slurmstepd.scope/…
//
// folder names the job's folder up to its own name, "" where there is none.
// jobID is 0 for a folder that is not named by the job's number but by a SLUID, as from 26.05 on:
//
//	v2: 0::/system.slice/slurmstepd.scope/sEV9M89YGJHF00/step_0/user/task_0
//
// A user cannot leave the cgroup of a job, nor make one outside of it but below those of his logins,
// where Slurm has none.
func CgroupOfJob(text string) (folder string, jobID uint32) {
	for line := range strings.Lines(text) {
		parts := strings.SplitN(strings.TrimSpace(line), ":", 3)
		if len(parts) != 3 {
			continue
		}
		names := strings.Split(parts[2], "/")
		inSlurm := false
		for i, name := range names {
			if name == logins && !inSlurm {
				break
			}
			if !inSlurm {
				inSlurm = isSlurm(name)
				continue
			}
			// The first one counts: a user may make folders below.
			label, is := strings.CutPrefix(name, "job_")
			if is && label != "" || sluid.MatchString(name) && inScope(names[i-1]) {
				folder = strings.Join(names[:i+1], "/")
				if n, err := strconv.ParseUint(label, 10, 32); err == nil && n != 0 {
					return folder, uint32(n)
				}
				break
			}
		}
	}
	return folder, 0
}

// logins is the folder of all that users have started outside of Slurm. systemd lets each make folders
// of any name below his own.
const logins = "user.slice"

// sluid is how Slurm writes the number of a job that is unique among all clusters.
var sluid = regexp.MustCompile(`^s[0-9A-Z]{13}$`)

func isSlurm(name string) bool {
	return name == "slurm" || strings.HasPrefix(name, "slurm_") || inScope(name)
}

// inScope reports whether a folder holds all slurmstepd of a node.
func inScope(name string) bool {
	return name == "slurmstepd.scope" || strings.HasSuffix(name, "_slurmstepd.scope")
}

// JobOfStepd reads the title of a slurmstepd process, "slurmstepd: [7.batch]";
// 0 for anything else.
func JobOfStepd(title string) uint32 {
	if job := stepdTitle.FindStringSubmatch(title); job != nil {
		if n, err := strconv.ParseUint(job[1], 10, 32); err == nil {
			return uint32(n)
		}
	}
	return 0
}

var stepdTitle = regexp.MustCompile(`^\s*slurmstepd: \[(\d+)\.`)
