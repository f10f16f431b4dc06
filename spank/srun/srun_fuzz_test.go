// SPDX-License-Identifier: Apache-2.0

package srun

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// FuzzCommandLine: no word of a command line is lost or made up. What is not ours
// reaches srun as it was and in its order, the program's words untouched.
func FuzzCommandLine(f *testing.F) {
	for _, s := range []string{
		"--gres=vgpu:30 hostname", "--gres vgpu:h200:30 --vgpu-mem=8G --comment=night -n 2 -- a -b", "-lQ -ln 2 x --vgpu-mem=1", "--vgpu-cores 30 --gres=shard:30 a",
		"--gres=vgpu:200 --vgpu-mode=soft:80 a : --gres=vgpu:30 b", "--comment=vgpu(mem=1) --gres=vgpu:1 --vgpu-mem=2 x", "--gr=vgpu:1 a", "--", "-", "--show --help", "--jobid 7 --gres=vgpu:5,gpu:1 a",
		"--gres=vgpu:1,vgpu:2 a", "--gres=vgpu a", "--vgpu-mem", "--=x a", "--gres=vgpu:a=30 b", "-n", "--gres=shard:1 --vgpu-cards=2 --comment a b",
	} {
		f.Add(strings.ReplaceAll(s, " ", "\n"), false)
	}
	f.Fuzz(func(t *testing.T, text string, inJob bool) {
		args := strings.Split(text, "\n")
		given, program := split(args)
		var all []string
		for _, o := range given {
			if len(o.words) == 0 {
				t.Fatalf("%q: an option of no word", args)
			}
			all = append(all, o.words...)
		}
		if all = append(all, program...); !slices.Equal(all, args) {
			t.Fatalf("%q became %q", args, all)
		}
		count := 0
		for _, part := range components(args) {
			count += len(part) + 1
		}
		if count != len(args)+1 {
			t.Fatalf("%q: components of %d words", args, count-1)
		}
		p, err := read(args)
		if err != nil {
			checkMistake(t, err)
			return
		}
		out, err := p.rewrite(inJob)
		if err != nil {
			checkMistake(t, err)
			return
		}
		if !slices.Equal(out[len(out)-len(p.program):], p.program) {
			t.Fatalf("%q: the program became %q", args, out)
		}
		checkOthers(t, p, out[:len(out)-len(p.program)])
	})
}

func checkMistake(t *testing.T, err error) {
	t.Helper()
	var mistake *request.Error
	if text := err.Error(); !errors.As(err, &mistake) && !strings.Contains(text, "want ") {
		t.Fatalf("%q does not say what is wanted", text)
	}
}

// checkOthers holds the words that are srun's own against what srun is given.
func checkOthers(t *testing.T, p plan, out []string) {
	t.Helper()
	next := 0
	for i, o := range p.options {
		if i == p.gres || o.name == "comment" {
			continue
		}
		for _, word := range o.words {
			at := slices.Index(out[next:], word)
			if at < 0 {
				t.Fatalf("%q is not among %q, in its order", word, out)
			}
			next += at + 1
		}
	}
}
