// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"bufio"
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// FuzzRequest: whatever users have put into the variables of their jobs, Prolog says
// something that gresd takes for a request, of the job that Slurm named: else the node
// would be drained for it.
func FuzzRequest(f *testing.F) {
	f.Add("7", "1000", "ada", "0,2", "8G", "soft:80", "/etc/slurm/slurm.conf")
	f.Add("4294967295", "-1", "a\x00b\n", "0-255", "\xff\xfe", "\x1b[2J", "slurm.conf")
	f.Add("0", "", "", "5-3,x,,1-", "", "", "")
	f.Add("7", "4294967296", "\u2028\"\\", "0-200,0-200", string(bytes.Repeat([]byte("é"), 300)), "{\"op\":\"grant\"}", "/\x7f")
	f.Fuzz(func(t *testing.T, job, uid, user, cards, mem, mode, conf string) {
		vars := map[string]string{
			"SLURM_JOB_ID": job, "SLURM_JOB_UID": uid, "SLURM_JOB_GID": uid, "SLURM_JOB_USER": user, "SLURM_JOB_ACCOUNT": user, "SLURM_JOB_PARTITION": mode,
			"SLURM_JOB_GPUS": cards, "SPANK_VGPU_MEM": mem, "SPANK_VGPU_MODE": mode, "SPANK_VGPU_CORES": cards, "SLURM_CONF": conf, "SLURMD_NODENAME": user,
			"SLURM_JOB_RESTART_COUNT": uid, "SPANK_VGPU_POLICY": mem, "SPANK_VGPU_ENGINE": mode,
		}
		h := &Hook{Getenv: func(name string) string { return vars[name] }}
		req, err := h.request(wire.OpGrant)
		if err != nil {
			return
		}
		line, err := json.Marshal(req)
		if err != nil {
			t.Fatal(err)
		}
		again, err := wire.ReadRequest(bufio.NewReader(bytes.NewReader(append(line, '\n'))))
		if err != nil {
			t.Fatalf("gresd would not take %s: %v", line, err)
		}
		if second, err := json.Marshal(again); err != nil || !bytes.Equal(line, second) {
			t.Fatalf("%s became %s, %v", line, second, err)
		}
	})
}

// FuzzConfig: hooks get paths to go on with, whatever the file holds.
func FuzzConfig(f *testing.F) {
	for _, s := range []string{
		"[paths]\nrun_dir = \"/run/v\"\nlibrary = \"/l.so\"\n", "", "[paths]\nrun_dir = 7\n", "[paths\n", "paths = 1\n", "[[paths]]\nrun_dir=\"\"\n", "[paths]\nrun_dir=\"\"\n[x]\ny=[1,{z=1979-05-27}]\n",
		"a.b.c = '''\n'''\n[paths]\nlibrary = \"\\u0000\"",
	} {
		f.Add([]byte(s))
	}
	path := filepath.Join(f.TempDir(), "vgpu.toml")
	f.Fuzz(func(t *testing.T, text []byte) {
		if err := os.WriteFile(path, text, 0o600); err != nil {
			t.Fatal(err)
		}
		c, err := ReadConfig(path)
		if c.RunDir == "" || c.Library == "" || err != nil && (c.RunDir != "/run/vgpu" || c.Library != "/usr/lib/vgpu/libvgpu.so") {
			t.Fatalf("%+v, %v", c, err)
		}
	})
}
