// SPDX-License-Identifier: Apache-2.0

package health

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

const fileVersion = 1

type document struct {
	Version int                 `json:"version"`
	Cards   map[gpu.UUID]Record `json:"cards"`
	Written map[string]Written  `json:"written,omitempty"` // by node
}

// load reads the state. Without a file, it is empty.
func load(path string) (doc document, err error) {
	text, err := os.ReadFile(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		doc.Version = fileVersion
	case err != nil:
		return doc, fmt.Errorf("read state of cards: %w", err)
	default:
		if err := json.Unmarshal(text, &doc); err != nil {
			return doc, fmt.Errorf("read state of cards %s: %w: remove the file, then cordon again the cards that must not be used", path, err)
		}
	}
	if doc.Version != fileVersion {
		return doc, fmt.Errorf("read state of cards %s: version %d: this gresd reads version %d", path, doc.Version, fileVersion)
	}
	if doc.Cards == nil {
		doc.Cards = map[gpu.UUID]Record{}
	}
	if doc.Written == nil {
		doc.Written = map[string]Written{}
	}
	return doc, nil
}
