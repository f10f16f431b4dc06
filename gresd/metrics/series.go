// SPDX-License-Identifier: Apache-2.0

package metrics

import (
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/place"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/probe"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// Snapshot returns the cards and the granted jobs of the node.
type Snapshot func() ([]wire.Card, []wire.Job)

// value is a number, or nothing where it is not known.
type value struct {
	number float64
	known  bool
}

func is(n float64) value { return value{n, true} }

// maybe is what may not be known.
func maybe[T uint64 | float64 | int](n *T) value {
	if n == nil {
		return value{}
	}
	return is(float64(*n))
}

func one(b bool) float64 {
	if b {
		return 1
	}
	return 0
}

// series is a metric of each T.
type series[T any] struct {
	desc *prometheus.Desc
	kind prometheus.ValueType
	of   func(T) value
}

func desc(name, help string, labels []string) *prometheus.Desc {
	return prometheus.NewDesc(name, help, labels, nil)
}

var (
	cardLabels    = []string{"gpu_uuid"}
	jobLabels     = []string{"job_id", "user", "account", "partition", "gpu_uuid"}
	processLabels = append(append([]string{}, jobLabels...), "pid")
)

// jobCard is one card of a job.
type jobCard struct {
	job *wire.Job
	wire.JobCard
}

// of returns a series. A name with the suffix _total makes it a counter.
func of[T any](labels []string, name, help string, get func(T) value) series[T] {
	kind := prometheus.GaugeValue
	if strings.HasSuffix(name, "_total") {
		kind = prometheus.CounterValue
	}
	return series[T]{desc(name, help, labels), kind, get}
}

var cardSeries = []series[wire.Card]{
	of(cardLabels, "vgpu_card_share_ratio", "Part of the card's share that is granted.",
		func(c wire.Card) value { return is(float64(c.Share) / 100) }),
	of(cardLabels, "vgpu_card_cores_ratio", "Part of the card's compute that is granted.",
		func(c wire.Card) value { return is(float64(c.Cores) / 100) }),
	of(cardLabels, "vgpu_card_memory_granted_bytes", "Memory of the card that is granted.",
		func(c wire.Card) value { return is(float64(c.GrantedBytes)) }),
	of(cardLabels, "vgpu_card_memory_bytes", "Memory that shares of the card are taken of.",
		func(c wire.Card) value { return is(float64(c.MemoryBytes)) }),
	of(cardLabels, "vgpu_card_memory_physical_bytes", "Memory that the card has of its own.",
		func(c wire.Card) value { return is(float64(c.PhysicalBytes)) }),
	of(cardLabels, "vgpu_card_memory_used_bytes", "Memory of the card that is in use by all processes and the driver.",
		func(c wire.Card) value { return maybe(c.UsedBytes) }),
	of(cardLabels, "vgpu_card_utilization_ratio", "Part of the last moments in which a kernel ran on the card.",
		func(c wire.Card) value { return maybe(c.Utilization) }),
	of(cardLabels, "vgpu_card_memory_utilization_ratio", "Part of the last moments in which memory of the card was read or written.",
		func(c wire.Card) value { return maybe(c.MemoryUtilization) }),
	of(cardLabels, "vgpu_card_jobs", "Jobs with a share of the card.",
		func(c wire.Card) value { return is(float64(c.Jobs)) }),
	of(cardLabels, "vgpu_card_healthy", "1 while the card can be granted.",
		func(c wire.Card) value { return is(one(c.Healthy)) }),
	of(cardLabels, "vgpu_card_slices_obeyed", "1 where the card obeys time slices, by a test; 0 where it does not, so that its jobs take turns.",
		func(c wire.Card) value { return value{one(c.Slices == string(probe.Obeyed)), c.Slices != ""} }),
}

// idleShare is not of a card alone.
var idleShare = desc("vgpu_card_share_idle_ratio", "Part of the card's share that is granted to jobs without work on it now.", cardLabels)

var jobLimited = desc("vgpu_job_limited_info", "Always 1; the label by is the reason why a job with work does not get more of the card: program, neighbors, limit or card.",
	append(append([]string{}, jobLabels...), "by"))

var cardInfo = desc("vgpu_card_info", "Always 1; the labels name the card.", []string{"gpu_uuid", "index", "name", "type", "mig"})

var jobSeries = []series[jobCard]{
	of(jobLabels, "vgpu_job_share_asked_ratio", "Part of the card that the user asked for.",
		func(c jobCard) value { return value{float64(c.AskedShare) / 100, c.AskedShare != 0} }),
	of(jobLabels, "vgpu_job_share_ratio", "Part of the card that the job was granted.",
		func(c jobCard) value { return is(float64(c.Share) / 100) }),
	of(jobLabels, "vgpu_job_cores_asked_ratio", "Part of the card's compute that the user asked for.",
		func(c jobCard) value { return value{float64(c.AskedCores) / 100, c.AskedCores != 0} }),
	of(jobLabels, "vgpu_job_cores_ratio", "Part of the card's compute that the job was granted.",
		func(c jobCard) value { return is(float64(c.Cores) / 100) }),
	of(jobLabels, "vgpu_job_utilization_ratio", "Part of the card's time that the job's processes had lately, as the driver samples it.",
		func(c jobCard) value { return maybe(c.Utilization) }),
	of(jobLabels, "vgpu_job_gpu_seconds_total", "GPU time that the job's processes had.",
		func(c jobCard) value { return maybe(c.GPUSeconds) }),
	of(jobLabels, "vgpu_job_memory_asked_bytes", "Memory of the card that the user asked for by size or percentage.",
		func(c jobCard) value { return maybe(c.AskedBytes) }),
	of(jobLabels, "vgpu_job_memory_limit_bytes", "Memory of the card that the job may hold.",
		func(c jobCard) value { return is(float64(c.LimitBytes)) }),
	of(jobLabels, "vgpu_job_memory_physical_bytes", "Of the job's memory limit, what the card has of its own.",
		func(c jobCard) value { return is(float64(c.PhysicalBytes)) }),
	of(jobLabels, "vgpu_job_memory_used_bytes", "Memory of the card that the job's processes hold.",
		func(c jobCard) value { return maybe(c.UsedBytes) }),
	of(jobLabels, "vgpu_job_memory_context_bytes", "Of the used memory, what CUDA contexts were charged.",
		func(c jobCard) value { return maybe(c.ContextBytes) }),
	of(jobLabels, "vgpu_job_memory_module_bytes", "Of the used memory, what code and its variables were charged.",
		func(c jobCard) value { return maybe(c.ModuleBytes) }),
	of(jobLabels, "vgpu_job_allocations_refused_total", "Allocations that were refused because of the job's memory limit.",
		func(c jobCard) value { return maybe(c.Refused) }),
	of(jobLabels, "vgpu_job_launches_throttled_total", "Kernel launches that waited for the job's share.",
		func(c jobCard) value { return maybe(c.LaunchesThrottled) }),
	of(jobLabels, "vgpu_job_throttled_seconds_total", "Time for which kernel launches waited for the job's share.",
		func(c jobCard) value { return maybe(c.ThrottledSeconds) }),
	of(jobLabels, "vgpu_job_had_ratio", "Part of the card's time that the job had lately, by the card's records; only beside other jobs with work.",
		func(c jobCard) value { return maybe(c.Had) }),
	of(jobLabels, "vgpu_job_deprived_seconds", "For how long neighbors have taken much of the card's time that the job is entitled to; 0: they do not.",
		func(c jobCard) value { return maybe(c.DeprivedSeconds) }),
	of(jobLabels, "vgpu_job_turns_total", "Turns on the card that the job was given; only where jobs take turns.",
		func(c jobCard) value { return maybe(c.Turns) }),
	of(jobLabels, "vgpu_job_idle_seconds_total", "Time for which the job held its share of the card and had no work on it.",
		func(c jobCard) value { return maybe(c.IdleSeconds) }),
	of(jobLabels, "vgpu_job_last_work_timestamp_seconds", "When the job last had work on the card, as Unix time.",
		func(c jobCard) value {
			if c.LastWork == nil {
				return value{}
			}
			return is(float64(c.LastWork.UnixMilli()) / 1000)
		}),
	of(jobLabels, "vgpu_job_granted_timestamp_seconds", "When the job was granted its share, as Unix time.",
		func(c jobCard) value {
			return value{float64(c.job.Created.UnixMilli()) / 1000, !c.job.Created.IsZero()}
		}),
	of(jobLabels, "vgpu_job_processes", "Processes of the job with a context on the card.",
		func(c jobCard) value { return maybe(c.Processes) }),
}

var processSeries = []series[wire.Process]{
	of(processLabels, "vgpu_process_utilization_ratio", "Part of the card's time that the process had lately, as the driver samples it.",
		func(p wire.Process) value { return maybe(p.Utilization) }),
	of(processLabels, "vgpu_process_memory_used_bytes", "Memory of the card that the process announced.",
		func(p wire.Process) value { return is(float64(p.UsedBytes)) }),
}

var fragmentation = desc("vgpu_node_fragmentation_ratio",
	"Part of the node's free share that a request for such a share of one card, and as much memory, cannot use.", []string{"share"})

// freeOf are the free parts of the cards that can be granted.
func freeOf(cards []wire.Card) (free []place.FreeCard) {
	for _, c := range cards {
		if c.Healthy && !c.MIG {
			share := gpu.FullCard - min(gpu.Share(c.Share), gpu.FullCard)
			memory := (c.MemoryBytes - min(c.GrantedBytes, c.MemoryBytes)) / max(c.MemoryBytes/100, 1)
			free = append(free, place.FreeCard{Share: share, Largest: min(share, gpu.Share(memory))})
		}
	}
	return free
}

// collector makes series from a snapshot, so that a job that ended has none.
type collector struct {
	snapshot Snapshot
	jobs     bool // those of jobs and processes, too
}

// Describe is part of [prometheus.Collector].
func (c collector) Describe(ch chan<- *prometheus.Desc) {
	for _, s := range cardSeries {
		ch <- s.desc
	}
	if c.jobs {
		for _, s := range jobSeries {
			ch <- s.desc
		}
		for _, s := range processSeries {
			ch <- s.desc
		}
		ch <- jobLimited
	}
	ch <- cardInfo
	ch <- idleShare
	ch <- fragmentation
}

// Collect is part of [prometheus.Collector].
func (c collector) Collect(ch chan<- prometheus.Metric) {
	cards, jobs := c.snapshot()
	for i := range jobs {
		for _, held := range jobs[i].Cards {
			if c.jobs {
				collectJob(ch, jobCard{&jobs[i], held})
			}
		}
	}
	for _, card := range cards {
		for _, s := range cardSeries {
			send(ch, s.desc, s.kind, s.of(card), card.UUID)
		}
		send(ch, cardInfo, prometheus.GaugeValue, is(1), card.UUID, strconv.Itoa(card.Index), valid(card.Name), valid(card.Type),
			strconv.FormatBool(card.MIG))
		send(ch, idleShare, prometheus.GaugeValue, idleOn(card.UUID, jobs), card.UUID)
	}
	free := freeOf(cards)
	for _, share := range place.TypicalShares {
		ratio, known := place.Fragmented(free, share)
		send(ch, fragmentation, prometheus.GaugeValue, value{ratio, known}, strconv.FormatFloat(float64(share)/100, 'g', -1, 64))
	}
}

func collectJob(ch chan<- prometheus.Metric, c jobCard) {
	labels := []string{
		strconv.FormatUint(uint64(c.job.JobID), 10), valid(c.job.User), valid(c.job.Account), valid(c.job.Partition), c.UUID,
	}
	for _, s := range jobSeries {
		send(ch, s.desc, s.kind, s.of(c), labels...)
	}
	if c.LimitedBy != "" {
		send(ch, jobLimited, prometheus.GaugeValue, is(1), append(labels[:len(labels):len(labels)], c.LimitedBy)...)
	}
	for _, p := range c.ByProcess {
		if p.PID == 0 {
			continue // no name that is its own on this node
		}
		for _, s := range processSeries {
			send(ch, s.desc, s.kind, s.of(p), append(labels[:len(labels):len(labels)], strconv.FormatUint(uint64(p.PID), 10))...)
		}
	}
}

// idleOn adds up the shares of a card's jobs without work. If the work of a job is unknown, the sum is
// unknown.
func idleOn(uuid string, jobs []wire.Job) value {
	sum := is(0)
	for _, job := range jobs {
		for _, held := range job.Cards {
			switch {
			case held.UUID != uuid:
			case held.Busy == nil:
				sum.known = false
			case !*held.Busy:
				sum.number += float64(held.Share) / 100
			}
		}
	}
	return sum
}

func send(ch chan<- prometheus.Metric, d *prometheus.Desc, kind prometheus.ValueType, v value, labels ...string) {
	if v.known {
		ch <- prometheus.MustNewConstMetric(d, kind, v.number, labels...)
	}
}

// valid keeps a name that is no UTF-8 from breaking the whole scrape.
func valid(s string) string { return strings.ToValidUTF8(s, "\uFFFD") }
