// SPDX-License-Identifier: Apache-2.0

package probe

import (
	"log/slog"
	"maps"
	"sync"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
)

// store keeps results in a file across restarts. Each result is valid for one driver version. The
// zero value is empty.
type store[T any] struct {
	path, driver string

	mu     sync.Mutex
	values map[string]T // by driver version and name
}

// open reads the file. It drops invalid results.
func (s *store[T]) open(path, driver string, valid func(T) bool, log *slog.Logger) {
	s.path, s.driver = path, driver
	// A file that cannot be read counts as empty.
	if s.values, _ = atomicfile.ReadJSON[map[string]T](path, log); s.values == nil {
		s.values = map[string]T{}
	}
	maps.DeleteFunc(s.values, func(_ string, v T) bool { return !valid(v) })
}

func (s *store[T]) get(name string) (v T, known bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	v, known = s.values[s.driver+"/"+name]
	return v, known
}

// set saves a result. If v is nil, it removes the result. It returns an error if the file cannot be
// written.
func (s *store[T]) set(name string, v *T) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if key := s.driver + "/" + name; v != nil {
		s.values[key] = *v
	} else {
		delete(s.values, key)
	}
	return atomicfile.WriteJSON(s.path, s.values)
}
