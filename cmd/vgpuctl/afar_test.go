// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/cmd/vgpuctl/top"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// loginHost has Slurm's commands, but no gresd: srun runs vgpuctl against the gresd of "n1", and
// nothing else answers.
func loginHost(t *testing.T, queue string) (config string) {
	t.Helper()
	dir := t.TempDir()
	answer, err := json.Marshal(exampleReply(wire.OpJobs).Jobs)
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"answer":    string(answer),
		"squeue":    "#!/bin/sh\ncat <<'END'\n" + queue + "END\n",
		"srun":      "#!/bin/sh\necho \"$@\" >>" + dir + "/asked\ncase \"$*\" in *--nodelist=n1\\ *) cat " + dir + "/answer;; *) echo 'srun: error: no such \x1b[31mnode' >&2; exit 1;; esac\n",
		"scontrol":  "#!/bin/sh\nexit 1\n",
		"vgpu.toml": "version = 1\n[paths]\nrun_dir = \"" + dir + "/none\"\n[slurm]\nscontrol = \"" + dir + "/scontrol\"\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "vgpu.toml")
}

const exampleQueue = `7|7|RUNNING|n[1-2]|None|gres:shard:30|(null)
8|8|RUNNING|n1|None|gres:shard:20|(null)
9|9|RUNNING|n3|None|gres:gpu:2|(null)
10|10|SUSPENDED|n4|None|gres:vgpu:20|(null)
11|11|PENDING||Resources|gres:shard:90|(null)
`

// Each node is asked once, whatever the number of its jobs; one that does not answer has a row.
func TestJobsOfOtherNodes(t *testing.T) {
	config := loginHost(t, exampleQueue)
	out, errs, code := run(t, "--config", config, "jobs")
	if code != 0 {
		t.Fatalf("exit %d: %s", code, errs)
	}
	narrow(t, out)
	for _, want := range []string{"JOB      NODE  CARD", "1234567  n1    0", "node n2: no such ?[31mnode\n", "node n4: suspended"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	asked, err := os.ReadFile(filepath.Join(filepath.Dir(config), "asked"))
	if err != nil || strings.Count(string(asked), "\n") != 2 || strings.Count(string(asked), "--nodelist=n1 ") != 1 || !strings.Contains(string(asked), "--jobid=7 --overlap --mem=0 ") {
		t.Errorf("asked, %v:\n%s", err, asked)
	}

	out, _, code = run(t, "--config", config, "--json", "ps")
	var jobs []placed
	if err := json.Unmarshal([]byte(out), &jobs); err != nil || code != 0 || len(jobs) != 4 || jobs[0].Node != "n1" || jobs[2].State != unanswered {
		t.Errorf("exit %d, %v: %s", code, err, out)
	}
	if _, errs, code := run(t, "--config", config, "explain", "11"); code != 1 || !strings.Contains(errs, "Slurm's reason is Resources") {
		t.Errorf("a job that waits: exit %d: %s", code, errs)
	}
	if _, errs, code := run(t, "--config", config, "explain", "--gres=vgpu:30"); code != 1 || !strings.Contains(errs, "no gresd here") {
		t.Errorf("a request: exit %d: %s", code, errs)
	}
	// A step asks no other node, or nobody would ever answer.
	t.Setenv(hereEnv, "1")
	if _, errs, code := run(t, "--config", config, "jobs"); code != 1 || !strings.Contains(errs, "connect to gresd") {
		t.Errorf("in a step: exit %d: %s", code, errs)
	}
}

// A step that answers ends with its input, and when nobody asks any more.
func TestStepOfALiveViewEnds(t *testing.T) {
	s := settings{socket: serve(t, exampleReply)}
	var out bytes.Buffer
	if err := s.answerEach(t.Context(), strings.NewReader("\n\n"), &out); err != nil {
		t.Error(err)
	}
	for line := range strings.Lines(out.String()) {
		if err := json.Unmarshal([]byte(line), new(top.Sample)); err != nil {
			t.Errorf("%v: %s", err, line)
		}
	}
	if n := strings.Count(out.String(), "\n"); n != 2 {
		t.Errorf("%d answers, want 2", n)
	}
	synctest.Test(t, func(t *testing.T) {
		in, asker := io.Pipe()
		began := time.Now()
		err := s.answerEach(t.Context(), in, io.Discard)
		if took := time.Since(began); err == nil || took != heardWithin {
			t.Errorf("ended after %s, want %s: %v", took, heardWithin, err)
		}
		asker.Close()
	})
}

// A live view has one step on each node. A node that does not answer is not asked again at once.
func TestALiveViewKeepsOneStepOnEachNode(t *testing.T) {
	config := loginHost(t, exampleQueue)
	dir := filepath.Dir(config)
	write := func(name, text string) {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("#!/bin/sh\n"+text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	write("srun", "echo \"$@\" >>"+dir+"/asked\ncase \"$*\" in\n*--nodelist=n1\\ *) while read -r line; do echo '{\"status\": {\"version\": \"1\"}}'; done ;;\n"+
		"*) echo 'srun: error: no such node' >&2; exit 1 ;;\nesac\n")
	s := &settings{config: config}
	all := &feeds{s: s, client: s.slurm("", stepLimit), most: mostFeeds}
	for range 2 {
		samples, err := all.samples(t.Context())
		if err != nil || len(samples) != 2 {
			t.Fatalf("%+v, %v; want samples of n1 and n2", samples, err)
		}
		if st := samples[0].Status; st.Node != "n1" || st.Version != "1" {
			t.Errorf("n1: %+v", st)
		}
		if st := samples[1].Status; st.Node != "n2" || len(st.Problems) != 1 || st.Problems[0] != "no such node" {
			t.Errorf("n2: %+v", st)
		}
	}
	if asked, err := os.ReadFile(filepath.Join(dir, "asked")); err != nil || strings.Count(string(asked), "\n") != 2 {
		t.Errorf("steps, %v:\n%s", err, asked)
	}
	// The jobs have ended.
	write("squeue", "")
	step := all.open["n1"].step
	all.next = time.Time{}
	if samples, err := all.samples(t.Context()); err != nil || len(samples) != 0 || len(all.open) != 0 {
		t.Errorf("%+v, %v", samples, err)
	}
	if _, open := <-step.answers; open || step.cmd.ProcessState == nil {
		t.Error("the step of n1 goes on")
	}
	all.close()
}

func TestErrorOfAStepIsWhatItsTaskSays(t *testing.T) {
	failed := errors.New("exit status 1")
	for said, want := range map[string]string{
		"srun: error: n1: task 0: Exited with exit code 1\nvgpu: gresd does not answer\n": "vgpu: gresd does not answer",
		"\nsrun: error: Unable to create step\nsrun: error: twice\n":                      "Unable to create step",
		"slurmstepd: error: no vgpuctl\nsrun: error: n1: task 0: Exited\n":                "slurmstepd: error: no vgpuctl",
		"": "srun: exit status 1",
	} {
		if got := stepError(failed, said); got.Error() != want {
			t.Errorf("%q: got %q, want %q", said, got, want)
		}
	}
}
