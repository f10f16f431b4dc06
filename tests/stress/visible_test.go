// SPDX-License-Identifier: Apache-2.0

package stress

import (
	"bufio"
	"encoding/json"
	"os/exec"
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
	second := exec.Command("../../build/tests/vgpu-worker", "--fill")
	second.Env = append(env, "CUDA_VISIBLE_DEVICES=1")
	text, err := second.Output()
	var r struct{ Granted uint64 }
	if err == nil {
		err = json.Unmarshal(text, &r)
	}
	if err != nil || r.Granted < 7<<30 {
		t.Errorf("%v, %s; want 7 GiB of an empty card", err, text)
	}
}
