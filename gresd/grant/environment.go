// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"os"
	"path/filepath"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
)

// environmentFile has lines NAME=VALUE for the environment of tasks; not every
// job has one.
const environmentFile = "environment"

// SetEnvironment sets what says which variables, as NAME=VALUE, the tasks of a
// job get. It must be set before the store is used.
func (s *Store) SetEnvironment(f func(ledger.Record) []string) { s.environ = f }

// ReadEnvironment returns what the tasks of a job get; nil for nothing.
func (s *Store) ReadEnvironment(jobID uint32) []string {
	text := readText(filepath.Join(s.Dir(jobID), environmentFile), mostEnvironment)
	if text == "" {
		return nil
	}
	return strings.Split(text, "\n")
}

func (s *Store) writeEnvironment(dir string, rec ledger.Record) error {
	if s.environ == nil {
		return nil
	}
	lines := s.environ(rec)
	if len(lines) == 0 {
		return nil
	}
	path := filepath.Join(dir, environmentFile)
	if err := os.WriteFile(path, []byte(strings.Join(lines, "\n")+"\n"), 0o444); err != nil {
		return err
	}
	return os.Chmod(path, 0o444)
}
