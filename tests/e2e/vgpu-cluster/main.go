// SPDX-License-Identifier: Apache-2.0

// vgpu-cluster runs a command, or a shell, on a private Slurm with slurm-vgpu
// and simulated cards. Both are gone when the command ends.
package main

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"

	"github.com/slurm-vgpu/slurm-vgpu/tests/e2e/cluster"
)

func main() {
	opts := cluster.Options{}
	cards := flag.Int("cards", 4, "number of simulated cards")
	memory := flag.String("memory", "80G", "memory of each simulated card")
	config := flag.String("config", "", "file with more lines for vgpu.toml")
	user := flag.String("user", "", "run the command as this user, root otherwise")
	flag.IntVar(&opts.Nodes, "nodes", 1, "number of nodes with such cards")
	flag.BoolVar(&opts.Real, "real", false, "use the NVIDIA cards of this machine")
	flag.BoolVar(&opts.GresdPlaces, "gresd-places", false, "gresd chooses the card, with a gres.conf of gresd gres-conf")
	flag.BoolVar(&opts.NoPlugin, "no-plugin", false, "without the SPANK plugin, as where a site may not install it")
	flag.StringVar(&opts.Build, "build", "", "folder of built programs (build/ of the checkout)")
	flag.StringVar(&opts.Logs, "logs", "", "folder for logs (/run/cluster/log)")
	flag.Usage = func() {
		fmt.Fprintf(flag.CommandLine.Output(), "usage: vgpu-cluster [options] [command ...]\n")
		flag.PrintDefaults()
	}
	flag.Parse()
	opts.Cards = slices.Repeat([]cluster.Card{{Name: "Simulated H100", Memory: *memory}}, *cards)
	code, err := run(opts, *config, *user, flag.Args())
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(opts cluster.Options, config, user string, argv []string) (int, error) {
	if config != "" {
		text, err := os.ReadFile(config)
		if err != nil {
			return 0, err
		}
		opts.Config = string(text)
	}
	enter := cluster.Enter
	if opts.Real {
		enter = cluster.EnterForCards
	}
	if err := enter(); err != nil {
		return 0, err
	}
	c, err := cluster.Up(opts)
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if len(argv) == 0 {
		argv = []string{"/bin/bash"}
	}
	if err := os.Setenv("PATH", cluster.Dir+"/bin:"+os.Getenv("PATH")); err != nil {
		return 0, err
	}
	cmd := exec.Command(argv[0], argv[1:]...)
	if user != "" {
		if cmd, err = c.Command(user, argv...); err != nil {
			return 0, err
		}
	}
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	err = cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode(), nil
	}
	return 0, err
}
