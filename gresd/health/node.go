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

// Nodes reads and changes a node in slurmctld.
type Nodes interface {
	Node(ctx context.Context, node string) (slurm.NodeFacts, error)
	DrainNode(ctx context.Context, node, reason string) error
	ResumeNode(ctx context.Context, node string) error
	CommentNode(ctx context.Context, node, comment string) error
}

// mostActs is the number of steps from any state of a node to the right one.
const mostActs = 3

// Tell reports the faults of a node's cards to slurmctld ("": none): as the reason of a drain if
// draining, else as the comment of the node. A drain or comment of an administrator stays: gresd changes
// only a text that is exactly its own.
func Tell(ctx context.Context, nodes Nodes, memory Memory, node, wrong string, draining bool) error {
	reason, comment := "", ""
	switch wrong = oneLine(wrong); {
	case wrong == "":
	case draining:
		reason = mark + wrong
	default:
		comment = mark + wrong
	}
	for range mostActs {
		facts, err := nodes.Node(ctx, node)
		if err != nil {
			return err
		}
		written := memory.Written(node)
		ours, drained := slices.Contains(written.Reasons, facts.Reason), strings.Contains(facts.State, "DRAIN")
		free := facts.Comment == "" || slices.Contains(written.Comments, facts.Comment)
		// Save the texts first: after a crash, gresd must know its own. If the disk is full, slurmctld still
		// gets them, and after a crash an administrator resumes the node.
		unsaved := memory.SetWritten(node, Written{
			Reasons: own(written.Reasons, facts.Reason, reason), Comments: own(written.Comments, facts.Comment, comment),
		})
		switch {
		case reason != "" && (!drained || ours && facts.Reason != reason):
			err = nodes.DrainNode(ctx, node, reason)
		case reason == "" && drained && ours:
			err = nodes.ResumeNode(ctx, node)
		case free && facts.Comment != comment:
			err = nodes.CommentNode(ctx, node, comment)
		default:
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

// oneLine removes characters that would make the output of scontrol unreadable.
func oneLine(text string) string {
	text = strings.Join(strings.Fields(strings.ReplaceAll(text, "=", " ")), " ")
	const most = 200
	if len(text) > most {
		text = strings.ToValidUTF8(text[:most], "") + "..."
	}
	return text
}
