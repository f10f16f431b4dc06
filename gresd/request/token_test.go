// SPDX-License-Identifier: Apache-2.0

package request

import (
	"errors"
	"reflect"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

func TestTokensAreFoundInComments(t *testing.T) {
	for comment, want := range map[string]Options{
		"":                         nil,
		"no token here":            nil,
		"my_vgpu(1) and xvgpu(2)":  nil,
		"vgpu is a word":           nil,
		"vgpu()":                   {},
		"vgpu( )":                  {},
		"vgpu(mem=8G)":             {"mem": "8G"},
		"note: vgpu(mem=8G), done": {"mem": "8G"},
		"(vgpu(mem=8G))":           {"mem": "8G"},
		"vgpu(mem=)":               {"mem": ""},
		"vgpu(mem = 8G , cores=3)": {"mem": "8G", "cores": "3"},
		"two\nlines vgpu(share=1)": {"share": "1"},
		"vgpu(mem=8G,cores=30,mode=soft:80,share=30)": {"mem": "8G", "cores": "30", "mode": "soft:80", "share": "30"},
		"myvgpu(x) vgpu(mem=25%)":                     {"mem": "25%"},
	} {
		got, err := ParseComment(comment)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %v, %v; want %v", comment, got, err, want)
		}
	}
}

func TestTokensThatAreBrokenAreRefused(t *testing.T) {
	for comment, want := range map[string]string{
		"vgpu(mem=8G":                 "want a closing bracket",
		"vgpu(":                       "want a closing bracket",
		"vgpu(mem=8G) vgpu(mem=9G)":   "want one vgpu(…)",
		"vgpu(mem=8G) vgpu(":          "want one vgpu(…)",
		"vgpu(mem)":                   "want mem, cores",
		"vgpu(mem=8G,)":               "want mem, cores",
		"vgpu(mem=8G,,cores=3)":       "want mem, cores",
		"vgpu(oops=1)":                "want mem, cores",
		"vgpu(mem=8G,mem=9G)":         "want mem once",
		"vgpu(mem=8G,mem=8G)":         "want mem once",
		"vgpu(share=30,cores,mode=x)": "want mem, cores",
	} {
		got, err := ParseComment(comment)
		var mistake *Error
		if !errors.As(err, &mistake) || !strings.Contains(err.Error(), want) || !strings.HasPrefix(err.Error(), "--comment") {
			t.Errorf("%q: got %v, %v; want …%s", comment, got, err, want)
		}
	}
}

func TestTokensAreWrittenInOneOrder(t *testing.T) {
	for want, r := range map[string]Request{
		"":                    {},
		"vgpu(mem=1536M)":     {Memory: Memory{Bytes: 1536 * gpu.MiB}},
		"vgpu(mem=25%)":       {Memory: Memory{Percent: 25}},
		"vgpu(mode=soft)":     {Mode: gpu.Soft},
		"vgpu(cores=5)":       {Cores: 5, Clamp: true},
		"vgpu(mem=1000)":      {Memory: Memory{Bytes: 1000}},
		"vgpu(policy=spread)": {Policy: gpu.Spread},
		"vgpu(engine=mps)":    {Engine: gpu.MPS},
		"vgpu(share=60,mem=8G,cores=30,cards=2,mode=soft:80,priority=low,policy=binpack)": {
			Share: 60, Cards: 2, Memory: Memory{Bytes: 8 * gpu.GiB}, Cores: 30,
			Mode: gpu.Soft, Ceiling: 80, Priority: gpu.Low, Policy: gpu.Binpack,
		},
	} {
		if got := FormatToken(r.Options()); got != want {
			t.Errorf("%+v: got %q, want %q", r, got, want)
		}
	}
	if got := FormatToken(Options{"nonsense": "1"}); got != "" {
		t.Errorf("of an unknown name: %q", got)
	}
}
