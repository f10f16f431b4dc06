// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/arbiter"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/audit"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/cardtime"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/health"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/inventory"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/journal"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/metrics"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/past"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/reclaim"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/sample"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/server"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/socket"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/usage"
)

// run is the daemon, from the configuration of path to the last log line. Grants
// stay in force when it returns.
func run(ctx context.Context, path string, cfg config.Config) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP) // which else would end it while it starts
	defer signal.Stop(hup)
	var level slog.LevelVar
	if err := journal.SetLevel(&level, cfg.Log.Level); err != nil {
		return err
	}
	log := journal.New(&level)
	if os.Geteuid() != 0 {
		return errors.New("must run as root: it makes files that users cannot change")
	}
	if cfg.Path == "" {
		log.Info("no configuration file: the defaults are in force", "path", config.DefaultPath)
	}
	records, lost, err := openLedger(cfg.Paths.Ledger(), log) // nobody else's, from here on
	if err != nil {
		return err
	}
	defer records.Close()
	if err := os.MkdirAll(cfg.Paths.RunDir, 0o755); err != nil {
		return err
	}
	listener, err := socket.Listen(cfg.Paths.Socket())
	if err != nil {
		return err
	}
	defer listener.Close()
	cards, err := inventory.Open(cfg.NVML.Library)
	if err != nil {
		return err
	}
	defer cards.Close()
	grants, err := grant.NewStore(grant.Layout{
		RunDir: cfg.Paths.RunDir, Jobs: cfg.Paths.Jobs(), Preload: cfg.Paths.Preload(), Library: cfg.Paths.Library,
		Socket: cfg.Paths.Socket(),
	}, log)
	if err != nil {
		return err
	}
	defer grants.Close()
	if _, err := os.Stat(cfg.Paths.Library); err != nil {
		log.Error("the preload library is missing: jobs run without limits", "error", err)
	}

	var srv *server.Server
	driverVersion := driver(cards, log)
	counts := metrics.New(version, driverVersion)
	scontrol := slurm.New(slurm.Options{Scontrol: cfg.Slurm.Scontrol, Conf: cfg.Slurm.Conf, Timeout: cfg.Slurm.Timeout(), Took: counts.SlurmTook})
	costs := openCosts(cfg, driverVersion, log)
	monitor, err := health.Open(healthParams(cfg), cards, log)
	if err != nil {
		return err
	}
	auditor := audit.New(audit.Parts{
		Policy: cfg.Audit, Grants: grants, Driver: cards, Count: counts.Audited, Log: log,
		Name:  func(uuid gpu.UUID) string { return srv.Cards.Name(uuid) },
		Tell:  func(jobID uint32, text string) { srv.Outbox.TellJob(jobID, text) },
		Whole: func(jobID uint32, uuid gpu.UUID) bool { return srv.MayHoldWhole(jobID, uuid) },
	})
	reports, err := past.Open(cfg.Paths.Past())
	if err != nil {
		log.Warn("what jobs did is not kept", "error", err) // no reason to grant nothing
	}
	inForce := config.NewInForce(cfg)
	again := &reloader{path: path, log: log, count: counts.Reloaded, inForce: inForce}
	srv, err = server.New(server.Parts{
		Config: inForce, Inventory: cards, Ledger: records, Grants: grants, Costs: costs, Observer: counts, Log: log, Version: version,
		Health: monitor, Samples: sample.New(cards, counts.SampleTook), Problems: []func() []string{records.Problems, again.Problems}, Commands: scontrol, Private: []func() []string{auditor.Problems}, Usage: usageWriter(cfg, scontrol, log), Past: reports,
		Steps: &slurm.Steps{},
		Slurm: func(conf string) node.Slurm {
			if cfg.Slurm.Conf != "" {
				return scontrol // the administrator's word beats the Prolog's
			}
			return scontrol.WithConf(conf)
		},
	}, lost)
	if err != nil {
		return err
	}
	go checkSlurm(ctx, scontrol, log)
	counts.Watch(srv.Report.Snapshot)
	monitor.OnChange(srv.CardChanged)
	again.apply = []func(config.Config){
		func(c config.Config) { _ = journal.SetLevel(&level, c.Log.Level) }, // validated
		func(c config.Config) { monitor.Set(healthParams(c)) },
		func(c config.Config) { auditor.SetPolicy(c.Audit) },
		func(config.Config) { srv.ConfigChanged() },
	}
	return serve(ctx, listener, cfg, srv, grants, cards, costs, counts, monitor, auditor, again, hup, log)
}

// checkSlurm looks at the start whether Slurm's commands work here, and again each minute until they
// have once: not the first job is to find out.
func checkSlurm(ctx context.Context, client *slurm.Client, log *slog.Logger) {
	for !client.Check(ctx) {
		log.Warn("Slurm's commands do not work here yet", "problem", client.Problem())
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Minute):
		}
	}
}

func healthParams(cfg config.Config) health.Params {
	return health.Params{
		Path: cfg.Paths.StateOfCards(), Ignore: cfg.Health.Ignored(), CleanProbes: cfg.Health.CleanProbes,
		Every: cfg.Health.Probe(), ReportOnly: cfg.Health.Action == config.HealthNone,
	}
}

func arbiterParams(cfg config.Config) arbiter.Params {
	return arbiter.Params{
		Period: cfg.Arbiter.PeriodUS, MaxPeriod: cfg.Arbiter.MaxPeriodUS, MinSlice: cfg.Arbiter.MinSliceUS,
		Engine: arbiter.Engine(cfg.Arbiter.Engine),
	}
}

