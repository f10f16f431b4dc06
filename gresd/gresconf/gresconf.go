// SPDX-License-Identifier: Apache-2.0

// Package gresconf writes the lines of gres.conf for the cards of a node.
package gresconf

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/inventory"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/topology"
)

// Options are what gresd gres-conf and vgpuctl gres-conf take.
type Options struct {
	count bool
	nodes string
}

// Flags adds the options to a command's.
func (o *Options) Flags(set interface {
	StringVar(value *string, name, preset, usage string)
	BoolVar(value *bool, name string, preset bool, usage string)
},
) {
	set.StringVar(&o.nodes, "nodes", "", "the `NODES` that are like this one, for example gpu[01-08]: lines with NodeName=, for one gres.conf for several kinds of nodes")
	set.BoolVar(&o.count, "count", false, "also a count of gres/vgpu, for count = true in vgpu_cards.lua")
}

// Of asks the driver for the cards of this node, whose configuration is that file, and is the Text
// of them.
func (o Options) Of(path string) (string, error) {
	cfg, err := config.Load(path)
	if err != nil {
		return "", err
	}
	cards, err := inventory.Open(cfg.NVML.Library)
	if err != nil {
		return "", err
	}
	defer cards.Close()
	node, err := From(cards, cfg)
	if err != nil {
		return "", err
	}
	node.Count, node.Names = o.count, o.nodes
	return Text(node), nil
}

// From asks an inventory that is open.
func From(cards inventory.Inventory, cfg config.Config) (Node, error) {
	list, err := cards.Cards()
	if err != nil {
		// A line that is missing would make slurmd count too few cards.
		return Node{}, fmt.Errorf("read cards: %w", err)
	}
	for i, card := range list {
		list[i] = cfg.Card(card.UUID).Apply(card)
	}
	facts, err := cards.Topology()
	if err != nil {
		return Node{}, fmt.Errorf("read topology: %w", err)
	}
	return Node{Cards: list, Topology: topology.New(facts), Cores: cards.Cores(), Mode: cfg.Placement.By}, nil
}

// Node is what gres.conf is made of.
type Node struct {
	Cards    []gpu.Card
	Topology *topology.Topology
	Cores    topology.CoreMap
	Mode     string // who chooses the card
	Count    bool   // gres/vgpu is counted beside shards
	// Names are the nodes that the lines are for, "gpu[01-08]", in a gres.conf of several kinds
	// of nodes; "" for one that each node has itself.
	Names string
}

// Text is the lines of gres.conf for the cards of a node, and as
// comments what belongs into slurm.conf and what is to know of the topology.
// Every GPU gets a Type: without one, slurmctld loses the use of each card when
// it restarts.
//
// A MIG instance has one File=, that of its compute instance's capability, which nobody else
// needs. MultipleFiles= with all that it needs would be Slurm's own word for it, but there the
// plugins of gres/shard count each of the files as a card (22.05), or discard the shards (24.11).
//
// The order is that of the device files, and not that of the tree where the two
// differ: Slurm's IDX counts lines, and gresd reads it as a place in that order.
// There is never a Links=: where all links are equal it says nothing, and where
// they differ, Slurm from 24.05 on prefers the cards with the fewest.
func Text(n Node) string {
	if len(n.Cards) == 0 {
		return "# no GPU on this node\n"
	}
	var lines strings.Builder
	shares := map[string]int{}
	bound := false
	for _, c := range n.Cards {
		fmt.Fprintf(&lines, "Name=gpu Type=%s File=%s", c.Type, c.File())
		if cores := n.coresOf(c); cores != nil {
			bound = true
			fmt.Fprintf(&lines, " Cores=%s", cores)
		}
		lines.WriteByte('\n')
		if !c.MIG {
			shares[c.Type] += int(gpu.FullCard)
		}
	}
	if n.Mode == config.PlacementSlurm {
		for _, c := range n.Cards {
			if !c.MIG {
				// Without a Type, srun --gres=vgpu:TYPE:N finds no card for its step.
				fmt.Fprintf(&lines, "Name=shard Type=%s Count=%d File=%s\n", c.Type, gpu.FullCard, c.File())
			}
		}
		if n.Count && len(shares) > 0 {
			fmt.Fprintf(&lines, "Name=vgpu Count=%d Flags=CountOnly\n", sum(shares))
		}
	} else {
		// With a Type, --gres=vgpu:TYPE:N gets a card of that type, and nothing changes
		// for --gres=vgpu:N.
		for _, name := range slices.Sorted(maps.Keys(shares)) {
			fmt.Fprintf(&lines, "Name=vgpu Type=%s Count=%d Flags=CountOnly\n", name, shares[name])
		}
	}
	text, which := lines.String(), "this node"
	if n.Names != "" {
		text, which = "", n.Names
		for line := range strings.Lines(lines.String()) {
			text += "NodeName=" + n.Names + " " + line
		}
	}
	return fmt.Sprintf("# slurm.conf: GresTypes=gpu,shard,vgpu and, on the line of %s, Gres=%s\n%s%s",
		which, strings.Join(Gres(n), ","), n.remarks(bound), text)
}

