// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/coreos/go-systemd/v22/daemon"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/arbiter"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/audit"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/cards"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/config"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/driver"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/endedjobs"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gputime"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/grant"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/health"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/ledger"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/logging"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/metrics"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/mps"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/node"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/notify"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/process"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/server"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/status"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/waitqueue"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wakeup"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// gresd is the daemon: the parts that live as long as it does.
type gresd struct {
	config  *config.InForce
	level   slog.LevelVar
	log     *slog.Logger
	records *ledger.Ledger
	// ledgerLost: the records must be rebuilt.
	ledgerLost bool
	listener   *net.UnixListener
	driver     *driver.NVML
	grants     *grant.Store
	counts     *metrics.Metrics
	costs      *probe.Costs
	health     *health.Monitor
	slurm      *slurm.Client
	cards      *cards.Cards
	usage      *endedjobs.Writer
	report     *status.Reporter
	linger     *mps.ClientGuard
	server     *server.Server
	auditor    *audit.Auditor
	judge      *arbiter.Runner
	slices     *probe.SliceTester
	reload     *reloader

	toClose []func() error
}

const (
	slurmTimeout = 10 * time.Second      // of a command of Slurm
	probePeriod  = 5 * time.Second       // between two probes of a card
	arbiterTick  = 50 * time.Millisecond // between two polls of the jobs
)

// arbiterParams are in microseconds.
var arbiterParams = arbiter.Params{Period: 20000, MaxPeriod: 50000, MinSlice: 500}

// run is the daemon, from the configuration of path to the last log line. Grants
// stay in force when it returns.
func run(ctx context.Context, path string, cfg config.Config) error {
	hup := make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP) // which else would end it while it starts
	defer signal.Stop(hup)
	d := &gresd{config: config.NewInForce(cfg)}
	defer d.close()
	if err := d.open(cfg); err != nil {
		return err
	}
	if err := d.assemble(path, cfg); err != nil {
		return err
	}
	go checkSlurm(ctx, d.slurm, d.log)
	return d.serve(ctx, cfg, hup)
}

// open takes the files that only one gresd may have, and finds the driver.
func (d *gresd) open(cfg config.Config) error {
	if err := logging.SetLevel(&d.level, cfg.Log.Level); err != nil {
		return err
	}
	d.log = logging.New(&d.level)
	if os.Geteuid() != 0 {
		return errors.New("must run as root: it makes files that users cannot change")
	}
	if cfg.Path == "" {
		d.log.Info("no configuration file: the defaults are in force", "path", config.DefaultPath)
	}
	logOldKeys(d.log, cfg)
	var err error
	if d.records, d.ledgerLost, err = openLedger(cfg.Paths.Ledger(), d.log); err != nil { // from here on, no other gresd can run
		return err
	}
	d.closeLater(d.records.Close)
	if err := os.MkdirAll(cfg.Paths.RunDir, 0o755); err != nil {
		return err
	}
	if d.listener, err = wire.Listen(cfg.Paths.Socket()); err != nil {
		return err
	}
	d.closeLater(d.listener.Close)
	if d.driver, err = driver.Open(cfg.NVML.Library); err != nil {
		return err
	}
	d.closeLater(d.driver.Close)
	d.grants, err = grant.NewStore(grant.Layout{
		RunDir: cfg.Paths.RunDir, Jobs: cfg.Paths.Jobs(), Preload: cfg.Paths.Preload(), Library: cfg.Paths.Library,
		Socket: cfg.Paths.Socket(),
	}, d.log)
	if err != nil {
		return err
	}
	d.closeLater(func() error { d.grants.Close(); return nil })
	if _, err := os.Stat(cfg.Paths.Library); err != nil {
		d.log.Error("the preload library is missing: jobs run without limits", "error", err)
	}
	return nil
}

func (d *gresd) closeLater(c func() error) { d.toClose = append(d.toClose, c) }

func (d *gresd) close() {
	for _, c := range slices.Backward(d.toClose) {
		_ = c()
	}
}

