// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"os"
	"path/filepath"
	"testing"
)

func TestFilesOfSlurmAreThoseOfThisHost(t *testing.T) {
	own, cache := t.TempDir(), t.TempDir()
	defer func(was string) { fetched = was }(fetched)
	fetched = cache
	f := settings{"slurm_conf": filepath.Join(own, "slurm.conf")}
	write := func(dir string) {
		if err := os.WriteFile(filepath.Join(dir, "slurm.conf"), nil, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if got := f.dir(); got != own {
		t.Errorf("without any: %s, want %s", got, own)
	}
	write(cache)
	if got := f.dir(); got != cache {
		t.Errorf("what slurmd has fetched: %s, want %s", got, cache)
	}
	write(own)
	if got := f.dir(); got != own {
		t.Errorf("a file of this host: %s, want %s", got, own)
	}
}
