// SPDX-License-Identifier: Apache-2.0

// Package metrics serves what gresd knows to Prometheus. Ratios are 0 to 1;
// what is not known is absent, never 0. Only living jobs have series.
//
// docs/metrics.md lists all of them; a test holds it against what is here.
package metrics

import (
	"runtime"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/audit"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/status"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Metrics counts what the server does and reads the rest at each scrape. It is
// safe for concurrent use.
type Metrics struct {
	registry    *prometheus.Registry // of all series
	public      *prometheus.Registry // of those that name no job, user or process
	placements  *prometheus.CounterVec
	cards       *prometheus.CounterVec
	corrections *prometheus.CounterVec
	audit       *prometheus.CounterVec
	reloads     *prometheus.CounterVec

	grant, release, reconcile, sample prometheus.Histogram
	slurm                             *prometheus.HistogramVec

	reconciled, reloaded, restart *prometheus.GaugeVec // without labels
}

// Results that are exported from the start, so that a rate is known at once.
var results = []wire.Result{wire.Granted, wire.None, wire.Refused, wire.Requeued, "error"}

// Results of reloads.
const (
	reloadDone    = "done"
	reloadRefused = "refused" // the new file has a mistake; the old configuration stays
)

// Buckets of work that waits for slurmctld or the driver, and of work that
// waits for the disk at most.
var (
	slowBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25}
	fastBuckets = []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, .5, 1}
)

// New returns metrics of one daemon. Snapshots are taken once
// [Metrics.Watch] was called.
func New(version, driver string) *Metrics {
	m := &Metrics{registry: prometheus.NewRegistry(), public: prometheus.NewRegistry()}
	m.placements = m.counters("vgpu_placements_total", "Grant requests of Prologs, by result.", "result")
	m.cards = m.counters("vgpu_placement_cards_total",
		"Cards in decisions about grant requests, by why each was or was not taken.", "reason")
	m.corrections = m.counters("vgpu_reconcile_corrections_total",
		"What was put right when grants were compared with the jobs that live, by kind.", "kind")
	m.audit = m.counters("vgpu_audit_events_total",
		"Processes and jobs that broke a rule on granted cards, by rule.", "kind")
	m.reloads = m.counters("vgpu_config_reloads_total", "Reloads of the configuration, by result.", "result")

	m.grant = m.histogram("vgpu_grant_duration_seconds", "Time to serve a grant request, slurmctld's answer included.", slowBuckets)
	m.release = m.histogram("vgpu_release_duration_seconds", "Time to serve the release of a job.", fastBuckets)
	m.reconcile = m.histogram("vgpu_reconcile_duration_seconds",
		"Time to compare grants with the jobs that live, slurmctld's answer included.", slowBuckets)
	m.sample = m.histogram("vgpu_sample_duration_seconds", "Time that the driver took to tell what a card does.", fastBuckets)
	m.slurm = prometheus.NewHistogramVec(prometheus.HistogramOpts{
		Name: "vgpu_slurm_command_duration_seconds", Help: "Time that commands of Slurm took, by command.", Buckets: slowBuckets,
	}, []string{"command"})
	m.register(m.slurm)

	m.reconciled = m.later("vgpu_reconcile_last_success_timestamp_seconds",
		"When grants were last compared with slurmctld's jobs, as Unix time.")
	m.reloaded = m.later("vgpu_config_last_reload_successful", "1 when the last reload took the new configuration, 0 when it refused it.")
	m.restart = m.later("vgpu_config_restart_needed", "1 when the last reload found changes that need a restart.")

	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "vgpu_build_info", Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{"version": version, "driver_version": driver, "go_version": runtime.Version()},
	})
	build.Set(1)
	m.register(build)
	m.begin()
	return m
}

// begin exports what can be counted before it is.
func (m *Metrics) begin() {
	for _, r := range results {
		m.placements.WithLabelValues(string(r))
	}
	for _, r := range place.Reasons() {
		if r != place.Fits { // that is nothing decided
			m.cards.WithLabelValues(string(r))
		}
	}
	for _, kind := range status.Corrections() {
		m.corrections.WithLabelValues(string(kind))
	}
	for _, kind := range audit.Kinds() {
		m.audit.WithLabelValues(string(kind))
	}
	for _, result := range []string{reloadDone, reloadRefused} {
		m.reloads.WithLabelValues(result)
	}
	for _, command := range slurm.Commands() {
		m.slurm.WithLabelValues(command)
	}
}

func (m *Metrics) counters(name, help, label string) *prometheus.CounterVec {
	c := prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, []string{label})
	m.register(c)
	return c
}

func (m *Metrics) histogram(name, help string, buckets []float64) prometheus.Histogram {
	h := prometheus.NewHistogram(prometheus.HistogramOpts{Name: name, Help: help, Buckets: buckets})
	m.register(h)
	return h
}

// later makes a gauge that is absent until it is known: a vector has no series until one is asked for.
func (m *Metrics) later(name, help string) *prometheus.GaugeVec {
	g := prometheus.NewGaugeVec(prometheus.GaugeOpts{Name: name, Help: help}, nil)
	m.register(g)
	return g
}

// register adds series that name nobody.
func (m *Metrics) register(c prometheus.Collector) {
	m.registry.MustRegister(c)
	m.public.MustRegister(c)
}

// Watch adds the series of cards and jobs.
func (m *Metrics) Watch(s Snapshot) {
	m.registry.MustRegister(collector{s, true})
	m.public.MustRegister(collector{s, false})
}

// Placed counts one grant request.
func (m *Metrics) Placed(result string) { m.placements.WithLabelValues(result).Inc() }

// CardDecided counts one card in a decision, by place.Reason.
func (m *Metrics) CardDecided(reason string) { m.cards.WithLabelValues(reason).Inc() }

// Corrected counts one thing that was put right, by status.Correction.
func (m *Metrics) Corrected(kind string) { m.corrections.WithLabelValues(kind).Inc() }

// Audited counts one broken rule, by audit.Kind.
func (m *Metrics) Audited(kind string) { m.audit.WithLabelValues(kind).Inc() }

// GrantTook measures one grant request.
func (m *Metrics) GrantTook(d time.Duration) { m.grant.Observe(d.Seconds()) }

// ReleaseTook measures one release.
func (m *Metrics) ReleaseTook(d time.Duration) { m.release.Observe(d.Seconds()) }

// SampleTook measures one answer of the driver about what a card does.
func (m *Metrics) SampleTook(d time.Duration) { m.sample.Observe(d.Seconds()) }

// SlurmTook measures one command of Slurm.
func (m *Metrics) SlurmTook(command string, d time.Duration) {
	m.slurm.WithLabelValues(command).Observe(d.Seconds())
}

// Reconciled measures one comparison with slurmctld's jobs; ok is false where it
// could not be asked.
func (m *Metrics) Reconciled(d time.Duration, ok bool) {
	m.reconcile.Observe(d.Seconds())
	if ok {
		m.reconciled.WithLabelValues().Set(float64(time.Now().UnixMilli()) / 1000)
	}
}

// Reloaded tells of one reload of the configuration: whether the new one is in
// force, and whether parts of it wait for a restart.
func (m *Metrics) Reloaded(ok, restart bool) {
	if !ok {
		m.reloads.WithLabelValues(reloadRefused).Inc()
		m.reloaded.WithLabelValues().Set(0)
		return
	}
	m.reloads.WithLabelValues(reloadDone).Inc()
	m.reloaded.WithLabelValues().Set(1)
	m.restart.WithLabelValues().Set(one(restart))
}
