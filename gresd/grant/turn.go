// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"path/filepath"

	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Turn returns what the processes of a job say now of its turns on one card, the
// card being its place in the grant. It reads a few bytes only.
func (s *Store) Turn(jobID uint32, card int) (libvgpu.TurnState, error) {
	e := s.entry(jobID)
	if e == nil {
		return libvgpu.TurnState{}, ErrNotOpen
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.closed {
		return libvgpu.TurnState{}, ErrNotOpen
	}
	if e.reader == nil {
		if err := e.openReader(filepath.Join(s.Dir(jobID), cacheFile)); err != nil {
			return libvgpu.TurnState{}, err
		}
	}
	return e.reader.Turn(card)
}
