// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// files makes a folder of files, and returns the path of slurm.conf in it.
func files(t testing.TB, texts map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range texts {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return filepath.Join(dir, "slurm.conf")
}

func TestConfIsReadAsSlurmReadsIt(t *testing.T) {
	path := files(t, map[string]string{
		"slurm.conf": "ClusterName = Alpha # ours\nPrologTimeout=30\nInclude more-%c.conf\ninclude absent.conf\n" +
			"NodeName=n1 \\\n  Gres=gpu:2\nEpilog=\"/usr/sbin/vgpu-prolog\"\n#TaskProlog=/x\n",
		"more-alpha.conf": "PrologTimeout=40\nProlog=/a\nProlog=/b\nInclude more-alpha.conf\nPartitionName=p State=UP\n",
	})
	got, err := ReadConf(path)
	delete(got, "prolog") // how deep a circle is read counts for nothing
	want := map[string]string{
		"clustername": "Alpha", "prologtimeout": "40", "nodename": "n1", "epilog": "/usr/sbin/vgpu-prolog", "partitionname": "p",
	}
	if err != nil || !maps.Equal(got, want) {
		t.Errorf("%v, %v; want %v", got, err, want)
	}
	if lines, _ := ConfLines(path); !slices.Contains(lines, "NodeName=n1   Gres=gpu:2") {
		t.Errorf("%q: want the node on one line", lines)
	}
	if got := Conf([]string{"Prolog=/a", "prolog=/b"})["prolog"]; got != "/a,/b" {
		t.Errorf("two programs are %q", got)
	}
	if _, err := ReadConf(path + ".none"); !os.IsNotExist(err) {
		t.Errorf("no file: %v", err)
	}
}

// FuzzConf: slurm.conf, gres.conf and cgroup.conf, with what an administrator may have written, and
// what scontrol shows.
func FuzzConf(f *testing.F) {
	for _, s := range []string{
		"SlurmctldHost=a\nProlog=/x\nProlog=/y # twice\n", "ClusterName = c\n", "Prolog                  = (null)\nEpilog[0] = \"/usr/sbin/vgpu-prolog\"\n",
		"=\n==\n# x=y\nA\n", "NodeName=n[1-2] Gres=gpu:2\n", "ınclude=x\nTASKPROLOG=,\r\n", "Include slurm.conf\nInclude %c\n",
		"=\"(null)", "Prolog=\"/x\"\nProlog=\"/y\"\nProlog=(null)\n", "a=b\\\nc=d\\", "Include slurm.conf\nInclude slurm.conf\n",
	} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 4096 {
			return
		}
		path := files(t, map[string]string{"slurm.conf": text})
		lines, err := ConfLines(path)
		if err != nil || slices.ContainsFunc(lines, func(line string) bool { return line == "" || strings.ContainsAny(line, "\n#") }) {
			t.Fatalf("%q, %v", lines, err)
		}
		for of, values := range map[string]map[string]string{"conf": Conf(lines), "shown": ParseShown(text)} {
			if of == "shown" && len(values) > strings.Count(text, "=") {
				t.Fatalf("%s: %d values", of, len(values))
			}
			for name, value := range values {
				if name != strings.ToLower(strings.TrimSpace(name)) || strings.Contains(name+value, "\n") || of == "shown" && value == "(null)" {
					t.Fatalf("%s: %q is %q", of, name, value)
				}
			}
		}
	})
}
