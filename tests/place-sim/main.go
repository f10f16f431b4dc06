// SPDX-License-Identifier: Apache-2.0

// place-sim compares rules for choosing cards on one node under churn: jobs
// arrive at random, live for a random time, and are refused where they do not
// fit. It prints a table, and draws a plot; docs/placement.md has both.
package main

import (
	"flag"
	"fmt"
	"io"
	"math"
	"os"
	"sync"
)

func main() {
	jobs := flag.Int("jobs", 50000, "jobs of each run")
	seeds := flag.Int("seeds", 10, "runs of each scenario")
	cards := flag.Int("cards", 8, "cards of the node")
	svg := flag.String("svg", "", "`FILE` to draw the plot into; none without it")
	flag.Parse()
	if flag.NArg() != 0 || *jobs < 10 || *seeds < 1 || *cards < 8 {
		fmt.Fprintln(os.Stderr, "place-sim: want no argument, -jobs from 10, -seeds from 1, -cards from 8 (the trace has jobs of 8)")
		os.Exit(2)
	}
	c := campaign{cards: *cards, jobs: *jobs, seeds: *seeds}
	c.table(os.Stdout, []float64{0.7, 1, 1.3})
	if *svg != "" {
		if err := os.WriteFile(*svg, []byte(c.plot()), 0o644); err != nil {
			fmt.Fprintln(os.Stderr, "place-sim:", err)
			os.Exit(1)
		}
	}
}

// campaign is the size of every experiment.
type campaign struct {
	cards, jobs, seeds int
}

// run returns the mean over the seeds of each rule, in the order of rules, and
// the standard error of each rule's use beside that of the last one, gresd's.
func (c campaign) run(m mix, load float64) (means []result, errors []float64) {
	rules := rules(m)
	all := make([][]result, len(rules)) // by rule and seed
	var work sync.WaitGroup
	for i, r := range rules {
		all[i] = make([]result, c.seeds)
		work.Go(func() {
			for seed := range c.seeds {
				all[i][seed] = scenario{m, c.cards, load, c.jobs, uint64(seed)}.run(r)
			}
		})
	}
	work.Wait()
	ours := all[len(all)-1]
	n := float64(c.seeds)
	for _, runs := range all {
		var mean result
		var sum, squares float64
		for seed, r := range runs {
			mean.used += r.used / n
			mean.refused += r.refused / n
			d := r.used - ours[seed].used
			sum, squares = sum+d, squares+d*d
		}
		means = append(means, mean)
		errors = append(errors, math.Sqrt(max(0, squares/n-sum*sum/n/n)/max(1, n-1)))
	}
	return means, errors
}

func (c campaign) table(w io.Writer, loads []float64) {
	fmt.Fprintf(w, "Used / refused, in percent; a node of %d cards, %d runs of %d jobs. In brackets: used,\n"+
		"in points below (-) or above (+) %s, ± the standard error of that difference.\n", c.cards, c.seeds, c.jobs, vgpu)
	for _, m := range mixes() {
		fmt.Fprintf(w, "\n%s\n\n| rule |", m.name)
		for _, load := range loads {
			fmt.Fprintf(w, " load %.1f |", load)
		}
		fmt.Fprint(w, "\n|---|")
		rows := make([]string, len(rules(m)))
		for _, load := range loads {
			fmt.Fprint(w, "---|")
			means, errors := c.run(m, load)
			ours := means[len(means)-1].used
			for i, r := range means {
				rows[i] += fmt.Sprintf(" %.2f / %.2f", r.used, r.refused)
				if i < len(means)-1 {
					rows[i] += fmt.Sprintf(" (%+.2f ± %.2f)", r.used-ours, errors[i])
				}
				rows[i] += " |"
			}
		}
		fmt.Fprintln(w)
		for i, r := range rules(m) {
			fmt.Fprintf(w, "| %s |%s\n", r.name, rows[i])
		}
	}
}
