// SPDX-License-Identifier: Apache-2.0

package server

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// writeMarkers writes what the tasks of jobs read in run_dir. It makes config.Paths.Ask if gresd places.
// It writes config.Paths.Loses, unless this release drops no shards.
func (s *Server) writeMarkers() error {
	paths := s.config.Get().Paths
	err := atomicfile.Remove(paths.Ask())
	if s.config.Get().Placement.By == config.PlacementGresd {
		err = os.WriteFile(paths.Ask(), nil, 0o644)
	}
	if err == nil {
		err = os.WriteFile(paths.Loses(), nil, 0o644)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), releaseWait)
	defer cancel()
	s.mayDropShards(ctx, "")
	s.nameCards()
	return nil
}

// mayDropShards reports whether this Slurm can start a job without its shards; true if its release is
// unknown. It removes config.Paths.Loses if not.
func (s *Server) mayDropShards(ctx context.Context, conf string) bool {
	if s.neverDropsShards.Load() {
		return false
	}
	loses, err := s.node.Slurm(conf).LosesShards(ctx)
	if err != nil || loses {
		return true
	}
	_ = os.Remove(s.config.Get().Paths.Loses()) // a marker that stays only makes tasks ask more
	s.neverDropsShards.Store(true)
	return false
}

// nameCards makes config.Paths.Cards if some cards are MIG instances, or removes it.
func (s *Server) nameCards() {
	path, cards := s.config.Get().Paths.Cards(), s.cards.Now().Cards
	var err error
	if slices.ContainsFunc(cards, gpu.Card.IsInstance) {
		var text []byte
		for _, c := range cards {
			text = fmt.Appendf(text, "%d %s\n", c.Index, c.UUID)
		}
		if old, missing := os.ReadFile(path); missing != nil || !bytes.Equal(old, text) {
			err = atomicfile.Replace(path, text, 0o644)
		}
	} else {
		err = atomicfile.Remove(path)
	}
	if err != nil {
		s.log.Warn("jobs of whole cards do not learn their instances", "error", err)
	}
}
