// SPDX-License-Identifier: Apache-2.0

package slurm

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
)

// NodeGRES is a node with cards, as slurmctld knows it.
type NodeGRES struct {
	Name string
	NodeFacts
	// Types are those of its cards, by Slurm's index; Shared says which have shares. Where
	// gresd chooses cards, all are of type "" and Counted.
	Types   []string
	Shared  []bool
	Counted bool
}

// Nodes returns the nodes that have cards to share. Errors: ErrUnavailable.
func (c *Client) Nodes(ctx context.Context) ([]NodeGRES, error) {
	nodes, err := c.allNodes(ctx)
	return slices.DeleteFunc(nodes, func(n NodeGRES) bool { return !n.Counted && !slices.Contains(n.Shared, true) }), err
}

// NodeOn returns the name of the first node that runs on a host with one of these names, "" if none
// does. Errors: ErrUnavailable.
func (c *Client) NodeOn(ctx context.Context, hosts ...string) (string, error) {
	nodes, err := c.allNodes(ctx)
	for _, n := range nodes {
		if slices.Contains(hosts, n.Host) {
			return n.Name, nil
		}
	}
	return "", err
}

func (c *Client) allNodes(ctx context.Context) ([]NodeGRES, error) {
	text, err := c.run(ctx, scontrolName, "--local", "show", "node")
	if err != nil {
		return nil, err
	}
	return parseNodes(text)
}

func parseNodes(text string) (nodes []NodeGRES, err error) {
	for _, block := range recordsOf(nodeStart, text) {
		n := NodeGRES{Name: strings.TrimPrefix(strings.Fields(block)[0], "NodeName=")}
		if n.NodeFacts, err = parseNode(block); err != nil {
			return nil, fmt.Errorf("node %s: %w", n.Name, err)
		}
		n.readGRES()
		nodes = append(nodes, n)
	}
	return nodes, nil
}

// nodeStart begins the record of a node.
var nodeStart = regexp.MustCompile(`(?m)^NodeName=`)

// recordsOf cuts a text at the matches of start.
func recordsOf(start *regexp.Regexp, text string) (records []string) {
	starts := start.FindAllStringIndex(text, -1)
	for i, at := range starts {
		end := len(text)
		if i+1 < len(starts) {
			end = starts[i+1][0]
		}
		records = append(records, text[at[0]:end])
	}
	return records
}

// readGRES reads the cards, which Slurm numbers in the order of their types in Gres=.
func (n *NodeGRES) readGRES() {
	shares, counted := map[string]bool{}, uint64(0)
	for _, g := range listGRES(n.Gres) {
		switch {
		case g.err != nil:
		case g.name == "gpu":
			n.Types = append(n.Types, slices.Repeat([]string{g.kind}, int(min(g.count, maxIndex)))...)
		case g.name == "shard":
			shares[g.kind] = g.count > 0
		case g.name == "vgpu":
			counted += g.count
		}
	}
	for _, t := range n.Types {
		n.Shared = append(n.Shared, shares[t] || shares[""])
	}
	if len(shares) == 0 && counted > 0 {
		cards := int(min(counted/uint64(gpu.FullCard), maxIndex))
		n.Counted, n.Types, n.Shared = true, make([]string, cards), slices.Repeat([]bool{true}, cards)
	}
}

// ClusterJob is a job of any node.
type ClusterJob struct {
	JobID       uint32
	User        string
	State       string
	Reason      string // why it waits
	TresPerNode string
	// On is what it holds, by node.
	On map[string]JobFacts
}

// Jobs returns the jobs that hold cards of these nodes, and those that wait for a share;
// unread is how many could not be read. Errors: ErrUnavailable.
//
// Which jobs there are says squeue, in columns without words of users; scontrol says which cards
// they hold. A record in the name or comment of a job is then none, or one too many of a job that
// there is.
func (c *Client) Jobs(ctx context.Context, nodes []NodeGRES) (jobs []ClusterJob, unread int, err error) {
	text, err := c.run(ctx, "squeue", "--local", "-a", "-r", "-h", "-t", strings.Join(append([]string{"PENDING"}, liveStates...), ","), "-o", "%A|%T|%u|%r|%b")
	if err != nil {
		return nil, 0, err
	}
	jobs = parseClusterQueue(text)
	if !slices.ContainsFunc(jobs, func(j ClusterJob) bool { return j.State != "PENDING" }) {
		return jobs, 0, nil
	}
	text, err = c.run(ctx, scontrolName, "--local", "--all", "show", "job", "-d", "-o")
	if err != nil {
		return nil, 0, err
	}
	return hold(jobs, text, nodes)
}

// parseClusterQueue keeps jobs that have or want a share, or have cards.
func parseClusterQueue(text string) (jobs []ClusterJob) {
	for jobID, f := range queueLines(text, 5) {
		j := ClusterJob{JobID: jobID, State: f[1], User: f[2], Reason: f[3], TresPerNode: null(f[4])}
		share := strings.Contains(j.TresPerNode, "shard") || strings.Contains(j.TresPerNode, "vgpu")
		if share || j.State != "PENDING" && strings.Contains(j.TresPerNode, "gpu") {
			jobs = append(jobs, j)
		}
	}
	return jobs
}

// hold adds what jobs hold, and leaves out those that do not wait and hold nothing.
func hold(jobs []ClusterJob, text string, nodes []NodeGRES) (held []ClusterJob, unread int, err error) {
	records := map[string][]string{}
	for _, record := range recordsOf(recordStart, text) {
		number, _, _ := strings.Cut(record, " ")
		records[number] = append(records[number], record)
	}
	known := map[string]bool{}
	for _, n := range nodes {
		known[n.Name] = true
	}
	for _, job := range jobs {
		if job.State == "PENDING" {
			held = append(held, job)
			continue
		}
		of := records["JobId="+id(job.JobID)]
		if len(of) == 0 {
			continue // it has ended meanwhile
		}
		err := errForged
		if len(of) == 1 {
			job.On, err = readHeld(of[0], job.JobID, known)
		}
		if err != nil {
			unread++
		} else if len(job.On) > 0 {
			held = append(held, job)
		}
	}
	return held, unread, nil
}

func readHeld(record string, jobID uint32, nodes map[string]bool) (map[string]JobFacts, error) {
	head, _, err := cutHead(record)
	if err != nil {
		return nil, err
	}
	values, allocations, err := readHead(head)
	if err != nil {
		return nil, err
	}
	names, err := hosts(values["NodeList"], "")
	if err != nil {
		return nil, err
	}
	held := map[string]JobFacts{}
	for _, name := range names {
		on := JobFacts{JobID: jobID}
		if !nodes[name] {
			continue
		}
		if err := on.readAllocations(allocations, name); err != nil {
			return nil, err
		}
		if on.Holds() {
			held[name] = on
		}
	}
	return held, nil
}

// NodeFacts is slurmctld's record of a node.
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
