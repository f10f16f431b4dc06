// SPDX-License-Identifier: Apache-2.0

// Package metrics serves what gresd knows to Prometheus. Ratios are 0 to 1;
// what is not known is absent, never 0. Only living jobs have series.
package metrics

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/audit"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Snapshot returns the cards and the granted jobs of the node.
type Snapshot func() ([]wire.Card, []wire.Job)

// Metrics counts what the server does and reads the rest at each scrape.
type Metrics struct {
	registry   *prometheus.Registry
	placements *prometheus.CounterVec
	cards      *prometheus.CounterVec
	duration   prometheus.Histogram
	audit      *prometheus.CounterVec
}

// Results that are exported from the start, so that a rate is known at once.
var results = []wire.Result{wire.Granted, wire.None, wire.Refused, wire.Requeued, "error"}

// New returns metrics of one daemon. Snapshots are taken once
// [Metrics.Watch] was called.
func New(version, driver string) *Metrics {
	m := &Metrics{
		registry: prometheus.NewRegistry(),
		placements: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vgpu_placements_total",
			Help: "Grant requests of Prologs, by result.",
		}, []string{"result"}),
		cards: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "vgpu_placement_cards_total",
			Help: "Cards in decisions about grant requests, by why each was or was not taken.",
		}, []string{"reason"}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name:    "vgpu_grant_duration_seconds",
			Help:    "Time to serve a grant request, slurmctld's answer included.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 25},
		}),
	}
	m.audit = prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "vgpu_audit_events_total",
		Help: "Processes and jobs that broke a rule on granted cards, by rule.",
	}, []string{"kind"})
	for _, kind := range audit.Kinds() {
		m.audit.WithLabelValues(string(kind))
	}
	build := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "vgpu_build_info",
		Help: "Always 1; the labels say what runs.",
		ConstLabels: prometheus.Labels{
			"version": version, "driver_version": driver, "go_version": runtime.Version(),
		},
	})
	build.Set(1)
	for _, r := range results {
		m.placements.WithLabelValues(string(r))
	}
	for _, r := range place.Reasons() {
		if r != place.Fits { // that is nothing decided
			m.cards.WithLabelValues(string(r))
		}
	}
	m.registry.MustRegister(build, m.placements, m.cards, m.duration, m.audit)
	return m
}

// Watch adds the series of cards and jobs.
func (m *Metrics) Watch(s Snapshot) { m.registry.MustRegister(collector{s}) }

// Placed counts one grant request.
func (m *Metrics) Placed(result string) { m.placements.WithLabelValues(result).Inc() }

// CardDecided counts one card in a decision, by place.Reason.
func (m *Metrics) CardDecided(reason string) { m.cards.WithLabelValues(reason).Inc() }

// Audited counts one broken rule, by audit.Kind.
func (m *Metrics) Audited(kind string) { m.audit.WithLabelValues(kind).Inc() }

// GrantTook measures one grant request.
func (m *Metrics) GrantTook(d time.Duration) { m.duration.Observe(d.Seconds()) }

// Gatherer is what a scrape reads.
func (m *Metrics) Gatherer() prometheus.Gatherer { return m.registry }

var (
	cardLabels = []string{"gpu_uuid"}
	jobLabels  = []string{"job_id", "user", "account", "partition", "gpu_uuid"}

	cardShare   = desc("vgpu_card_share_ratio", "Part of the card's share that is granted.", cardLabels)
	cardCores   = desc("vgpu_card_cores_ratio", "Part of the card's compute that is granted.", cardLabels)
	cardGranted = desc("vgpu_card_memory_granted_bytes", "Memory of the card that is granted.", cardLabels)
	cardMemory  = desc("vgpu_card_memory_bytes", "Memory that shares of the card are taken of.", cardLabels)
	cardOwn     = desc("vgpu_card_memory_physical_bytes", "Memory that the card has of its own.", cardLabels)
	cardJobs    = desc("vgpu_card_jobs", "Jobs with a share of the card.", cardLabels)
	cardHealthy = desc("vgpu_card_healthy", "1 while the card can be granted.", cardLabels)
	cardInfo    = desc("vgpu_card_info", "Always 1; the labels name the card.", []string{"gpu_uuid", "index", "name", "type"})

	jobShare   = desc("vgpu_job_share_ratio", "Part of the card that the job was granted.", jobLabels)
	jobCores   = desc("vgpu_job_cores_ratio", "Part of the card's compute that the job was granted.", jobLabels)
	jobUsed    = desc("vgpu_job_memory_used_bytes", "Memory of the card that the job's processes hold.", jobLabels)
	jobLimit   = desc("vgpu_job_memory_limit_bytes", "Memory of the card that the job may hold.", jobLabels)
	jobOwn     = desc("vgpu_job_memory_physical_bytes", "Of the job's memory limit, what the card has of its own.", jobLabels)
	jobSeconds = desc("vgpu_job_gpu_seconds_total", "GPU time that the job's processes were charged.", jobLabels)
	jobProcs   = desc("vgpu_job_processes", "Processes of the job with a context on the card.", jobLabels)
)

