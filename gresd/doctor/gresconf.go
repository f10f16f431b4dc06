// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
)

// GresConfOptions are the flags of gresd gres-conf.
type GresConfOptions struct {
	Nodes string // nodes with the same cards, for lines with NodeName=; "": no NodeName=
	Count bool   // also a count of gres/vgpu
}

// Text asks the driver for the cards of this node, whose configuration is that file, and returns the
// lines of gres.conf for them.
func (o GresConfOptions) Text(path string) (string, error) {
	cfg, err := config.Load(path)
	if err != nil {
		return "", err
	}
	cards, err := driver.Open(cfg.NVML.Library)
	if err != nil {
		return "", err
	}
	defer cards.Close()
	// slurmd counts too few cards if a line is missing.
	list, err := cards.Cards()
	if err != nil {
		return "", fmt.Errorf("read cards: %w", err)
	}
	facts, err := cards.Topology()
	if err != nil {
		return "", fmt.Errorf("read topology: %w", err)
	}
	return gresConf{
		cards: withConfig(list, cfg), topology: topology.New(facts), cores: cards.Cores(),
		mode: cfg.Placement.By, count: o.Count, nodes: o.Nodes,
	}.text(), nil
}

// withConfig applies the keys of vgpu.toml to cards.
func withConfig(cards []gpu.Card, cfg config.Config) (applied []gpu.Card) {
	for _, card := range cards {
		applied = append(applied, cfg.Card(card.UUID).Apply(card))
	}
	return applied
}

// gresConf has the facts of a node that its gres.conf depends on.
type gresConf struct {
	cards    []gpu.Card
	topology *topology.Topology // nil: lines have no cores
	cores    topology.CoreMap
	mode     string // [placement] mode
	count    bool   // gres/vgpu is counted in addition to shards
	// nodes are the nodes that the lines are for, "gpu[01-08]", in a gres.conf of several kinds
	// of nodes; "" for a file of one node.
	nodes string
}

// gresLine is a line of gres.conf.
type gresLine struct {
	name, kind string
	count      int
	file       string   // "" for a count without cards
	card       gpu.Card // of the file
	text       string
}

// lines are the lines for the cards of a node. Each GPU has a Type: without one, slurmctld loses the
// use of each card when it restarts, and srun --gres=vgpu:TYPE:N finds no card for its step.
//
// A MIG instance has one File=: the capability of its compute instance, which no other instance
// needs. MultipleFiles= is Slurm's own key for all files of an instance. But with it the plugins of
// gres/shard count each of the files as a card (22.05), or discard the shards (24.11).
//
// The lines have the order of the device files. Slurm's IDX counts lines, and gresd reads it as an
// index into the device files. There is never a Links=: equal links
// say nothing, and if they differ, Slurm from 24.05 on prefers the cards with the fewest.
func (n gresConf) lines() (all []gresLine) {
	shares, sum := map[string]int{}, 0
	for _, c := range n.cards {
		text := fmt.Sprintf("Name=gpu Type=%s File=%s%s", c.Type, c.File(), n.coresOf(c))
		all = append(all, gresLine{"gpu", c.Type, 0, c.File(), c, text})
	}
	for _, c := range n.cards {
		if c.MIG {
			continue
		}
		shares[c.Type] += int(gpu.FullCard)
		sum += int(gpu.FullCard)
		if n.mode == config.PlacementSlurm {
			text := fmt.Sprintf("Name=shard Type=%s Count=%d File=%s", c.Type, gpu.FullCard, c.File())
			all = append(all, gresLine{"shard", c.Type, int(gpu.FullCard), c.File(), c, text})
		}
	}
	if n.mode == config.PlacementSlurm {
		if n.count && sum > 0 {
			all = append(all, gresLine{name: "vgpu", count: sum, text: fmt.Sprintf("Name=vgpu Count=%d Flags=CountOnly", sum)})
		}
		return all
	}
	// With a Type, --gres=vgpu:TYPE:N gets a card of that type, and --gres=vgpu:N still gets any card.
	for _, kind := range slices.Sorted(maps.Keys(shares)) {
		text := fmt.Sprintf("Name=vgpu Type=%s Count=%d Flags=CountOnly", kind, shares[kind])
		all = append(all, gresLine{name: "vgpu", kind: kind, count: shares[kind], text: text})
	}
	return all
}

// text returns the lines of gres.conf. Its comments have the lines for slurm.conf, and notes about the
// topology.
func (n gresConf) text() string {
	if len(n.cards) == 0 {
		return "# no GPU on this node\n"
	}
	which, prefix := "this node", ""
	if n.nodes != "" {
		which, prefix = n.nodes, "NodeName="+n.nodes+" "
	}
	var lines strings.Builder
	for _, line := range n.lines() {
		fmt.Fprintf(&lines, "%s%s\n", prefix, line.text)
	}
	return fmt.Sprintf("# slurm.conf: GresTypes=gpu,shard,vgpu and, on the line of %s, Gres=%s\n%s%s", which, n.gres(), n.remarks(strings.Contains(lines.String(), " Cores=")), &lines)
}

// gres is the value of Gres= on the line of the node in slurm.conf.
func (n gresConf) gres() string {
	counts := map[string]int{}
	for _, l := range n.lines() {
		counts[strings.TrimSuffix(l.name+":"+l.kind, ":")] += max(l.count, 1)
	}
	var all []string
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		all = append(all, fmt.Sprintf("%s:%d", name, counts[name]))
	}
	return strings.Join(all, ",")
}

