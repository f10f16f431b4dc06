// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

func (s *settings) ask(ctx context.Context, req wire.Request) (wire.Reply, error) {
	socket := s.socket
	if socket == "" {
		cfg, err := config.Load(s.config)
		if err != nil {
			return wire.Reply{}, err
		}
		socket = cfg.Paths.Socket()
	}
	client := wire.Client{Socket: socket, Timeout: 15 * time.Second}
	rep, err := client.Do(ctx, req)
	if errors.Is(err, fs.ErrNotExist) {
		return rep, fmt.Errorf("%w: is gresd running? see: systemctl status gresd", err)
	}
	return rep, err
}

// checkConfig loads a file as gresd would. A file that is named must exist.
func (s *settings) checkConfig(w io.Writer, args []string) error {
	path := s.config
	if len(args) == 1 {
		path = args[0]
	}
	cfg, err := config.Load(path)
	if err == nil && cfg.Path == "" && path != config.DefaultPath {
		_, err = os.Stat(path)
	}
	result := struct {
		OK    bool           `json:"ok"`
		Path  string         `json:"path"` // "": there is no file, the defaults are in force
		Error string         `json:"error,omitempty"`
		Used  *config.Config `json:"config,omitempty"`
	}{OK: err == nil, Path: cfg.Path}
	if err != nil {
		result.Path, result.Error = path, err.Error()
		if s.json {
			_ = s.print(w, result, nil)
		}
		return err
	}
	result.Used = &cfg
	return s.print(w, result, func(w io.Writer) error {
		if cfg.Path == "" {
			_, err := fmt.Fprintf(w, "%s: no such file, the defaults are in force\n", path)
			return err
		}
		_, err := fmt.Fprintf(w, "%s: ok\n", cfg.Path)
		return err
	})
}
