// SPDX-License-Identifier: Apache-2.0

package health

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

// mark starts each reason and comment of gresd. An administrator can extend the text, so that the
// start alone does not make it gresd's: see [Memory].
const mark = "vgpu: "

// Written are the texts of gresd that a node has in Slurm, or may have after a crash of gresd.
type Written struct {
	Reasons  []string `json:"reasons,omitempty"`
	Comments []string `json:"comments,omitempty"`
}

// Memory keeps these texts. It outlives gresd.
type Memory interface {
	Written(node string) Written
	SetWritten(node string, all Written) error
}

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
// cards ("" for nothing). A drain or comment of an administrator stays: gresd changes only what is
// written, text for text.
func decide(facts slurm.NodeFacts, written Written, wrong string, draining bool) act {
	ours := slices.Contains(written.Reasons, facts.Reason)
	drained := strings.Contains(facts.State, "DRAIN")
	switch {
	case draining && wrong != "" && (!drained || ours && facts.Reason != mark+wrong):
		return drain
	case drained && ours && (wrong == "" || !draining):
		return resume
	}
	free := facts.Comment == "" || slices.Contains(written.Comments, facts.Comment)
	if free && facts.Comment != commentOf(wrong, draining) {
		return comment
	}
	return nothing
}

// reasonOf is the reason that the drain of a node should have.
func reasonOf(wrong string, draining bool) string {
	if wrong == "" || !draining {
		return ""
	}
	return mark + wrong
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
func Tell(ctx context.Context, nodes Nodes, memory Memory, node, wrong string, draining bool) error {
	wrong = oneLine(wrong)
	for range mostActs {
		facts, err := nodes.Node(ctx, node)
		if err != nil {
			return err
		}
		written := memory.Written(node)
		written = Written{
			Reasons:  own(written.Reasons, facts.Reason, reasonOf(wrong, draining)),
			Comments: own(written.Comments, facts.Comment, commentOf(wrong, draining)),
		}
		// Before slurmctld has the texts: gresd must know its own after a crash. If the disk is full,
		// slurmctld still gets them, and an administrator resumes the node after a crash.
		unsaved := memory.SetWritten(node, written)
		switch decide(facts, written, wrong, draining) {
		case drain:
			err = nodes.DrainNode(ctx, node, mark+wrong)
		case resume:
			err = nodes.ResumeNode(ctx, node)
		case comment:
			err = nodes.CommentNode(ctx, node, commentOf(wrong, draining))
		case nothing:
			return unsaved
		}
		if err != nil {
			return errors.Join(err, unsaved)
		}
	}
	return nil
}

// own returns the texts of gresd: the text that slurmctld has, if gresd wrote it, and the next text.
func own(written []string, has, next string) []string {
	var all []string
	if slices.Contains(written, has) {
		all = append(all, has)
	}
	if next != "" && !slices.Contains(all, next) {
		all = append(all, next)
	}
	return all
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