// Gres is what belongs behind Gres= on the line of the node in slurm.conf.
func Gres(n Node) []string {
	types, shares := map[string]int{}, map[string]int{}
	for _, c := range n.Cards {
		types[c.Type]++
		if !c.MIG {
			shares[c.Type] += int(gpu.FullCard)
		}
	}
	var gres []string
	for _, name := range slices.Sorted(maps.Keys(types)) {
		gres = append(gres, fmt.Sprintf("gpu:%s:%d", name, types[name]))
	}
	kind := "shard"
	if n.Mode != config.PlacementSlurm {
		kind = "vgpu"
	}
	for _, name := range slices.Sorted(maps.Keys(shares)) {
		gres = append(gres, fmt.Sprintf("%s:%s:%d", kind, name, shares[name]))
	}
	if n.Count && kind == "shard" && len(shares) > 0 {
		gres = append(gres, fmt.Sprintf("vgpu:%d", sum(shares)))
	}
	return gres
}

func sum(shares map[string]int) (all int) {
	for _, n := range shares {
		all += n
	}
	return all
}

// coresOf are the cores near a card, as Slurm counts them; nil where they are
// not known, or are all there are.
func (n Node) coresOf(c gpu.Card) topology.Set {
	i := slices.IndexFunc(n.Topology.Cards, func(t topology.Card) bool { return t.UUID == c.UUID })
	if i < 0 {
		return nil
	}
	cores := n.Cores.Cores(n.Topology.Cards[i].CPUs)
	if len(cores) == n.Cores.Len() {
		return nil
	}
	return cores
}

// remarks are comment lines for the administrator. A single card has none.
func (n Node) remarks(bound bool) string {
	var out strings.Builder
	if len(n.Cards) > 1 {
		fmt.Fprintf(&out, "# topology: %s\n", n.Topology.Tree)
	}
	if bound {
		fmt.Fprintf(&out, "# Cores= counts the %d cores of this node, not their threads\n", n.Cores.Len())
	}
	if order := n.Topology.Tree.Cards; !slices.IsSorted(order) {
		fmt.Fprintf(&out, "# Near each other are the cards in the order %s. The lines must stay in the order of\n"+
			"# the device files, so Slurm may choose sets of cards that are apart; [placement] mode =\n"+
			"# \"gresd\" in vgpu.toml chooses near ones.\n", strings.Trim(fmt.Sprint(order), "[]"))
	}
	if i := slices.IndexFunc(n.Cards, gpu.Card.IsInstance); i >= 0 {
		fmt.Fprintf(&out, "# MIG instances: programs open %s; the last of each tells them apart for\n"+
			"# Slurm. Lines and counts are those of the instances as they are now.\n", strings.Join(n.Cards[i].Files(), ", "))
	}
	if !n.Topology.SameLinks() {
		out.WriteString("# no Links=: they differ, and Slurm from 24.05 on prefers the cards with the fewest\n")
	}
	for _, warning := range n.Topology.Warnings {
		fmt.Fprintf(&out, "# warning: %s\n", warning)
	}
	return out.String()
}
