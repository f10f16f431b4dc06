// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

// mark is how a reason or comment of ours starts: no other is ever changed.
const mark = "vgpu: "

// Nodes is what is asked of slurmctld about a node.
type Nodes interface {
	Node(ctx context.Context, node string) (slurm.NodeFacts, error)
	DrainNode(ctx context.Context, node, reason string) error
	ResumeNode(ctx context.Context, node string) error
	CommentNode(ctx context.Context, node, comment string) error
}

// act is what is to be done about a node.
type act int

const (
	nothing act = iota
	drain
	resume
	comment
)

// decide compares what slurmctld says of a node with what is wrong with its
// cards ("" for nothing). A drain or comment of an administrator stays.
func decide(facts slurm.NodeFacts, wrong string, draining bool) act {
	ours := strings.HasPrefix(facts.Reason, mark)
	drained := strings.Contains(facts.State, "DRAIN")
	switch {
	case draining && wrong != "" && (!drained || ours && facts.Reason != mark+wrong):
		return drain
	case drained && ours && (wrong == "" || !draining):
		return resume
	}
	free := facts.Comment == "" || strings.HasPrefix(facts.Comment, mark)
	if free && facts.Comment != commentOf(wrong, draining) {
		return comment
	}
	return nothing
}

// commentOf is what the comment of a node should be.
func commentOf(wrong string, draining bool) string {
	if wrong == "" || draining {
		return ""
	}
	return mark + wrong
}

// mostActs are the steps from any state of a node to the one wanted.
const mostActs = 3

// Tell makes slurmctld's word about a node that of its cards: with draining the
// node is drained while something is wrong, else that is its comment.
func Tell(ctx context.Context, nodes Nodes, node, wrong string, draining bool) error {
	wrong = oneLine(wrong)
	for range mostActs {
		facts, err := nodes.Node(ctx, node)
		if err != nil {
			return err
		}
		switch decide(facts, wrong, draining) {
		case drain:
			err = nodes.DrainNode(ctx, node, mark+wrong)
		case resume:
			err = nodes.ResumeNode(ctx, node)
		case comment:
			err = nodes.CommentNode(ctx, node, commentOf(wrong, draining))
		case nothing:
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// oneLine keeps out what scontrol's output could not be read with again.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(strings.ReplaceAll(text, "=", " ")), " ")
	const most = 200
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}
