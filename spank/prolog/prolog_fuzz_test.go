// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
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

// FuzzTask: a job's own variables, which its user sets, and the files of its folder, in
// TaskProlog: slurmstepd reads a line at a time, and the library comes first in what
// the task preloads.
func FuzzTask(f *testing.F) {
	f.Add("7", "", "", "A=1\nB=2\n", "", "1")
	f.Add("7", "/mine.so:/x.so", "2", "", "", "")
	f.Add("../7", "x\nunset LD_PRELOAD", "9999999999", "\n", "", "0")
	f.Add("7", "/usr/lib/vgpu/libvgpu.so.mine /usr/lib/vgpu/libvgpu.so", "-1", "A=\x00", "vgpu: no\nprint x", "")
	dir := f.TempDir()
	job := filepath.Join(dir, "jobs", "7")
	if err := os.MkdirAll(job, 0o700); err != nil {
		f.Fatal(err)
	}
	const library = "/usr/lib/vgpu/libvgpu.so"
	f.Fuzz(func(t *testing.T, id, preload, het, environment, refused, shards string) {
		grant := binary.LittleEndian.AppendUint64(nil, grantMagic)
		for name, text := range map[string]string{"grant": string(grant), "environment": environment, "refused": refused} {
			path := filepath.Join(job, name)
			if name == "refused" && text == "" {
				os.Remove(path)
			} else if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
		}
		vars := map[string]string{
			"SLURM_JOB_ID": id, "SLURM_HET_SIZE": het, "SLURM_JOB_ID_HET_GROUP_0": id, "SLURM_JOB_ID_HET_GROUP_1": "7", "LD_PRELOAD": preload,
			"SLURM_SHARDS_ON_NODE": shards,
		}
		var out, errs bytes.Buffer
		h := &Hook{
			Config: Config{RunDir: dir, Library: library}, Getenv: func(name string) string { return vars[name] }, Stdout: &out, Stderr: &errs,
			selfGrant: filepath.Join(dir, "none"),
		}
		code := h.taskProlog()
		var exports []string
		for line := range strings.Lines(out.String()) {
			if line, is := strings.CutPrefix(line, "export LD_PRELOAD="); is {
				exports = append(exports, strings.TrimSuffix(line, "\n"))
			}
		}
		switch {
		case code != ExitOK:
			if code != ExitFault || len(exports) > 0 || strings.Count(out.String(), "\n") != 1 || !strings.HasPrefix(out.String(), "print ") {
				t.Fatalf("%d: %q", code, out.String())
			}
		case len(exports) > 0 && !strings.Contains(preload, "\n") && !strings.Contains(environment, "LD_PRELOAD"):
			words := strings.FieldsFunc(exports[0], func(r rune) bool { return r == ':' || r == ' ' })
			if len(exports) != 1 || !slices.Contains(words, library) {
				t.Fatalf("%q", exports)
			}
		}
	})
}
