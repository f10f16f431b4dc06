// SPDX-License-Identifier: Apache-2.0

package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"os"
	account "os/user"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

// clusterView is what slurmctld knows of all nodes with cards.
type clusterView struct {
	Cards      int         `json:"cards"`
	UsableFrom int         `json:"cards_usable"`
	Given      uint64      `json:"share_given"` // of usable cards, in hundredths of one
	Free       uint64      `json:"share_free"`
	Places     []placeView `json:"places"`
	// Unread are jobs of which scontrol's text could not be read.
	Unread  int         `json:"jobs_unread,omitempty"`
	Nodes   []nodeView  `json:"nodes"`
	Waiting []waitGroup `json:"waiting"`
}

// placeView is how many requests for that share of one card fit now, and the part of what is free
// that such a request cannot use.
type placeView struct {
	Share      gpu.Share `json:"share"`
	Fit        int       `json:"fit"`
	Fragmented float64   `json:"fragmented"`
}

type nodeView struct {
	Node   string     `json:"node"`
	State  string     `json:"state"`
	Usable bool       `json:"usable"`
	Reason string     `json:"reason,omitempty"` // of a drain, or what gresd says of its cards
	Jobs   int        `json:"jobs"`
	Cards  []cardView `json:"cards"`
	// Counted: gresd chooses the cards. slurmctld knows what is given of all together: Given.
	Counted bool   `json:"counted,omitempty"`
	Given   uint64 `json:"share_given"`
	Free    uint64 `json:"share_free"`
	largest uint64 // the largest request of one card that fits
}

type cardView struct {
	Index int    `json:"index"`
	Type  string `json:"type"`
	Out   bool   `json:"out,omitempty"` // sick or cordoned
	Given uint64 `json:"share_given"`
}

// waitGroup are the waiting jobs of one user for one reason.
type waitGroup struct {
	User   string `json:"user"`
	Reason string `json:"reason"`
	Jobs   int    `json:"jobs"`
	Asks   string `json:"gres"` // of the first of them
}

func (s *settings) nodes(cmd *cobra.Command, _ []string) error {
	v, err := s.cluster(cmd.Context())
	if err != nil {
		return err
	}
	return s.print(cmd.OutOrStdout(), v, func(w io.Writer) error { return writeCluster(w, s.paint(w), v) })
}

func (s *settings) cluster(ctx context.Context) (clusterView, error) {
	client := s.slurm("", stepLimit)
	nodes, err := client.Nodes(ctx)
	if err != nil {
		return clusterView{}, err
	}
	jobs, unread, err := client.Jobs(ctx, nodes)
	if err != nil {
		return clusterView{}, err
	}
	only := ""
	if os.Geteuid() != 0 { // who is not root is told of his own waiting jobs alone, as by vgpuctl status
		if who, err := account.LookupId(strconv.Itoa(os.Getuid())); err == nil {
			only = who.Username
		}
	}
	v := viewCluster(nodes, jobs, only)
	v.Unread = unread
	return v, nil
}

// unusable finds the states of a node that starts no job.
var unusable = regexp.MustCompile(`DOWN|DRAIN|FAIL|MAINT|NOT_RESPONDING|\*`)

// ofCard finds the cards of which gresd has written that they are out of use.
var ofCard = regexp.MustCompile(`(?:^vgpu: |; )card (\d+): `)

// viewCluster puts jobs on their nodes. Of those that wait, the jobs of the user only are
// listed; "": all.
func viewCluster(nodes []slurm.NodeGRES, jobs []slurm.ClusterJob, only string) clusterView {
	v := clusterView{Nodes: []nodeView{}, Waiting: []waitGroup{}}
	index := map[string]int{}
	for i, n := range nodes {
		index[n.Name] = i
		v.Nodes = append(v.Nodes, viewNode(n))
	}
	groups := map[waitGroup]waitGroup{}
	for _, j := range jobs {
		if j.State == "PENDING" && (only == "" || j.User == only) {
			key := waitGroup{User: clean(j.User), Reason: clean(j.Reason)}
			g, known := groups[key]
			if !known {
				g = key
				g.Asks = clean(strings.TrimPrefix(strings.Replace(j.TresPerNode, "gres/", "gres:", 1), "gres:"))
			}
			g.Jobs++
			groups[key] = g
		}
		for name, held := range j.On {
			v.Nodes[index[name]].take(held)
		}
	}
	for _, g := range groups {
		v.Waiting = append(v.Waiting, g)
	}
	slices.SortFunc(v.Waiting, func(a, b waitGroup) int {
		return cmp.Or(cmp.Compare(b.Jobs, a.Jobs), cmp.Compare(a.User, b.User), cmp.Compare(a.Reason, b.Reason))
	})
	v.count()
	return v
}

func clean(text string) string { return strings.Map(visible, text) }

func viewNode(n slurm.NodeGRES) nodeView {
	v := nodeView{Node: clean(n.Name), State: clean(n.State), Reason: clean(cmp.Or(n.Reason, n.Comment)), Counted: n.Counted}
	v.Usable = !unusable.MatchString(strings.ReplaceAll(n.State, "POWERED_DOWN", ""))
	// A comment of an administrator is his own; gresd's is about cards.
	if n.Reason == "" && !strings.HasPrefix(n.Comment, "vgpu: ") {
		v.Reason = ""
	}
	out := map[string]bool{}
	for _, found := range ofCard.FindAllStringSubmatch(v.Reason, -1) {
		out[found[1]] = true
	}
	for i, shared := range n.Shared {
		if shared {
			v.Cards = append(v.Cards, cardView{Index: i, Type: clean(n.Types[i]), Out: out[strconv.Itoa(i)]})
		}
	}
	return v
}

