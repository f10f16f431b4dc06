// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"fmt"
	"strings"
)

// NodeFacts is what slurmctld says of a node.
type NodeFacts struct {
	Host    string // the host that it runs on
	State   string // "IDLE+DRAIN"
	Reason  string // of a drain, without who set it and when
	Comment string
	Gres    string // "gpu:h200:2(S:0),shard:h200:200"
}

// Node returns the facts of a node. Errors: ErrNoNode, ErrUnavailable.
func (c *Client) Node(ctx context.Context, node string) (NodeFacts, error) {
	text, err := c.run(ctx, scontrolName, "show", "node", node)
	if err != nil {
		return NodeFacts{}, err
	}
	return parseNode(text)
}

// parseNode reads scontrol's lines. A reason or a comment has a line for itself,
// so its words cannot be taken for other fields.
func parseNode(text string) (NodeFacts, error) {
	var facts NodeFacts
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		key, value, _ := strings.Cut(line, "=")
		switch key {
		case "State":
			facts.State, _, _ = strings.Cut(value, " ")
		case "Comment":
			facts.Comment = value
		case "Gres":
			facts.Gres = null(value)
		case "NodeAddr":
			facts.Host = last(line, "NodeHostName")
		case "Reason":
			if at := strings.LastIndex(value, " ["); at >= 0 { // " [root@2026-01-01T00:00:00]"
				value = value[:at]
			}
			facts.Reason = value
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
	_, err := c.run(ctx, scontrolName, append([]string{"update", "NodeName=" + node}, set...)...)
	return err
}
