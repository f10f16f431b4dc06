// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"os"
	"path/filepath"
)

// Config is the text of vgpu.toml.
func (c *Cluster) Config() string {
	data, err := os.ReadFile(vgpuConf)
	if err != nil {
		return ""
	}
	return string(data)
}

// SetConfig replaces vgpu.toml. gresd reads it when it starts, and at [Daemon.Reload].
func (c *Cluster) SetConfig(text string) error {
	return os.WriteFile(vgpuConf, []byte(text), 0o644)
}

// DropLedger removes gresd's durable record, as a lost disk would.
func (c *Cluster) DropLedger() error { return os.RemoveAll(stateDir) }

// File reads a file that a job wrote in its user's home.
func (c *Cluster) File(name, file string) string {
	data, err := os.ReadFile(filepath.Join(c.Home(name), file))
	if err != nil {
		return ""
	}
	return string(data)
}

// LogSize is the length of the daemon's log, for [Daemon.LogFrom].
func (d *Daemon) LogSize() int64 {
	info, err := os.Stat(d.log)
	if err != nil {
		return 0
	}
	return info.Size()
}

// LogFrom is what the daemon has logged since the log had that size.
func (d *Daemon) LogFrom(size int64) string {
	data, err := os.ReadFile(d.log)
	if err != nil || int64(len(data)) < size {
		return ""
	}
	return string(data[size:])
}
