// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// nameCards makes or removes config.Paths.Cards.
func (s *Server) nameCards(cards []gpu.Card) error {
	path := s.Config.Paths.Cards()
	if !slices.ContainsFunc(cards, gpu.Card.IsInstance) {
		if err := os.Remove(path); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		return nil
	}
	var text []byte
	for _, c := range cards {
		text = fmt.Appendf(text, "%d %s\n", c.Index, c.UUID)
	}
	if old, err := os.ReadFile(path); err == nil && bytes.Equal(old, text) {
		return nil
	}
	if err := os.WriteFile(path+".new", text, 0o644); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}
