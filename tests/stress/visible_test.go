// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"bufio"
	"encoding/json"
	"os/exec"
	"slices"
	"testing"
)

// Processes with limits of the environment and one cache may see different cards. Memory on one card does not
// count on another.
func TestProcessesThatSeeDifferentCardsShareNoLimit(t *testing.T) {
	env, _ := limited(t, "version = 1\ncount = 2\n[model]\nmemory = \"80G\"\n", "100")
	first := exec.Command("../../build/tests/vgpu-worker", "--alloc", "3G", "--hold", "60")
	first.Env = append(env, "CUDA_VISIBLE_DEVICES=0")
	out, err := first.StdoutPipe()
	if err == nil {
		err = first.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = first.Process.Kill(); _ = first.Wait() }()
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		env  []string
		gib  uint64 // granted beside a context, at least, and less than one more
	}{
		{"an empty card", []string{"CUDA_VISIBLE_DEVICES=1"}, 7},
		{"the limit of its first card", []string{"CUDA_VISIBLE_DEVICES=1,0", "CUDA_DEVICE_MEMORY_LIMIT_0=4G"}, 3},
		{"the card of the first process", []string{"CUDA_VISIBLE_DEVICES=0,1"}, 3},
	} {
		second := exec.Command("../../build/tests/vgpu-worker", "--fill")
		second.Env = append(slices.Clone(env), c.env...)
		text, err := second.Output()
		var r struct{ Granted uint64 }
		if err == nil {
			err = json.Unmarshal(text, &r)
		}
		if err != nil || r.Granted>>30 != c.gib {
			t.Errorf("%s: %v, %s; want %d GiB", c.name, err, text, c.gib)
		}
	}
}