// coresOf returns " Cores=" with the cores near a card, as Slurm counts them; "" if they are
// not known, or are all there are.
func (n gresConf) coresOf(c gpu.Card) string {
	if n.topology == nil {
		return ""
	}
	i := slices.IndexFunc(n.topology.Cards, func(t topology.Card) bool { return t.UUID == c.UUID })
	if i < 0 {
		return ""
	}
	cores := n.cores.Cores(n.topology.Cards[i].CPUs)
	if cores == nil || len(cores) == n.cores.Len() {
		return ""
	}
	return fmt.Sprintf(" Cores=%s", cores)
}

// remarks are comment lines for the administrator. A single card has none.
func (n gresConf) remarks(bound bool) string {
	var out strings.Builder
	if len(n.cards) > 1 {
		fmt.Fprintf(&out, "# topology: %s\n", n.topology.Tree)
	}
	if bound {
		fmt.Fprintf(&out, "# Cores= counts the %d cores of this node, not their threads\n", n.cores.Len())
	}
	if order := n.topology.Tree.Cards; !slices.IsSorted(order) {
		fmt.Fprintf(&out, "# Near each other are the cards in the order %s. The lines must stay in the order of\n"+
			"# the device files, so Slurm may choose sets of cards that are apart; [placement] mode =\n"+
			"# \"gresd\" in vgpu.toml chooses near ones.\n", strings.Trim(fmt.Sprint(order), "[]"))
	}
	if i := slices.IndexFunc(n.cards, gpu.Card.IsInstance); i >= 0 {
		fmt.Fprintf(&out, "# MIG instances: programs open %s; the last of each tells them apart for\n"+
			"# Slurm. Lines and counts are those of the instances as they are now.\n", strings.Join(n.cards[i].Files(), ", "))
	}
	if !n.topology.SameLinks() {
		out.WriteString("# no Links=: they differ, and Slurm from 24.05 on prefers the cards with the fewest\n")
	}
	for _, warning := range n.topology.Warnings {
		fmt.Fprintf(&out, "# warning: %s\n", warning)
	}
	return out.String()
}

// compare reports the differences between the lines of a gres.conf and those for the cards.
func (n gresConf) compare(r *results, path string, lines []string) {
	type entry struct{ kind, count string }
	has := map[string]entry{} // by "gpu /dev/nvidia0"
	var order []int
	for _, line := range lines {
		fields := map[string]string{}
		for word := range strings.FieldsSeq(line) {
			name, value, _ := strings.Cut(word, "=")
			fields[strings.ToLower(name)] = value
		}
		auto := fields["autodetect"]
		r.fail(auto != "" && !strings.EqualFold(auto, "off"), "", "%s: AutoDetect is %s, want off: its cards have no shares", path, auto)
		name := strings.ToLower(fields["name"])
		if name != "gpu" && name != "shard" {
			continue
		}
		for _, file := range devices(fields["file"]) {
			has[name+" "+file] = entry{fields["type"], fields["count"]}
			if i := slices.IndexFunc(n.cards, func(c gpu.Card) bool { return c.File() == file }); name == "gpu" && i >= 0 {
				order = append(order, i)
			}
		}
	}
	r.fail(!slices.IsSorted(order), "", "%s: the cards are in the order %v, want the order of the device files, in which gresd counts them", path, order)
	for _, want := range n.lines() {
		if want.file == "" {
			continue
		}
		card := fmt.Sprintf("card %d (%s, %s)", want.card.Index, want.file, want.kind)
		got, there := has[want.name+" "+want.file]
		count, _ := strconv.Atoi(got.count)
		switch {
		case !there:
			r.fail(true, "", "%s: no Name=%s line with File= for %s", path, want.name, card)
		case want.count != 0 && count != want.count:
			r.fail(true, "", "%s: %d shards for %s, want %d", path, count, card, want.count)
		case got.kind == "":
			r.fail(true, "", "%s: no Type= in the Name=%s line for %s, want %s: slurmctld forgets at a restart who uses it", path, want.name, card, want.kind)
		}
		delete(has, want.name+" "+want.file)
	}
	for _, left := range slices.Sorted(maps.Keys(has)) {
		name, file, _ := strings.Cut(left, " ")
		// Shards do no harm on MIG devices, or if gresd places.
		known := slices.ContainsFunc(n.cards, func(c gpu.Card) bool { return c.File() == file })
		r.fail(!known, "", "%s: a Name=%s line for %s: the driver has no such card", path, name, file)
	}
}

// linesOf returns the lines of gres.conf for a node: lines that name the node, and lines without a
// NodeName=.
func linesOf(lines []string, node string) []string {
	return slices.DeleteFunc(lines, func(line string) bool {
		for word := range strings.FieldsSeq(line) {
			if name, list, is := strings.Cut(word, "="); is && strings.EqualFold(name, "NodeName") {
				named, err := slurm.HostlistContains(list, node)
				return !named && err == nil // a list that cannot be read counts for this node
			}
		}
		return false
	})
}

// maxMinor is beyond the numbers of NVIDIA's device files.
const maxMinor = 1000

// devices returns the device files of "/dev/nvidia[0-2,5]" or "/dev/nvidia-caps/nvidia-cap12"; nil
// if it is no such list.
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
	numbers, _ := gpu.Ranges(strings.Trim(text, "[]"), maxMinor+1)
	for _, n := range numbers {
		list = append(list, fmt.Sprintf(format, n))
	}
	return list
}
