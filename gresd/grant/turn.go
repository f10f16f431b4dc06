// SPDX-License-Identifier: Apache-2.0

package grant

import (
	"github.com/slurm-vgpu/slurm-vgpu/libvgpu"
)

// Turn returns what the processes of a job say now of its turns on one card, the
// card being its place in the grant. It reads a few bytes only.
func (s *Store) Turn(jobID uint32, card int) (libvgpu.TurnState, error) {
	e := s.entry(jobID)
	if e == nil {
		return libvgpu.TurnState{}, ErrNotOpen
	}
	e.cache.mu.Lock()
	defer e.cache.mu.Unlock()
	if err := e.cache.open(s.cacheOf(jobID)); err != nil {
		return libvgpu.TurnState{}, err
	}
	return e.cache.file.Turn(card)
}
