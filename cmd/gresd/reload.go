// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"sync"

	"github.com/coreos/go-systemd/v22/daemon"
	"golang.org/x/sys/unix"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
)

// reloader reads the configuration at each SIGHUP and puts it in force. A file with a mistake
// changes nothing.
type reloader struct {
	path  string
	log   *slog.Logger
	count func(ok, restart bool)
	apply func(config.Config) // to the parts that keep keys for themselves

	inForce *config.InForce

	mu      sync.Mutex
	wrong   string   // of the last file, "" for nothing
	waiting []string // keys whose new values wait for a restart
}

// Problems are the errors and pending restarts of the last reload.
func (r *reloader) Problems() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	var problems []string
	if r.wrong != "" {
		problems = append(problems, fmt.Sprintf("configuration: the one read last is not in force: %s; vgpuctl check-config checks another", r.wrong))
	}
	if len(r.waiting) > 0 {
		problems = append(problems, fmt.Sprintf("configuration: new values wait for systemctl restart gresd: %s", strings.Join(r.waiting, ", ")))
	}
	if n := len(r.inForce.Get().Warnings); n > 0 {
		problems = append(problems, fmt.Sprintf("configuration: it has %d keys of version 0.10; vgpuctl check-config names them and what replaces them", n))
	}
	return problems
}

// run reloads at each signal until ctx is done.
func (r *reloader) run(ctx context.Context, hup <-chan os.Signal) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hup:
		}
		notifySystemd(reloading())
		r.reload()
		notifySystemd(daemon.SdNotifyReady)
	}
}

// reloading is systemd's notification of a reload.
func reloading() string {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
		return daemon.SdNotifyReloading
	}
	return fmt.Sprintf("%s\nMONOTONIC_USEC=%d", daemon.SdNotifyReloading, ts.Nano()/1000)
}

func (r *reloader) reload() {
	next, err := config.Load(r.path)
	var changed, restart []string
	if err == nil {
		next, changed, restart, err = config.Reload(*r.inForce.Get(), next)
	}
	if err != nil {
		r.mu.Lock()
		r.wrong = strings.ReplaceAll(err.Error(), "\n", "; ")
		r.mu.Unlock()
		r.log.Error("the new configuration has a mistake: the old one stays in force", "error", err)
		r.count(false, false)
		return
	}
	r.inForce.Set(next)
	r.mu.Lock()
	r.wrong, r.waiting = "", restart
	r.mu.Unlock()
	r.apply(next)
	logOldKeys(r.log, next)
	r.log.Info("configuration read anew", "changed", strings.Join(changed, " "))
	if len(restart) > 0 {
		r.log.Warn("new values wait for a restart", "keys", strings.Join(restart, " "))
	}
	r.count(true, len(restart) > 0)
}

// logOldKeys logs a warning for each key of version 0.10.
func logOldKeys(log *slog.Logger, c config.Config) {
	for _, key := range c.Warnings {
		log.Warn("the configuration has a key of version 0.10", "key", key)
	}
}
