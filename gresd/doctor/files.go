// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gresconf"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

func checkPlugstack(_ context.Context, n *node, tell func(Status, string, string)) {
	f := n.settings()
	if f == nil {
		tell(Skip, "no slurm.conf", "")
		return
	}
	path := f.get("PlugStackConfig")
	if path == "" {
		path = filepath.Join(f.dir(), "plugstack.conf")
	}
	words, err := findPlugin(path, 0)
	const remedy = "a line: optional vgpu.so; see /usr/share/doc/slurm-vgpu/examples/slurm/plugstack.conf"
	switch {
	case err != nil:
		tell(Fail, err.Error(), remedy)
		return
	case words == nil:
		tell(Fail, path+" does not name vgpu.so: no --vgpu options, and limits hold for programs only that cooperate", remedy)
		return
	}
	well := true
	say := func(s Status, message, remedy string) { well = false; tell(s, message, remedy) }
	if words[0] == "required" {
		say(Warn, "vgpu.so is required: under a release of Slurm that it was not built for, slurmd stops", "optional vgpu.so")
	}
	if plugin, err := locate(words[1], f); err != nil {
		say(Fail, err.Error(), "the full path of vgpu.so in plugstack.conf; where it is nowhere, reinstall slurm-vgpu (or make install plugindir=the folder that scontrol show config names as PluginDir)")
	} else if err := trusted(plugin); err != nil {
		say(Fail, err.Error(), "reinstall slurm-vgpu, or make install plugindir="+filepath.Dir(plugin))
	}
	runDir := "/run/vgpu"
	for _, arg := range words[2:] {
		name, value, _ := strings.Cut(arg, "=")
		switch {
		case name == "run_dir":
			runDir = value
		case name == "enforce" && value != "namespace":
			say(Warn, "enforce="+value+": limits hold for programs only that cooperate", "enforce=namespace, or leave it out")
		}
	}
	if runDir != n.cfg.Paths.RunDir {
		say(Fail, fmt.Sprintf("the plugin looks for grants in %s, gresd writes them to %s", runDir, n.cfg.Paths.RunDir), "run_dir="+n.cfg.Paths.RunDir+" on the line of plugstack.conf")
	}
	if well {
		tell(Pass, path+" loads vgpu.so", "")
	}
}

// findPlugin returns the words of the line that loads the plugin, nil when there is none.
func findPlugin(path string, depth int) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		switch {
		case len(words) < 2:
		case words[0] == "include" && depth < 4:
			pattern := words[1]
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(path), pattern)
			}
			files, err := filepath.Glob(pattern)
			if err != nil {
				return nil, fmt.Errorf("%s: include %s: %w", path, words[1], err)
			}
			for _, file := range files {
				if found, err := findPlugin(file, depth+1); err != nil || found != nil {
					return found, err
				}
			}
		case filepath.Base(words[1]) == "vgpu.so":
			return words, nil
		}
	}
	return nil, nil
}

