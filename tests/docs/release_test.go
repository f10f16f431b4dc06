// SPDX-License-Identifier: Apache-2.0

package docs

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A release is what is committed.
func TestReleaseRefusesWhatIsNotCommitted(t *testing.T) {
	if _, err := os.Stat(filepath.Join(top, ".git")); err != nil {
		t.Skip("this is no git checkout")
	}
	clone := filepath.Join(t.TempDir(), "clone")
	if out, err := exec.Command("git", "-c", "safe.directory=*", "clone", "-q", "-n", top, clone).CombinedOutput(); err != nil {
		t.Fatalf("git clone: %v: %s", err, out)
	}
	for _, file := range []string{"VERSION", "packaging/release"} {
		text, err := os.ReadFile(filepath.Join(top, file))
		if err != nil {
			t.Fatal(err)
		}
		if err := os.MkdirAll(filepath.Join(clone, filepath.Dir(file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(clone, file), text, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	out, err := exec.Command(filepath.Join(clone, "packaging/release")).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "not committed") {
		t.Errorf("%v: %s", err, out)
	}
	if _, err := os.Stat(filepath.Join(clone, "build")); err == nil {
		t.Error("it has begun to build")
	}
}

// Who asks what a release is made of finds the modules of its programs and what is of npm.
func TestBillOfMaterials(t *testing.T) {
	cmd := exec.Command("go", "run", "./packaging/sbom", "1.2.3", "build/bin/gresd", "build/bin/vgpuctl")
	cmd.Dir, cmd.Env = top, append(os.Environ(), "SOURCE_DATE_EPOCH=86400")
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	var bill struct {
		Metadata     struct{ Timestamp string }
		Components   []struct{ Name, Version, Purl string }
		Dependencies []struct {
			Ref       string
			DependsOn []string
		}
	}
	if err := json.Unmarshal(out, &bill); err != nil {
		t.Fatal(err)
	}
	has := map[string]string{}
	for _, c := range bill.Components {
		has[c.Name] = c.Purl
		if c.Version == "" {
			t.Errorf("%s has no version", c.Name)
		}
	}
	for _, name := range []string{"gresd", "vgpuctl", "stdlib", "github.com/NVIDIA/go-nvml", "uplot"} {
		if _, ok := has[name]; !ok {
			t.Errorf("%s is missing: %s", name, out)
		}
	}
	if !strings.HasPrefix(has["uplot"], "pkg:npm/uplot@") || bill.Metadata.Timestamp != "1970-01-02T00:00:00Z" || len(bill.Dependencies) != 3 {
		t.Errorf("%s", out)
	}
}
