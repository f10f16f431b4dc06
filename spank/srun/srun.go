// SPDX-License-Identifier: Apache-2.0

// Package srun is the logic of vgpu-srun: srun with the --vgpu options, for
// sites without the SPANK plugin. It checks the options with gresd/request,
// asks slurmctld for what it counts, and sends the options in the job's comment. All
// else is srun's own.
package srun

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
	"github.com/slurm-vgpu/slurm-vgpu/spank/options"
)

var usage = `usage: vgpu-srun [--show] [--vgpu-OPTION=VALUE ...] [srun options] program [args]

Runs srun with a share of a GPU. --gres=vgpu[:TYPE]:N among srun's options is
the share: 1 to 100 hundredths of one card, or 100 for each whole card.

` + optionLines() + `  --show                     print the srun command and do not run it
  --help                     this text; srun's own is srun --help

$VGPU_SRUN is the srun that is run; default: the one in $PATH.
Example: vgpu-srun --gres=vgpu:30 --vgpu-mem=20G -n 1 python3 train.py
`

func optionLines() string {
	var b strings.Builder
	for _, o := range options.List {
		fmt.Fprintf(&b, "  %-26s %s\n", "--vgpu-"+o.Name+"="+o.Takes, o.Usage)
	}
	return b.String()
}

// Exit codes.
const (
	exitOK    = 0
	exitError = 1
)

// Wrapper is one run of vgpu-srun.
type Wrapper struct {
	Getenv func(string) string
	Stdout io.Writer
	Stderr io.Writer
	// GresdPlaces says that slurmctld counts gres/vgpu, and not shards: the nodes have none.
	GresdPlaces bool
	// Exec replaces the process, as syscall.Exec does; it returns only an error.
	Exec func(path string, argv []string) error
}

// Run handles the arguments behind the program's name, and returns an exit code
// where srun was not run.
func (w Wrapper) Run(args []string) int {
	var words []string
	show := false
	for i, component := range components(w.withEnvironment(args)) {
		p, err := read(component)
		if p.help || len(args) == 0 {
			fmt.Fprint(w.Stdout, usage)
			return exitOK
		}
		if err != nil {
			return w.fail(err)
		}
		job := cmp.Or(p.job, w.Getenv("SLURM_JOB_ID"))
		p.gresdPlaces, p.gpus = w.GresdPlaces, p.gpus || w.environmentAsksForGPUs()
		rewritten, err := p.rewrite(job != "")
		if err != nil {
			return w.fail(err)
		}
		if job != "" && p.flag != "" {
			fmt.Fprintf(w.Stderr, "vgpu: %s: no effect: a step has the limits of its job %s; give it to sbatch or salloc\n", p.flag, job)
		}
		if i > 0 {
			words = append(words, ":")
		}
		words, show = append(words, rewritten...), show || p.show
	}
	path, err := w.find()
	if err != nil {
		return w.fail(err)
	}
	argv := append([]string{path}, words...)
	if show {
		fmt.Fprintln(w.Stdout, quoteAll(argv))
		return exitOK
	}
	return w.fail(fmt.Errorf("run %s: %w", path, w.Exec(path, argv)))
}

// withEnvironment puts the share of $SLURM_GRES in front of a job's options,
// where srun takes it from when there is no --gres.
func (w Wrapper) withEnvironment(args []string) []string {
	list := w.Getenv("SLURM_GRES")
	if w.Getenv("SLURM_JOB_ID") != "" || !strings.Contains(list, "vgpu") || len(args) == 0 {
		return args
	}
	given, _ := split(args)
	if slices.ContainsFunc(given, func(o option) bool { return o.name == "gres" }) {
		return args
	}
	return append([]string{"--gres=" + list}, args...)
}

// environmentAsksForGPUs says whether srun finds a request for cards in its variables.
func (w Wrapper) environmentAsksForGPUs() bool {
	for _, name := range []string{"SLURM_GPUS", "SLURM_GPUS_PER_NODE", "SLURM_GPUS_PER_SOCKET", "SLURM_GPUS_PER_TASK"} {
		if w.Getenv(name) != "" {
			return true
		}
	}
	return namesCards(w.Getenv("SLURM_GRES")) || namesCards(w.Getenv("SLURM_TRES_PER_TASK"))
}

func (w Wrapper) fail(err error) int {
	fmt.Fprintf(w.Stderr, "vgpu: %v\n", err)
	return exitError
}

// find returns srun's path. A site may install vgpu-srun under the name srun;
// then it must say where the real one is.
func (w Wrapper) find() (string, error) {
	name := cmp.Or(w.Getenv("VGPU_SRUN"), "srun")
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("find srun: %w", err)
	}
	self, err := os.Stat("/proc/self/exe")
	if err != nil || strings.Contains(name, "/") {
		return path, nil
	}
	if found, err := os.Stat(path); err == nil && os.SameFile(self, found) {
		return "", fmt.Errorf("%s is vgpu-srun itself: want the real srun in $VGPU_SRUN, for example /usr/bin/srun", path)
	}
	return path, nil
}

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
	gpus       bool            // there is another request for GPUs
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
	if _, known := options.Find(name); !known {
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
		return err
	}
	p.given[name] = o.value
	p.flags = append(p.flags, "--"+o.name)
	return nil
}

// findShare looks for a share in the list of option i. Shards are a share only together with --vgpu
// options: without them, srun handles the shards itself.
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

// rewrite returns the words for srun. Shares become shards for slurmctld. The options go into the
// comment, and job_submit.lua and gresd find them there. With inJob, the words start a step of a
// job, which has its limits already.
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
