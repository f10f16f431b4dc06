// SPDX-License-Identifier: Apache-2.0

// Command vgpu-prolog is Slurm's Prolog, Epilog, TaskProlog, TaskEpilog and
// HealthCheckProgram on a node that shares its GPUs. It is static and small,
// because every job waits for it. See docs/man/vgpu-prolog.8.
package main

import (
	"context"
	"flag"
	"fmt"
	"log/syslog"
	"os"
	"os/signal"
	"runtime"
	"syscall"

	"github.com/slurm-vgpu/slurm-vgpu/spank/prolog"
)

// version is set by the linker.
var version = "dev"

func main() {
	showVersion, socket, configPath := flags(flag.CommandLine)
	flag.Parse()
	if *showVersion {
		fmt.Printf("vgpu-prolog %s (%s)\n", version, runtime.Version())
		return
	}
	os.Exit(run(*socket, *configPath))
}

// flags defines the program's flags.
func flags(set *flag.FlagSet) (showVersion *bool, socket, configPath *string) {
	return set.Bool("version", false, "print the version"),
		set.String("socket", "", "gresd's socket `FILE`; default: run_dir/gresd.sock"),
		set.String("config", configDefault(), "configuration `FILE`")
}

func configDefault() string {
	if path := os.Getenv("VGPU_CONFIG"); path != "" {
		return path
	}
	return prolog.DefaultConfigPath
}

func run(socket, configPath string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	config, err := prolog.ReadConfig(configPath)
	if err != nil {
		logLine("vgpu: " + err.Error())
	}
	getenv := func(name string) string {
		if name == "VGPU_SOCKET" && socket != "" {
			return socket
		}
		return os.Getenv(name)
	}
	return prolog.New(getenv, config, os.Stdout, os.Stderr, logLine).Run(ctx)
}

// logLine goes to the system log; a node without one loses the line, not the job.
func logLine(line string) {
	if w, err := syslog.New(syslog.LOG_WARNING|syslog.LOG_DAEMON, "vgpu-prolog"); err == nil {
		_, _ = w.Write([]byte(line))
		_ = w.Close()
	}
}