// locate finds a plugin as Slurm does.
func locate(name string, f *facts) (string, error) {
	if filepath.IsAbs(name) {
		_, err := os.Stat(name)
		return name, err
	}
	dirs := filepath.SplitList(f.get("PluginDir"))
	if len(dirs) == 0 {
		dirs, _ = filepath.Glob("/usr/lib*/*/slurm*") // the pattern is a good one
		dirs = append(dirs, "/usr/lib64/slurm", "/usr/lib/slurm", "/usr/local/lib/slurm")
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("%s is not in %s", name, strings.Join(dirs, ", "))
}

func checkGresConf(ctx context.Context, n *node, tell func(Status, string, string)) {
	f := n.settings()
	switch {
	case f == nil:
		tell(Skip, "no slurm.conf", "")
		return
	case n.cards == nil:
		tell(Skip, "no driver to compare with", "")
		return
	}
	path := filepath.Join(f.dir(), "gres.conf")
	lines, err := slurm.ConfLines(path)
	const remedy = "gresd gres-conf prints what belongs there; then restart slurmd, slurmctld, slurmd, in this order (INSTALL.md, step 4)"
	if err != nil {
		s := Fail
		if !errors.Is(err, fs.ErrNotExist) {
			s = Skip
		}
		tell(s, err.Error(), remedy)
		return
	}
	cards, err := n.cards.Cards()
	if err != nil {
		tell(Skip, "not every card can be read", "")
		return
	}
	wrong := compareGres(linesOf(lines, n.name(ctx)), cards, n.cfg.Placement.By)
	for _, w := range wrong {
		tell(Fail, path+": "+w, remedy)
	}
	if len(wrong) == 0 {
		tell(Pass, path+" and the driver agree", "")
	}
}

// linesOf are the lines of gres.conf that count for a node: those that name it, and those without a
// NodeName=, which are for all.
func linesOf(lines []string, node string) []string {
	return slices.DeleteFunc(lines, func(line string) bool {
		for word := range strings.FieldsSeq(line) {
			if name, list, is := strings.Cut(word, "="); is && strings.EqualFold(name, "NodeName") {
				named, err := slurm.Names(list, node)
				return !named && err == nil // what cannot be read is looked at
			}
		}
		return false
	})
}

// compareGres says what differs between gres.conf and the cards.
func compareGres(lines []string, cards []gpu.Card, mode string) (wrong []string) {
	files := map[string]map[string]string{"gpu": {}, "shard": {}} // device file to type
	counts := map[string]int{}
	var order []string
	auto := false
	for _, line := range lines {
		fields := map[string]string{}
		for word := range strings.FieldsSeq(line) {
			name, value, _ := strings.Cut(word, "=")
			fields[strings.ToLower(name)] = value
		}
		auto = auto || fields["autodetect"] != "" && !strings.EqualFold(fields["autodetect"], "off")
		kind := strings.ToLower(fields["name"])
		if files[kind] == nil || fields["file"] == "" {
			continue
		}
		for _, file := range devices(fields["file"]) {
			files[kind][file] = fields["type"]
			if kind == "gpu" {
				order = append(order, file)
			}
			if count, err := strconv.Atoi(fields["count"]); err == nil {
				counts[file] = count
			}
		}
	}
	if auto {
		wrong = append(wrong, "AutoDetect is on: its cards have no shares")
	}
	var places []int
	for _, file := range order {
		if i := slices.IndexFunc(cards, func(c gpu.Card) bool { return c.File() == file }); i >= 0 {
			places = append(places, i)
		}
	}
	if !slices.IsSorted(places) {
		wrong = append(wrong, fmt.Sprintf("the cards are in the order %v: gresd counts them in the order of the device files", places))
	}
	for _, c := range cards {
		device := fmt.Sprintf("card %d (%s, %s)", c.Index, c.File(), c.Type)
		kind, there := files["gpu"][c.File()]
		switch {
		case !there:
			wrong = append(wrong, "no Name=gpu line for "+device)
		case kind == "":
			wrong = append(wrong, "no Type= for "+device+": slurmctld forgets at a restart who uses it")
		}
		delete(files["gpu"], c.File())
		if mode == config.PlacementSlurm && !c.MIG {
			kind, there := files["shard"][c.File()]
			switch {
			case !there:
				wrong = append(wrong, "no Name=shard line with File= for "+device)
			case counts[c.File()] != int(gpu.FullCard):
				wrong = append(wrong, fmt.Sprintf("%d shards for %s, want %d", counts[c.File()], device, gpu.FullCard))
			case kind == "":
				wrong = append(wrong, "no Type= at the shards of "+device)
			}
		}
		delete(files["shard"], c.File())
	}
	for kind, left := range files {
		for _, file := range slices.Sorted(maps.Keys(left)) {
			wrong = append(wrong, fmt.Sprintf("a Name=%s line for %s: the driver has no such card", kind, file))
		}
	}
	return wrong
}

// mostMinor is beyond the numbers of NVIDIA's device files.
const mostMinor = 1000

// devices are the device files of "/dev/nvidia[0-2,5]" or "/dev/nvidia-caps/nvidia-cap12"; nil for
// what is no such list.
func devices(file string) (list []string) {
	at := strings.LastIndex(file, "nvidia")
	if at < 0 {
		return nil
	}
	text, capability := strings.CutPrefix(file[at+len("nvidia"):], "-cap")
	format := "/dev/nvidia%d"
	if capability {
		format = "/dev/nvidia-caps/nvidia-cap%d"
	}
	numbers, _ := gpu.Ranges(strings.Trim(text, "[]"), mostMinor+1)
	for _, n := range numbers {
		list = append(list, fmt.Sprintf(format, n))
	}
	return list
}

// wantedGres is what the node's line of slurm.conf should have; nil when the cards
// cannot be read.
func (n *node) wantedGres() []string {
	node, err := gresconf.From(n.cards, n.cfg)
	if err != nil {
		return nil
	}
	return gresconf.Gres(node)
}

// sameGres compares counts by name. Types are the site's own words.
func sameGres(want []string, has string) bool {
	sum := func(list []string) map[string]int {
		counts := map[string]int{}
		for _, item := range list {
			item, _, _ = strings.Cut(item, "(") // "(S:0-1)"
			parts := strings.Split(item, ":")
			count, err := strconv.Atoi(parts[len(parts)-1])
			if err != nil {
				count = 1
			}
			if parts[0] == "gpu" || parts[0] == "shard" || parts[0] == "vgpu" {
				counts[parts[0]] += count
			}
		}
		return counts
	}
	return maps.Equal(sum(want), sum(strings.Split(has, ",")))
}
