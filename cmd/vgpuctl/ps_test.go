// SPDX-License-Identifier: Apache-2.0

package main

import (
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func TestProcesses(t *testing.T) {
	socket := serveRequests(t, func(req wire.Request) wire.Reply {
		if req.Op != wire.OpJobs || !req.Processes {
			t.Errorf("asked %+v", req)
		}
		return wire.Reply{OK: true, Jobs: []wire.Job{
			{JobID: 1234567, User: "longname12", Cards: []wire.JobCard{{Index: 12, JobUse: wire.JobUse{ByProcess: []wire.Process{
				{PID: 4194303, JobPID: 1, UsedBytes: 100 << 30, GPUSeconds: 3723.5, Utilization: ptr(0.305)},
				{JobPID: 4194302, UsedBytes: 1 << 30, Unwatched: true},
			}}}}},
			{JobID: 8, User: "bob", Cards: []wire.JobCard{{}}}, // no process yet
		}}
	})
	out, errs, code := run(t, "--socket", socket, "ps")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	narrow(t, out)
	for _, want := range []string{
		"1234567  longname12  12    4194303  1           100 GiB  1h2m3.5s  30.5%",
		"1234567  longname12  12    ?        4194302!    1 GiB    0s        ?",
		"! no thread of libvgpu could be started",
	} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	if strings.Contains(out, "bob") {
		t.Errorf("a job without processes:\n%s", out)
	}
	if out, _, code = run(t, "--json", "--socket", socket, "ps"); code != 0 || !strings.Contains(out, `"utilization": 0.305`) {
		t.Errorf("exit %d:\n%s", code, out)
	}
}
