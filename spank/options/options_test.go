// SPDX-License-Identifier: Apache-2.0

package options_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/spank/options"
)

func TestEveryEntryOfTheListIsRead(t *testing.T) {
	definition, err := os.ReadFile("options.def")
	if err != nil {
		t.Fatal(err)
	}
	if n := strings.Count(string(definition), "\nOPTION("); n != len(options.List) || n == 0 {
		t.Errorf("read %d of %d entries", len(options.List), n)
	}
}

func TestGresdKnowsTheSameOptions(t *testing.T) {
	names := []string{"share"} // of --gres
	for _, o := range options.List {
		names = append(names, o.Name)
		if _, err := request.Parse(request.Options{o.Name: o.Example}); err != nil {
			t.Errorf("the example of --vgpu-%s: %v", o.Name, err)
		}
	}
	if got := request.Names(); !slices.Equal(got, names) {
		t.Errorf("gresd/request has %v, the plugin %v", got, names)
	}
}

// The scripts cannot read the list, so their copy is compared.
func TestLuaKnowsTheSameOptions(t *testing.T) {
	var names []string
	for _, o := range options.List {
		names = append(names, fmt.Sprintf("%q", o.Name))
	}
	list := "local OPTIONS = {" + strings.Join(names, ", ") + "}"
	for _, file := range []string{"job_submit.lua", "cli_filter.lua"} {
		text, err := os.ReadFile("../../etc/slurm/" + file)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(text), list) {
			t.Errorf("%s: want the line %s", file, list)
		}
		if file != "job_submit.lua" {
			continue
		}
		for _, o := range options.List {
			if check := fmt.Sprintf("%q, %q}", o.Want, o.Example); !strings.Contains(string(text), check) {
				t.Errorf("%s: --vgpu-%s: want the words %s", file, o.Name, check)
			}
		}
	}
}

func TestAMistakeSaysWhatIsWantedAndAnExample(t *testing.T) {
	want := `--vgpu-mem: "1.5g": want a whole number with K, M, G or T (powers of 1024), or 1% to 100% of the card, for example --vgpu-mem=8G`
	if _, err := request.Parse(request.Options{"mem": "1.5g"}); err == nil || err.Error() != want {
		t.Errorf("got  %v\nwant %s", err, want)
	}
	if _, ok := options.Find("memory"); ok {
		t.Error("found an option that there is not")
	}
}
