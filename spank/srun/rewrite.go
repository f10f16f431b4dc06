// SPDX-License-Identifier: Apache-2.0

package srun

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/spank/options"
)

const flagPrefix = "vgpu-" // --vgpu-mem is the option mem

// plan is a command line taken apart.
type plan struct {
	show, help bool
	options    []option // srun's own, --gres and --comment among them
	program    []string
	given      request.Options // --vgpu-…, and share from --gres
	flags      []string        // the --vgpu options
	flag       string          // the first of them, for messages
	gres       int             // index in options of the --gres with a share; -1
	word       string          // the word of that list: "vgpu:h200:30"
	cardType   string          // "" or "h200"
	gpus       bool            // GPUs are asked for in another way
	job        string          // of --jobid: the words start a step of that job

	gresdPlaces bool
}

// read takes the command line apart.
func read(args []string) (plan, error) {
	given, program := split(args)
	p := plan{program: program, given: request.Options{}, gres: -1}
	for _, o := range given {
		name, ours := strings.CutPrefix(o.name, flagPrefix)
		switch {
		case o.name == "show":
			p.show = true
		case o.name == "help" || len(o.words) == 1 && o.words[0] == "-h":
			p.help = true
		case ours:
			if err := p.take(name, o); err != nil {
				return p, err
			}
		default:
			p.gpus = p.gpus || o.asksForGPUs()
			if o.name == "jobid" {
				p.job = o.value
			}
			p.options = append(p.options, o)
		}
	}
	if n := len(given); n > 0 && isUnclear(given[n-1], program) {
		name := given[n-1].words[0]
		return p, &request.Error{Option: name, Given: program[0], Want: "want " + name + "=VALUE, or -- in front of the program"}
	}
	p.flag = cmp.Or(p.flags...)
	for i, o := range p.options {
		if o.name == "gres" && p.gres < 0 {
			p.findShare(i, o.value)
		}
	}
	return p, nil
}

// take keeps one --vgpu option. As with srun, the last one of a name counts.
func (p *plan) take(name string, o option) error {
	known, ok := options.Find(name)
	if !ok {
		return &request.Error{Option: "--" + o.name, Want: "unknown option, see vgpu-srun --help"}
	}
	if len(o.words) == 1 && !strings.Contains(o.words[0], "=") {
		return &request.Error{Option: "--" + o.name, Want: "want a value, see vgpu-srun --help"}
	}
	if o.value == "none" { // takes back what was before it
		delete(p.given, name)
		p.flags = slices.DeleteFunc(p.flags, func(f string) bool { return f == "--"+o.name })
		return nil
	}
	// By itself first, in the words of the plugin.
	if _, err := request.Parse(request.Options{name: o.value}); err != nil {
		return errors.New(known.Mistake(o.value))
	}
	p.given[name] = o.value
	p.flags = append(p.flags, "--"+o.name)
	return nil
}

// findShare looks for a share in the list of option i. Shards are one only
// beside --vgpu options: without them they are srun's own business.
func (p *plan) findShare(i int, list string) {
	for word := range strings.SplitSeq(list, ",") {
		name, rest, _ := strings.Cut(word, ":")
		p.gpus = p.gpus || name == "gpu"
		if name != "vgpu" && (name != "shard" || p.flag == "") {
			continue
		}
		p.gres, p.word, p.cardType = i, word, ""
		count := rest
		if at := strings.LastIndexAny(rest, ":="); at >= 0 {
			p.cardType, count = rest[:at], rest[at+1:]
		}
		p.given["share"] = count
	}
}

// rewrite returns the words for srun: shares for slurmctld, and the options in
// the comment, where job_submit.lua and gresd find them. inJob says that the
// words start a step of a job, which has its limits already.
func (p plan) rewrite(inJob bool) ([]string, error) {
	if p.flag != "" && p.gres < 0 && !p.gpus && !inJob {
		return nil, &request.Error{
			Option: p.flag, Given: p.given[strings.TrimPrefix(p.flag, "--"+flagPrefix)],
			Want: "want also a share of a card: add for example --gres=vgpu:30, or " + p.flag + "=none",
		}
	}
	req, err := request.Parse(p.given)
	if err != nil {
		return nil, p.named(err)
	}
	if inJob {
		req = request.Request{Share: req.Share, Cards: req.Cards}
	}
	var out []string
	comment := ""
	for i, o := range p.options {
		switch {
		case i == p.gres:
			out = append(out, "--gres="+strings.Replace(o.value, p.word, p.counted(req), 1))
		case o.name == "comment":
			comment = o.value // as with srun, the last one counts
		default:
			out = append(out, o.words...)
		}
	}
	if comment, err = p.mark(comment, req, inJob); err != nil {
		return nil, err
	}
	if comment != "" {
		out = slices.Insert(out, 0, "--comment="+comment)
	}
	return append(out, p.program...), nil
}

// named names the share as it was written, with a type or as shards.
func (p plan) named(err error) error {
	var mistake *request.Error
	if !errors.As(err, &mistake) || mistake.Option != "--gres=vgpu" || p.gres < 0 {
		return err
	}
	name, _, _ := strings.Cut(p.word, ":")
	if p.cardType != "" {
		name += ":" + p.cardType
	}
	return &request.Error{Option: "--gres=" + name, Given: mistake.Given, Want: mistake.Want}
}

// counted is the GRES that slurmctld can place: one job's shards always fit one
// card, so several whole cards are written as GPUs. Memory in bytes needs the
// card's size: job_submit.lua raises the count for it.
func (p plan) counted(req request.Request) string {
	name, count := "shard", request.Dominant(req, 0)
	if p.gresdPlaces {
		return p.word // which job_submit.lua raises where it must
	}
	if req.Share > gpu.FullCard && req.Share%gpu.FullCard == 0 {
		name, count = "gpu", req.Share/gpu.FullCard
	}
	if p.cardType != "" {
		name += ":" + p.cardType
	}
	return fmt.Sprintf("%s:%d", name, count)
}

// mark puts the token into the user's comment.
func (p plan) mark(comment string, req request.Request, inJob bool) (string, error) {
	words := request.Options{}
	maps.Copy(words, p.given)
	if p.gresdPlaces || p.gres >= 0 && req.Share <= gpu.FullCard && request.Dominant(req, 0) == req.Share {
		delete(words, "share") // the GRES says it
	}
	token := request.FormatToken(words)
	if token == "" || inJob {
		return comment, nil
	}
	if before, err := request.ParseComment(comment); err != nil || before != nil {
		return "", &request.Error{
			Option: "--comment", Given: comment,
			Want: "want either vgpu(…) in the comment or --vgpu options, for example --comment=night",
		}
	}
	return strings.TrimSpace(comment + " " + token), nil
}
