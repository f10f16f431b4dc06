// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestCommandLine(t *testing.T) {
	for name, c := range map[string]struct {
		args []string
		say  string
	}{
		"version":          {[]string{"version"}, "gresd dev (go"},
		"help":             {[]string{"--help"}, "gres-conf"},
		"unknown argument": {[]string{"start"}, `unknown command "start"`},
	} {
		var out bytes.Buffer
		cmd := command()
		cmd.SetArgs(c.args)
		cmd.SetOut(&out)
		text := ""
		if err := cmd.Execute(); err != nil {
			text = err.Error()
		}
		if !strings.Contains(out.String()+text, c.say) {
			t.Errorf("%s: got %q %q, want %q", name, out.String(), text, c.say)
		}
	}
}

func TestConfigurationWithAMistake(t *testing.T) {
	path := filepath.Join(t.TempDir(), "vgpu.toml")
	if err := os.WriteFile(path, []byte("version = 1\n[arbiter]\nperiod = 5\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := command()
	cmd.SetArgs([]string{"--config", path})
	if err := cmd.Execute(); err == nil || !strings.Contains(err.Error(), path) {
		t.Errorf("got %v, want an error that names the file", err)
	}
}
