// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/BurntSushi/toml"
)

// Config is the little that hooks need of vgpu.toml. gresd/config is the
// authority for the file and checks it; here a file of a newer gresd is read
// as well.
type Config struct {
	RunDir  string
	Library string
	// Scontrol and SlurmConf are those of gresd; "": slurmd's.
	Scontrol, SlurmConf string
	Found               bool // there is a file, whatever is in it
}

// DefaultConfigPath is used where $VGPU_CONFIG is not set.
const DefaultConfigPath = "/etc/vgpu/vgpu.toml"

// ReadConfig reads path. Without the file, and beside an error, it returns the
// defaults: a hook must never fail for them.
func ReadConfig(path string) (Config, error) {
	config := Config{RunDir: "/run/vgpu", Library: "/usr/lib/vgpu/libvgpu.so"}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return config, nil
	}
	config.Found = true
	if err != nil {
		return config, fmt.Errorf("read configuration: %w", err)
	}
	var file struct {
		Paths struct {
			RunDir  string `toml:"run_dir"`
			Library string `toml:"library"`
		} `toml:"paths"`
		Slurm struct {
			Scontrol string `toml:"scontrol"`
			Conf     string `toml:"conf"`
		} `toml:"slurm"`
	}
	if _, err := toml.Decode(string(text), &file); err != nil {
		return config, fmt.Errorf("read configuration %s: %w", path, err)
	}
	if file.Paths.RunDir != "" {
		config.RunDir = file.Paths.RunDir
	}
	if file.Paths.Library != "" {
		config.Library = file.Paths.Library
	}
	config.Scontrol, config.SlurmConf = file.Slurm.Scontrol, file.Slurm.Conf
	return config, nil
}
