// SPDX-License-Identifier: Apache-2.0

package grant

import (
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
	return readLines(filepath.Join(s.Dir(jobID), environmentFile), mostEnvironment)
}

func (s *Store) writeEnvironment(dir string, rec ledger.Record) error {
	if s.environ == nil {
		return nil
	}
	lines := s.environ(rec)
	if len(lines) == 0 {
		return nil
	}
	return writeNew(filepath.Join(dir, environmentFile), strings.Join(lines, "\n"))
}
