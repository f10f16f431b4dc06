// SPDX-License-Identifier: Apache-2.0

// Audit holds the functions that an NVIDIA driver exports against
// tests/abi/classes.def and libvgpu/driver/hooks.def. It fails when a function has no
// class, or when table and hook list do not agree, and writes docs/coverage.md.
//
// From the top of the repository:
//
//	go run ./tests/abi/audit --driver /usr/lib/x86_64-linux-gnu/libcuda.so.1
//
// Exit status: 0 all is well, 1 something has no class, 2 wrong use.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strings"
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

type options struct {
	classes, hooks, driver, symbols, nvml, write string
	headers                                      []string
	about                                        Driver
}

func parse(args []string, stderr io.Writer) (options, error) {
	var o options
	f := flag.NewFlagSet("audit", flag.ContinueOnError)
	f.SetOutput(stderr)
	f.StringVar(&o.classes, "classes", "tests/abi/classes.def", "table of classes")
	f.StringVar(&o.hooks, "hooks", "libvgpu/driver/hooks.def", "list of hooks")
	f.StringVar(&o.driver, "driver", "", "libcuda.so.1 to look at")
	f.StringVar(&o.symbols, "symbols", "", "list of libcuda's names, instead of --driver")
	f.StringVar(&o.nvml, "nvml", "", "libnvidia-ml.so.1, or a list of its names")
	f.StringVar(&o.write, "write", "", "document to write, e.g. docs/coverage.md")
	f.StringVar(&o.about.Version, "version", "", "version of the driver, for --write")
	f.StringVar(&o.about.CUDA, "cuda", "", "version of CUDA, for --write")
	f.Func("header", "cuda.h: say what it declares; may be given for several versions", func(s string) error {
		o.headers = append(o.headers, s)
		return nil
	})
	if err := f.Parse(args); err != nil {
		return o, err
	}
	var err error
	switch {
	case f.NArg() > 0:
		err = fmt.Errorf("argument %q: want only options", f.Arg(0))
	case (o.driver == "") == (o.symbols == ""):
		err = errors.New("want one of --driver and --symbols, e.g. --symbols tests/abi/testdata/libcuda-580.symbols")
	case o.write != "" && (o.about.Version == "" || o.about.CUDA == ""):
		err = errors.New("--write: want --version and --cuda too, e.g. --version 580.159.04 --cuda 13.0")
	}
	if err != nil {
		fmt.Fprintln(stderr, "vgpu: audit:", err)
	}
	return o, err
}

func run(args []string, stdout, stderr io.Writer) int {
	o, err := parse(args, stderr)
	if errors.Is(err, flag.ErrHelp) {
		return 0
	}
	if err != nil {
		return 2
	}
	report, err := audit(o, stdout)
	if err != nil {
		fmt.Fprintln(stderr, "vgpu: audit:", err)
		return 2
	}
	for _, bad := range report.Findings {
		fmt.Fprintln(stderr, "vgpu: audit:", bad)
	}
	if len(report.Findings) > 0 {
		return 1
	}
	return 0
}

func audit(o options, stdout io.Writer) (Report, error) {
	file, err := os.Open(o.classes)
	if err != nil {
		return Report{}, fmt.Errorf("open table: %w", err)
	}
	defer file.Close()
	table, err := ParseTable(o.classes, file)
	if err != nil {
		return Report{}, err
	}
	hooks, err := ReadHooks(o.hooks)
	if err != nil {
		return Report{}, err
	}
	cuda, err := ReadSymbols(o.driver+o.symbols, "cu")
	if err != nil {
		return Report{}, err
	}
	var nvml []string
	if o.nvml != "" {
		if nvml, err = ReadSymbols(o.nvml, "nvml"); err != nil {
			return Report{}, err
		}
	}
	var headers []Header
	for _, name := range o.headers {
		h, err := ReadHeader(name)
		if err != nil {
			return Report{}, err
		}
		headers = append(headers, h)
	}

	report := Audit(table, hooks, cuda, nvml)
	fmt.Fprint(stdout, summary(report))
	if len(headers) > 0 {
		fmt.Fprint(stdout, Since(headers, cuda))
	}
	// A document that hides what is wrong helps nobody.
	if o.write != "" && len(report.Findings) == 0 {
		if err := os.WriteFile(o.write, []byte(Document(report, o.about)), 0o644); err != nil {
			return Report{}, fmt.Errorf("write document: %w", err)
		}
	}
	return report, nil
}

func summary(r Report) string {
	var out strings.Builder
	for _, k := range classes {
		fmt.Fprintf(&out, "%-9s %4d  %s\n", k.Name, r.Count(k.Name, false), k.Meaning)
	}
	fmt.Fprintf(&out, "libcuda: %d functions; NVML: %d that tell memory, utilisation or processes; wrong: %d\n",
		r.CUDA, r.NVML, len(r.Findings))
	if len(r.Absent) > 0 {
		fmt.Fprintf(&out, "hooked, not in this driver: %s\n", strings.Join(r.Absent, " "))
	}
	return out.String()
}