// take notes what a job holds of the node.
func (v *nodeView) take(held slurm.JobFacts) {
	v.Jobs++
	if v.Counted {
		v.Given += uint64(held.Counted)
		return
	}
	for i, c := range v.Cards {
		given := uint64(held.Units[c.Index])
		if slices.Contains(held.WholeCards, c.Index) {
			given = fullCard
		}
		v.Cards[i].Given += given
		v.Given += given
	}
}

const fullCard = uint64(gpu.FullCard)

// count fills in the sums.
func (v *clusterView) count() {
	var free []place.FreeCard
	for i := range v.Nodes {
		n := &v.Nodes[i]
		v.Cards += len(n.Cards)
		for _, c := range n.Cards {
			if !n.Usable || c.Out {
				continue
			}
			v.UsableFrom++
			n.Free += fullCard
			if !n.Counted {
				left := fullCard - min(c.Given, fullCard)
				n.Free -= fullCard - left
				n.largest = max(n.largest, left)
				free = append(free, place.FreeCard{Share: gpu.Share(left), Largest: gpu.Share(left)})
			}
		}
		if n.Counted {
			n.Free -= min(n.Given, n.Free)
		}
		v.Free += n.Free
		v.Given += n.Given
	}
	for _, share := range place.TypicalShares {
		p := placeView{Share: share}
		p.Fragmented, _ = place.Fragmented(free, share)
		for _, f := range free {
			p.Fit += int(f.Largest / share)
		}
		v.Places = append(v.Places, p)
	}
}

// shownGroups is how many groups of waiting jobs are listed; --json has all.
const shownGroups = 15

func writeCluster(w io.Writer, p paint, v clusterView) error {
	usable := len(slices.DeleteFunc(slices.Clone(v.Nodes), func(n nodeView) bool { return !n.Usable }))
	fmt.Fprintf(w, "nodes with cards: %d, usable %d; cards: %d, usable %d\n", len(v.Nodes), usable, v.Cards, v.UsableFrom)
	fmt.Fprintf(w, "shares given: %s of a card, free: %s\n", hundredths(v.Given), hundredths(v.Free))
	rows := [][]string{{"REQUEST", "FIT NOW", "FREE BUT TOO SMALL"}}
	for _, r := range v.Places {
		rows = append(rows, []string{fmt.Sprintf("%d%%", r.Share), fmt.Sprint(r.Fit), ratio(r.Fragmented)})
	}
	fmt.Fprintln(w)
	if err := table(w, p, rows); err != nil {
		return err
	}
	fmt.Fprintln(w)
	rows = [][]string{{"NODE", "STATE", "TYPE", "JOBS", "FREE", "LARGEST", "GIVEN, BY CARD"}}
	for _, n := range v.Nodes {
		state := n.State
		if !n.Usable {
			state = p.code(red, state)
		}
		largest := fmt.Sprintf("%d%%", n.largest)
		if n.Counted { // slurmctld does not know
			largest = "?"
		}
		rows = append(rows, []string{n.Node, state, n.types(), fmt.Sprint(n.Jobs), fmt.Sprintf("%d%%", n.Free), largest, n.given(p)})
	}
	if err := table(w, p, rows, "TYPE", "JOBS", "FREE"); err != nil {
		return err
	}
	for _, n := range v.Nodes {
		if n.Reason != "" {
			fmt.Fprintf(w, "\n%s: %s\n", n.Node, n.Reason)
		}
	}
	if v.Unread > 0 {
		fmt.Fprintf(w, "\nnot counted, their words imitate the output of scontrol: jobs %d\n", v.Unread)
	}
	return writeWaiting(w, p, v.Waiting)
}

func writeWaiting(w io.Writer, p paint, groups []waitGroup) error {
	rows, sum := [][]string{{"USER", "JOBS", "FOR EXAMPLE", "REASON"}}, 0
	for _, g := range groups {
		sum += g.Jobs
		rows = append(rows, []string{g.User, fmt.Sprint(g.Jobs), g.Asks, g.Reason})
	}
	return waitTable(w, p, fmt.Sprintf("jobs that wait for a share: %d", sum), rows, shownGroups)
}

// waitTable writes the first rows of the waiting jobs. --json has all.
func waitTable(w io.Writer, p paint, title string, rows [][]string, most int) error {
	if len(rows) == 1 {
		return nil // nobody
	}
	if len(rows) > most+1 {
		rows = append(rows[:most+1], []string{"…"})
	}
	fmt.Fprintf(w, "\n%s\n", title)
	return table(w, p, rows)
}

// hundredths writes a share as cards: "3.25".
func hundredths(share uint64) string { return fmt.Sprintf("%d.%02d", share/fullCard, share%fullCard) }

// types are those of the cards, each once.
func (v nodeView) types() string {
	var types []string
	for _, c := range v.Cards {
		types = append(types, c.Type)
	}
	slices.Sort(types)
	return cmp.Or(strings.Join(slices.Compact(slices.DeleteFunc(types, func(t string) bool { return t == "" })), ","), "-")
}

// given is "30 100 0 out".
func (v nodeView) given(p paint) string {
	if v.Counted {
		return fmt.Sprintf("%d of %d on %d cards", v.Given, fullCard*uint64(len(v.Cards)), len(v.Cards))
	}
	var words []string
	for _, c := range v.Cards {
		word := fmt.Sprint(c.Given)
		if c.Out {
			word += p.code(red, "!")
		}
		words = append(words, word)
	}
	return strings.Join(words, " ")
}