// assemble makes the parts of gresd after open. Nothing runs yet.
func (d *gresd) assemble(path string, cfg config.Config) (err error) {
	driverVersion := readVersions(d.driver, d.log)
	d.counts = metrics.New(version, driverVersion)
	d.slurm = slurm.New(slurm.Options{Scontrol: cfg.Slurm.Scontrol, Conf: cfg.Slurm.Conf, Timeout: slurmTimeout, Took: d.counts.SlurmTook})
	d.costs = probe.OpenCosts(filepath.Join(cfg.Paths.StateDir, "context.json"), driverVersion, d.log)
	if d.health, err = health.Open(healthParams(cfg), d.driver, d.log); err != nil {
		return err
	}
	reports, err := endedjobs.Open(cfg.Paths.Past())
	if err != nil {
		d.log.Warn("what jobs did is not kept", "error", err) // no reason to grant nothing
	}
	d.reload = &reloader{path: path, log: d.log, count: d.counts.Reloaded, inForce: d.config, apply: d.follow}
	d.judge = arbiter.NewRunner(d.grants, arbiterParams, arbiterTick, d.log)
	here, err := node.Open(cfg.Paths.StateDir, func(conf string) node.Slurm { return clientOf(cfg, d.slurm, conf) }, d.log)
	if err != nil {
		return err
	}
	d.cards = cards.Read(d.driver, d.health, d.config, d.log)
	queue, err := waitqueue.Open(d.config, d.cards, here, d.records, d.log)
	if err != nil {
		return err
	}
	notifier := notify.New(d.config, d.cards, here, d.grants, d.log)
	manager, keeper, err := server.OpenMPS(&cfg, d.grants, d.judge.Wake, d.log)
	if err != nil {
		return err
	}
	d.linger = keeper
	meter := gputime.NewMeter(gputime.NewRecords(cardOf(d.driver), d.log), gputime.NewSampler(d.driver, d.counts.SampleTook), d.grants)
	d.auditor = audit.New(audit.Parts{
		Policy: cfg.Audit, Grants: d.grants, Driver: d.driver, Meter: meter, Library: cfg.Paths.Library, Count: d.counts.Audited, Log: d.log,
		Name: d.cards.Name, Tell: notifier.TellJob, Whole: queue.MayUse,
	})
	d.judge.Except(manager.Holds)
	d.judge.Measure(meter)
	d.slices = d.sliceTester(cfg, meter, driverVersion)
	d.judge.Slices(func(card gpu.UUID) probe.Verdict { v, _ := d.slices.Of(card); return v })
	d.usage = usageWriter(cfg, d.slurm, d.log)
	d.report = status.New(status.Parts{
		Config: d.config, Cards: d.cards, Node: here, Ledger: d.records, Grants: d.grants, InUse: queue.CurrentUse, ByMPS: manager.Serves,
		Samples: meter, Commands: d.slurm, Usage: d.usage, Past: reports, Version: version, Log: d.log,
		Problems: []func() []string{d.cards.Problems, d.records.Problems, d.reload.Problems},
		Private:  []func() []string{d.auditor.Problems, manager.Problems},
		Work:     d.judge.Work,
		Slices:   d.slices.Of,
	})
	d.counts.Watch(d.report.Snapshot)
	d.server, err = server.New(server.Parts{
		Config: d.config, Steps: &process.Steps{}, Ledger: d.records, Grants: d.grants, Costs: d.costs, Observer: d.counts, Node: here,
		Cards: d.cards, Queue: queue, Outbox: notifier, MPS: manager, Linger: keeper, Report: d.report, Log: d.log,
	}, d.ledgerLost)
	if err != nil {
		return err
	}
	d.health.OnChange(d.server.CardChanged)
	return nil
}

// follow puts the keys of another configuration in force that a part keeps for itself.
func (d *gresd) follow(c config.Config) {
	_ = logging.SetLevel(&d.level, c.Log.Level) // validated
	d.health.Set(healthParams(c))
	d.auditor.SetPolicy(c.Audit)
	d.server.ConfigChanged()
}

// clientOf is a client for the slurm.conf that a Prolog names: the administrator's word beats it.
func clientOf(cfg config.Config, client *slurm.Client, conf string) *slurm.Client {
	if cfg.Slurm.Conf != "" {
		return client
	}
	return client.WithConf(conf)
}

// checkSlurm looks at the start whether Slurm's commands work here, and again each minute until they
// have once: not the first job is to find out.
func checkSlurm(ctx context.Context, client *slurm.Client, log *slog.Logger) {
	for !client.Check(ctx) {
		log.Warn("Slurm's commands do not work here yet", "problem", client.Problem())
		if !wakeup.Wait(ctx, time.Minute) {
			return
		}
	}
}

func healthParams(cfg config.Config) health.Params {
	return health.Params{
		Path: cfg.Paths.StateOfCards(), Ignore: cfg.Health.Ignored(), CleanProbes: cfg.Health.CleanProbes,
		Every: probePeriod, ReportOnly: cfg.Health.Action == config.HealthNone,
	}
}

