// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

const fileVersion = 1

type document struct {
	Version int                 `json:"version"`
	Cards   map[gpu.UUID]Record `json:"cards"`
}

// load reads the records; an absent file has none.
func load(path string) (map[gpu.UUID]Record, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return map[gpu.UUID]Record{}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read state of cards: %w", err)
	}
	doc := document{Cards: map[gpu.UUID]Record{}}
	if err := json.Unmarshal(text, &doc); err != nil {
		return nil, fmt.Errorf("read state of cards %s: %w: remove the file, then cordon again the cards that must not be used", path, err)
	}
	if doc.Version != fileVersion {
		return nil, fmt.Errorf("read state of cards %s: version %d: this gresd reads version %d", path, doc.Version, fileVersion)
	}
	if doc.Cards == nil {
		doc.Cards = map[gpu.UUID]Record{}
	}
	return doc.Cards, nil
}

// save writes the records durably: the whole file, under another name first.
func save(path string, records map[gpu.UUID]Record) error {
	if err := atomicfile.WriteJSON(path, document{fileVersion, records}); err != nil {
		return fmt.Errorf("write state of cards: %w", err)
	}
	return nil
}
