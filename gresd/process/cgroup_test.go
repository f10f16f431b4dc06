// SPDX-License-Identifier: Apache-2.0

package process

import "testing"

func TestCgroupOfJob(t *testing.T) {
	for name, c := range map[string]struct {
		text, folder string
		job          uint32
	}{
		"v1":                    {"12:memory:/user.slice\n4:devices:/slurm/uid_1000/job_7/step_0/task_0\n", "/slurm/uid_1000/job_7", 7},
		"v1 of a named node":    {"4:freezer:/slurm_n1/uid_1000/job_4217/step_batch\n", "/slurm_n1/uid_1000/job_4217", 4217},
		"v2":                    {"0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0\n", "/system.slice/slurmstepd.scope/job_7", 7},
		"v2 of a named node":    {"0::/system.slice/n1_slurmstepd.scope/job_8/step_extern/user/task_special\n", "/system.slice/n1_slurmstepd.scope/job_8", 8},
		"v2 in a container":     {"0::/../../slurmstepd.scope/job_9/step_0\n", "/../../slurmstepd.scope/job_9", 9},
		"a SLUID":               {"0::/system.slice/slurmstepd.scope/sEV9M89YGJHF00/step_0/user\n", "/system.slice/slurmstepd.scope/sEV9M89YGJHF00", 0},
		"one of a named node":   {"0::/system.slice/n1_slurmstepd.scope/sEV9M89YGJHF00/step_0/user\n", "/system.slice/n1_slurmstepd.scope/sEV9M89YGJHF00", 0},
		"one below a step":      {"0::/system.slice/slurmstepd.scope/system/sEV9M89YGJHF00\n", "", 0},
		"a name with a colon":   {"4:devices:/slurm/uid_1/job_7/a:b\n", "/slurm/uid_1/job_7", 7},
		"a folder of the user":  {"0::/user.slice/job_7/x\n", "", 0},
		"of a user's own scope": {"0::/user.slice/user-1000.slice/user@1000.service/app.slice/slurmstepd.scope/job_7\n", "", 0},
		"one below a job":       {"0::/system.slice/slurmstepd.scope/job_7/step_0/user/task_0/job_8\n", "/system.slice/slurmstepd.scope/job_7", 7},
		"a daemon":              {"0::/system.slice/slurmd.service\n", "", 0},
		"slurmstepd of no job":  {"0::/system.slice/slurmstepd.scope/system\n", "", 0},
		"no job 0":              {"0::/system.slice/slurmstepd.scope/job_0\n", "/system.slice/slurmstepd.scope/job_0", 0},
		"nothing":               {"", "", 0},
		"a line that is broken": {"0:\n", "", 0},
	} {
		if folder, job := CgroupOfJob(c.text); folder != c.folder || job != c.job {
			t.Errorf("%s: %q, %d; want %q, %d", name, folder, job, c.folder, c.job)
		}
	}
}

func TestJobOfStepd(t *testing.T) {
	for title, want := range map[string]uint32{
		"slurmstepd: [7.batch]": 7, "slurmstepd: [4217.0] ": 4217, "slurmstepd: [7.extern]": 7,
		"slurmstepd: [7]": 0, "slurmstepd: [x.0]": 0, "/usr/sbin/slurmstepd": 0, "x slurmstepd: [7.0]": 0, "": 0,
	} {
		if got := JobOfStepd(title); got != want {
			t.Errorf("%q: %d, want %d", title, got, want)
		}
	}
}