// usageWriter is nil where the site does not ask for usage in its accounting.
func usageWriter(cfg config.Config, client *slurm.Client, log *slog.Logger) *endedjobs.Writer {
	field := map[string]string{
		config.UsageSystem: slurm.SystemComment, config.UsageAdmin: slurm.AdminComment, config.UsageComment: slurm.Comment,
	}[cfg.Accounting.Usage]
	if field == "" {
		return nil
	}
	return endedjobs.NewWriter(field, func(conf string) endedjobs.Books { return clientOf(cfg, client, conf) }, log)
}

// serve runs the long-lived parts until ctx is done or the socket fails.
func (d *gresd) serve(ctx context.Context, cfg config.Config, hup <-chan os.Signal) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var parts sync.WaitGroup

	measurer := arbiter.NewMeasurer(d.grants, d.driver, d.server.Uncounted, d.log)
	measurer.Keeps(d.linger.Memory)
	reclaimer := grant.NewSlotReclaimer(d.grants, grant.ClearInChild(self, clearSlots), d.log)
	d.grants.OnChange(func() {
		d.judge.Wake()
		measurer.Wake()
		reclaimer.Wake()
		d.auditor.Wake()
		d.linger.Wake()
	})
	for _, run := range []func(context.Context){
		d.grants.Watch, d.judge.Run, d.report.CountGPUTime, d.usage.Run, measurer.Run, reclaimer.Run, d.auditor.Run, d.linger.Run,
	} {
		parts.Go(func() { run(ctx) })
	}
	parts.Go(func() { d.health.Run(ctx, d.cards.IDs) })
	if cfg.Memory.DriverLimits {
		keeper := driver.LimitKeeper{Grants: d.grants, Set: d.driver.LimitMemory, Root: "/sys/fs/cgroup", Proc: "/proc", Log: d.log}
		parts.Go(func() { keeper.Run(ctx) })
	}
	parts.Go(func() { learn(ctx, cfg, d.costs, d.driver) })
	d.serveMetrics(ctx, cfg, &parts)
	parts.Go(func() { watchdog(ctx, d.server) })

	err := d.server.Run(ctx, d.listener, func() {
		notifySystemd(daemon.SdNotifyReady)
		d.log.Info("ready", "version", version, "socket", cfg.Paths.Socket())
		parts.Go(func() { d.reload.run(ctx, hup) })
		parts.Go(func() { d.testSlices(ctx) })
	})
	notifySystemd(daemon.SdNotifyStopping)
	cancel()
	parts.Wait()
	d.log.Info("stopped: grants stay in force")
	return err
}

// serveMetrics starts the listeners of metrics and profiles. Jobs do not depend on them: where one
// fails, gresd says it and goes on.
func (d *gresd) serveMetrics(ctx context.Context, cfg config.Config, parts *sync.WaitGroup) {
	say := func(err error) {
		if err != nil {
			d.log.Error("metrics are not served", "error", err)
		}
	}
	parts.Go(func() { say(d.counts.ServeAll(ctx, cfg.Paths.Metrics(), cfg.Metrics.Group)) })
	if cfg.Metrics.Listen != "" {
		parts.Go(func() { say(d.counts.Serve(ctx, cfg.Metrics.Listen, cfg.Metrics.Jobs)) })
	}
	if cfg.Debug.Pprof != "" {
		parts.Go(func() {
			if err := metrics.ServeProfiles(ctx, cfg.Debug.Pprof); err != nil {
				d.log.Error("profiles are not served", "error", err)
			}
		})
	}
}

// openLedger also reports whether the ledger must be rebuilt.
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

func readVersions(cards *driver.NVML, log *slog.Logger) string {
	v, err := cards.Versions()
	if err != nil {
		log.Warn("driver version is not known", "error", err)
		return ""
	}
	log.Info("driver", "driver_version", v.Driver, "nvml_version", v.NVML, "cuda_version", v.CUDA)
	return v.Driver
}

// notifySystemd sends a state to systemd. Without systemd, it does nothing.
func notifySystemd(state string) { _, _ = daemon.SdNotify(false, state) }

// watchdog tells systemd that the server still works. If it does not, the calls stop, and systemd
// restarts gresd: the new gresd adopts jobs and grants.
func watchdog(ctx context.Context, srv interface{ CheckLiveness() }) {
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
			srv.CheckLiveness()
			notifySystemd(daemon.SdNotifyWatchdog)
		}
	}
}

func cardOf(cards *driver.NVML) func(gpu.UUID) (gpu.Card, bool) {
	return func(uuid gpu.UUID) (gpu.Card, bool) {
		list, _ := cards.Cards() // an error leaves the readable cards in the list
		i := slices.IndexFunc(list, func(c gpu.Card) bool { return c.UUID == uuid })
		if i < 0 {
			return gpu.Card{}, false
		}
		return list[i], true
	}
}
