// SPDX-License-Identifier: Apache-2.0

package process

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// FuzzCgroupOfJob: the job is the first one below a folder of Slurm's own, whatever
// its user made below; and nothing outside counts.
func FuzzCgroupOfJob(f *testing.F) {
	for _, s := range []string{
		"4:devices:/slurm/uid_1000/job_7/step_0/task_0\n", "0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n",
		"0::/system.slice/n1_slurmstepd.scope/job_7/step_0", "0::/user.slice/job_7\n", "0::/slurm/job_abc/job_8", "0::/slurm/job_0/x",
		"0::/job_9/slurm/job_", "1:a:/slurm_n1/uid_0/job_4294967296\n2:b:/slurm_n1/job_5\n", "::\n::/slurm/job_+7", "0::/slurm\x00/job_7",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		folder, job := CgroupOfJob(text)
		if folder == "" {
			if job != 0 {
				t.Fatalf("job %d of no folder", job)
			}
			return
		}
		names := strings.Split(folder, "/")
		own := slices.IndexFunc(names, isSlurm)
		if own < 0 || !strings.Contains(text, folder) {
			t.Fatalf("folder %q of %q", folder, text)
		}
		// Folders above Slurm's may happen to be called so, and Slurm's own, of a node "job".
		names = names[own+1:]
		first := slices.IndexFunc(names, func(n string) bool { return len(n) > len("job_") && strings.HasPrefix(n, "job_") })
		if first != len(names)-1 {
			t.Fatalf("folder %q is not the first of a job", folder)
		}
		if label := names[first]; job != 0 && strings.TrimLeft(strings.TrimPrefix(label, "job_"), "0") != fmt.Sprint(job) {
			t.Fatalf("job %d of %q", job, label)
		}
		if title := fmt.Sprintf("slurmstepd: [%d.batch]", job); JobOfStepd(title) != job {
			t.Fatalf("%q is job %d", title, JobOfStepd(title))
		}
	})
}