// usageWriter is nil where the site does not ask for usage in its accounting.
func usageWriter(cfg config.Config, client *slurm.Client, log *slog.Logger) *usage.Writer {
	field := map[string]string{
		config.UsageSystem: slurm.SystemComment, config.UsageAdmin: slurm.AdminComment, config.UsageComment: slurm.Comment,
	}[cfg.Accounting.Usage]
	if field == "" {
		return nil
	}
	return usage.New(field, func(conf string) usage.Books {
		if cfg.Slurm.Conf != "" {
			return client
		}
		return client.WithConf(conf)
	}, log)
}

// serve runs the long-lived parts until ctx is done or the socket fails.
func serve(ctx context.Context, listener *net.UnixListener, cfg config.Config, srv *server.Server, grants *grant.Store, cards inventory.Inventory,
	costs *probe.Costs, counts *metrics.Metrics, monitor *health.Monitor, auditor *audit.Auditor,
	again *reloader, hup <-chan os.Signal, log *slog.Logger,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var parts sync.WaitGroup

	judge := arbiter.NewRunner(grants, arbiterParams(cfg), cfg.Arbiter.Tick(), log)
	judge.Except(srv.HeldByMPS)
	judge.Measure(cardtime.New(cardOf(cards), log))
	srv.Report.SetWork(judge.Work)
	measurer := arbiter.NewMeasurer(grants, cards, srv.Uncounted, log)
	reclaimer := reclaim.New(grants, reclaim.Child(self, clearSlots), log)
	grants.OnChange(func() { judge.Wake(); measurer.Wake(); reclaimer.Wake(); auditor.Wake() })
	parts.Go(func() { grants.Watch(ctx) })
	parts.Go(func() { judge.Run(ctx) })
	parts.Go(func() { srv.Report.CountTime(ctx) })
	parts.Go(func() { measurer.Run(ctx) })
	parts.Go(func() { reclaimer.Run(ctx) })
	parts.Go(func() { auditor.Run(ctx) })
	parts.Go(func() { monitor.Run(ctx, srv.Cards.IDs) })
	parts.Go(func() { learn(ctx, cfg, costs, cards) })

	if cfg.Metrics.Listen != "" {
		parts.Go(func() {
			// Jobs do not depend on metrics: say it and go on.
			if err := counts.Serve(ctx, cfg.Metrics.Listen, cfg.Metrics.Jobs); err != nil {
				log.Error("metrics are not served", "error", err)
			}
		})
	}
	parts.Go(func() {
		if err := counts.ServeAll(ctx, cfg.Paths.Metrics(), cfg.Metrics.Group); err != nil {
			log.Error("metrics are not served", "error", err)
		}
	})
	if cfg.Debug.Pprof != "" {
		parts.Go(func() {
			if err := metrics.ServeProfiles(ctx, cfg.Debug.Pprof); err != nil {
				log.Error("profiles are not served", "error", err)
			}
		})
	}
	parts.Go(func() { watchdog(ctx, srv) })
	again.apply = append(again.apply, func(c config.Config) { judge.Set(arbiterParams(c), c.Arbiter.Tick()) })

	err := srv.Run(ctx, listener, func() {
		notify(daemon.SdNotifyReady)
		log.Info("ready", "version", version, "socket", cfg.Paths.Socket())
		parts.Go(func() { again.run(ctx, hup) })
	})
	notify(daemon.SdNotifyStopping)
	cancel()
	parts.Wait()
	log.Info("stopped: grants stay in force")
	return err
}

// openLedger also says whether the ledger must be rebuilt.
func openLedger(path string, log *slog.Logger) (*ledger.Ledger, bool, error) {
	records, err := ledger.Open(path)
	switch {
	case errors.Is(err, ledger.ErrCorrupt):
		log.Error("the ledger is rebuilt from the grants and jobs that exist", "error", err)
		return records, true, nil
	case err != nil:
		return nil, false, err
	}
	if torn := records.Torn(); torn > 0 {
		log.Info("the last write of the ledger was not finished: nobody was told of it", "bytes", torn)
	}
	return records, !records.Existed(), nil
}

func driver(cards inventory.Inventory, log *slog.Logger) string {
	v, err := cards.Versions()
	if err != nil {
		log.Warn("driver version is not known", "error", err)
		return ""
	}
	log.Info("driver", "driver_version", v.Driver, "nvml_version", v.NVML, "cuda_version", v.CUDA)
	return v.Driver
}

// notify tells systemd; without systemd it does nothing.
func notify(state string) { _, _ = daemon.SdNotify(false, state) }

// watchdog tells systemd that the server still works. While it does not, the
// calls stop, and systemd starts gresd anew: jobs and grants are adopted.
func watchdog(ctx context.Context, srv interface{ Alive() }) {
	interval, err := daemon.SdWatchdogEnabled(false)
	if err != nil || interval == 0 {
		return
	}
	ticker := time.NewTicker(interval / 3)
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
			srv.Alive()
			notify(daemon.SdNotifyWatchdog)
		}
	}
}

func cardOf(cards inventory.Inventory) func(gpu.UUID) (gpu.Card, bool) {
	return func(uuid gpu.UUID) (gpu.Card, bool) {
		list, _ := cards.Cards() // those that can be read are returned all the same
		i := slices.IndexFunc(list, func(c gpu.Card) bool { return c.UUID == uuid })
		if i < 0 {
			return gpu.Card{}, false
		}
		return list[i], true
	}
}
