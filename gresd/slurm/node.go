// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"fmt"
	"strings"
)

// NodeFacts is what slurmctld says of a node.
type NodeFacts struct {
	State   string // "IDLE+DRAIN"
	Reason  string // of a drain, without who set it and when
	Comment string
}

// Node returns the facts of a node. Errors: ErrNoNode, ErrUnavailable.
func (c *Client) Node(ctx context.Context, node string) (NodeFacts, error) {
	text, err := c.run(ctx, "scontrol", "show", "node", node)
	if err != nil {
		return NodeFacts{}, err
	}
	return parseNode(text)
}

// parseNode reads scontrol's lines: a reason or a comment has a line for itself,
// so that its own words cannot be taken for other fields.
func parseNode(text string) (NodeFacts, error) {
	var facts NodeFacts
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if rest, is := strings.CutPrefix(line, "State="); is {
			facts.State, _, _ = strings.Cut(rest, " ")
		}
		if rest, is := strings.CutPrefix(line, "Comment="); is {
			facts.Comment = rest
		}
		if rest, is := strings.CutPrefix(line, "Reason="); is {
			if at := strings.LastIndex(rest, " ["); at >= 0 { // " [root@2026-01-01T00:00:00]"
				rest = rest[:at]
			}
			facts.Reason = rest
		}
	}
	if facts.State == "" {
		return facts, fmt.Errorf("scontrol show node printed %q, want a state: %w", clip(text), ErrUnavailable)
	}
	return facts, nil
}

// DrainNode lets running jobs end and starts no others. Errors: ErrUnavailable.
func (c *Client) DrainNode(ctx context.Context, node, reason string) error {
	return c.updateNode(ctx, node, "State=DRAIN", "Reason="+reason)
}

// ResumeNode takes a drain back. Errors: ErrUnavailable.
func (c *Client) ResumeNode(ctx context.Context, node string) error {
	return c.updateNode(ctx, node, "State=RESUME")
}

// CommentNode sets the comment of a node; "" for none. Errors: ErrUnavailable.
func (c *Client) CommentNode(ctx context.Context, node, comment string) error {
	return c.updateNode(ctx, node, "Comment="+comment)
}

func (c *Client) updateNode(ctx context.Context, node string, set ...string) error {
	_, err := c.run(ctx, "scontrol", append([]string{"update", "NodeName=" + node}, set...)...)
	return err
}

// Notify writes a message to the standard error of a job's srun or salloc, or
// of its batch script. Errors: ErrNoJob, ErrUnavailable.
func (c *Client) Notify(ctx context.Context, jobID uint32, message string) error {
	name, err := c.taskName(ctx, jobID)
	if err == nil {
		_, err = c.run(ctx, "scontrol", "notify", name, message)
	}
	return err
}