func desc(name, help string, labels []string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

// collector makes series from a snapshot, so that a job that ended has none.
type collector struct{ snapshot Snapshot }

func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		cardShare, cardCores, cardGranted, cardMemory, cardOwn, cardJobs, cardHealthy, cardInfo,
		jobShare, jobCores, jobUsed, jobLimit, jobOwn, jobSeconds, jobProcs,
	} {
		ch <- d
	}
}

func (c collector) Collect(ch chan<- prometheus.Metric) {
	cards, jobs := c.snapshot()
	gauge := func(d *prometheus.Desc, v float64, labels ...string) {
		ch <- prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v, labels...)
	}
	for _, card := range cards {
		gauge(cardShare, float64(card.Share)/100, card.UUID)
		gauge(cardCores, float64(card.Cores)/100, card.UUID)
		gauge(cardGranted, float64(card.GrantedBytes), card.UUID)
		gauge(cardMemory, float64(card.MemoryBytes), card.UUID)
		gauge(cardOwn, float64(card.PhysicalBytes), card.UUID)
		gauge(cardJobs, float64(card.Jobs), card.UUID)
		gauge(cardHealthy, map[bool]float64{true: 1}[card.Healthy], card.UUID)
		gauge(cardInfo, 1, card.UUID, strconv.Itoa(card.Index), card.Name, card.Type)
	}
	for _, job := range jobs {
		for _, card := range job.Cards {
			labels := []string{strconv.FormatUint(uint64(job.JobID), 10), valid(job.User), valid(job.Account), valid(job.Partition), card.UUID}
			gauge(jobShare, float64(card.Share)/100, labels...)
			gauge(jobCores, float64(card.Cores)/100, labels...)
			gauge(jobLimit, float64(card.LimitBytes), labels...)
			gauge(jobOwn, float64(card.PhysicalBytes), labels...)
			if card.UsedBytes != nil {
				gauge(jobUsed, float64(*card.UsedBytes), labels...)
			}
			if card.Processes != nil {
				gauge(jobProcs, float64(*card.Processes), labels...)
			}
			if card.GPUSeconds != nil {
				ch <- prometheus.MustNewConstMetric(jobSeconds, prometheus.CounterValue, *card.GPUSeconds, labels...)
			}
		}
	}
}

// valid keeps a name that is no UTF-8 from breaking the whole scrape.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }

// Serve answers scrapes on a loopback address until ctx is done. Job and user
// names are not for the network: another address is refused.
func (m *Metrics) Serve(ctx context.Context, address string) error {
	host, _, err := net.SplitHostPort(address)
	if err != nil {
		return fmt.Errorf("metrics address: %w", err)
	}
	if ip := net.ParseIP(host); host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return fmt.Errorf("metrics address %q: want a loopback address, for example 127.0.0.1:9464", address)
	}
	var lc net.ListenConfig
	listener, err := lc.Listen(ctx, "tcp", address)
	if err != nil {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return m.serve(ctx, listener)
}

func (m *Metrics) serve(ctx context.Context, listener net.Listener) error {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: 4, Timeout: 10 * time.Second,
	}))
	server := &http.Server{
		Handler: mux, ReadTimeout: 10 * time.Second, WriteTimeout: 20 * time.Second,
		IdleTimeout: time.Minute, MaxHeaderBytes: 16 << 10,
	}
	stop := context.AfterFunc(ctx, func() { _ = server.Close() })
	defer stop()
	if err := server.Serve(listener); err != nil && !errors.Is(err, http.ErrServerClosed) {
		return fmt.Errorf("serve metrics: %w", err)
	}
	return nil
}
