// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// A mistake is told with the same words, whoever finds it: the plugin in the
// client, vgpu-srun, or job_submit.lua.
func TestAllClientsSayTheSame(t *testing.T) {
	s := up(t, oneCard)
	// ours is the line of ours, from its mark on; "" where there is not one.
	ours := func(r cluster.Result) string {
		_, line, found := strings.Cut(r.Err, "vgpu: ")
		line, more, _ := strings.Cut(line, "\n")
		if r.Code == 0 || !found || strings.Contains(more, "vgpu: ") {
			return ""
		}
		return line
	}
	same := func(args []string, clients map[string]func() cluster.Result) {
		t.Helper()
		said := map[string][]string{}
		for name, client := range clients {
			r := client()
			line := ours(r)
			if line == "" {
				t.Errorf("%q, %s: want one line of vgpu: %s", args, name, r)
			}
			said[line] = append(said[line], name)
		}
		if len(said) != 1 {
			t.Errorf("%q: the lines differ:", args)
			for line, names := range said {
				t.Errorf("    %s: %s", strings.Join(names, ", "), line)
			}
		}
	}
	run := func(argv ...string) func() cluster.Result {
		return func() cluster.Result { return s.As(bob, append(argv, "true")...) }
	}

	table, err := os.ReadFile("../../spank/plugin/testdata/options.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(table)) {
		words := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(words) != 3 || words[2] != "bad" {
			continue
		}
		n++
		value := strings.ReplaceAll(words[1], "_", " ")
		args := []string{"--gres=vgpu:16", fmt.Sprintf("--vgpu-%s=%s", words[0], value)}
		clients := map[string]func() cluster.Result{
			"the plugin in sbatch": func() cluster.Result { return s.TrySbatch(bob, args, "true") },
			"vgpu-srun":            run(append([]string{"vgpu-srun"}, args...)...),
		}
		if !strings.ContainsAny(value, " ,") { // a comment cannot have these in a value
			clients["job_submit.lua"] = func() cluster.Result {
				return s.TrySbatch(bob, []string{args[0], fmt.Sprintf("--comment=vgpu(%s=%s)", words[0], value)}, "true")
			}
		}
		same(args, clients)
	}
	if n < 40 {
		t.Errorf("only %d values", n)
	}

	// What is wrong only together; the plugin leaves it to job_submit.lua.
	for _, text := range []string{
		"--gres=vgpu:0", "--gres=vgpu:101", "--gres=vgpu:150", "--gres=vgpu:1700", "--gres=vgpu:030", "--gres=vgpu:30x",
		"--gres=vgpu:sim:101", "--gres=vgpu:sim", "--gres=shard:101 --vgpu-mem=1G",
		"--gres=vgpu:30 --vgpu-mode=soft:20", "--gres=vgpu:30 --vgpu-mode=soft:40 --vgpu-cores=50",
		"--gres=vgpu:50 --vgpu-cards=3", "--gres=vgpu:200 --vgpu-cards=1", "--gres=vgpu:300 --vgpu-cards=2",
		"--vgpu-mem=8G", "--vgpu-mode=soft",
	} {
		args := strings.Fields(text)
		same(args, map[string]func() cluster.Result{
			"sbatch":    func() cluster.Result { return s.TrySbatch(bob, args, "true") },
			"srun":      run(append([]string{"srun", "--immediate=30"}, args...)...),
			"salloc":    run(append([]string{"salloc", "--immediate=30"}, args...)...),
			"vgpu-srun": run(append([]string{"vgpu-srun"}, args...)...),
		})
	}
}
