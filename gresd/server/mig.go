// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"fmt"
	"os"
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// nameCards makes or removes config.Paths.Cards.
func (s *Server) nameCards() {
	if err := nameCards(s.cfg().Paths.Cards(), s.Cards.Now().Cards); err != nil {
		s.log.Warn("jobs of whole cards do not learn their instances", "error", err)
	}
}

func nameCards(path string, cards []gpu.Card) error {
	if !slices.ContainsFunc(cards, gpu.Card.IsInstance) {
		return atomicfile.Remove(path)
	}
	var text []byte
	for _, c := range cards {
		text = fmt.Appendf(text, "%d %s\n", c.Index, c.UUID)
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return nil
	}
	return atomicfile.Replace(path, text, 0o644)
}
