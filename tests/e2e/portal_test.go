// SPDX-License-Identifier: Apache-2.0

package e2e

import (
	"encoding/json"
	"os/exec"
	"strings"
	"testing"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

// renderForm does with the form of Open OnDemand what its dashboard does: it fills the attributes
// into the ERB, and reads YAML of what comes out.
const renderForm = `
require "erb"; require "json"; require "ostruct"; require "yaml"
form = YAML.safe_load(File.read(ARGV[0]))
values = form["attributes"].to_h { |name, a| [name, a["value"] || a.dig("options", 0, 1)] }.merge(JSON.parse(ARGV[2]))
raise "no attribute for part of the form" unless (form["form"] - ["bc_num_hours"] - values.keys).empty?
text = ERB.new(File.read(ARGV[1]), trim_mode: "-").result(OpenStruct.new(values).instance_eval { binding })
puts JSON.generate(YAML.safe_load(text)["script"]["native"])
`

// What the form of Open OnDemand submits is what its user chose, and nothing that the form does not
// offer comes through.
func TestOpenOnDemandForm(t *testing.T) {
	ruby, err := exec.LookPath("ruby")
	if err != nil {
		t.Skip("no ruby: apt-get install ruby")
	}
	render := func(values string) (args []string, text string, err error) {
		cmd := exec.Command(ruby, "-e", renderForm, "../../etc/ondemand/form.yml", "../../etc/ondemand/submit.yml.erb", values)
		out, err := cmd.CombinedOutput()
		if err == nil {
			err = json.Unmarshal(out, &args)
		}
		return args, string(out), err
	}
	for _, values := range []string{
		`{"vgpu_share": "30\n    - --uid=0"}`, `{"vgpu_share": "0"}`, `{"vgpu_share": "101"}`, `{"vgpu_memory": "8\"\n    - \"--uid=0"}`,
		`{"vgpu_memory": "8G"}`, `{"vgpu_mode": "off"}`, `{"vgpu_mode": "soft\n"}`,
	} {
		if args, text, err := render(values); err == nil || !strings.Contains(text, "ArgumentError") {
			t.Errorf("%s: taken as %q: %s", values, args, text)
		}
	}
	s := up(t, oneCard)
	for values, want := range map[string]struct {
		share, gib uint64
		mode       string
	}{
		`{}`: {30, 24, "soft"}, // as it is when the form opens
		`{"vgpu_share": "45", "vgpu_memory": "8", "vgpu_mode": "hard"}`: {45, 8, "hard"},
	} {
		args, text, err := render(values)
		if err != nil {
			t.Fatalf("%s: %v: %s", values, err, text)
		}
		job, err := s.Sbatch(alice, args, "exec "+cluster.Worker+" --hold 300")
		if err != nil {
			t.Fatal(err)
		}
		s.running(job)
		records, err := s.Records()
		if err != nil || len(records) != 1 {
			t.Fatalf("%d records, %v", len(records), err)
		}
		c := records[0].Cards[0]
		if uint64(c.Cores) != want.share || c.LimitBytes != want.gib*gib || records[0].Mode != want.mode {
			t.Errorf("%s: %q: got %d%%, %d bytes, %s; want %+v", values, args, c.Cores, c.LimitBytes, records[0].Mode, want)
		}
		s.cancel(alice, job)
	}
}
