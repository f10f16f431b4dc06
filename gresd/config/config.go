// SPDX-License-Identifier: Apache-2.0

// Package config reads /etc/vgpu/vgpu.toml. [Config] is the only definition of
// the file's keys; etc/vgpu.toml shows them all with their defaults.
package config

import (
	"cmp"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/request"
)

// DefaultPath is where the configuration is looked for.
const DefaultPath = "/etc/vgpu/vgpu.toml"

// Config is the whole configuration. What is tagged reload:"restart" is read once,
// when gresd starts ([Reload]). The zero value is of no use; start from
// [Default] or [Load].
type Config struct {
	// Path is the file it was read from; "" when there was none and the
	// defaults are in force (the caller should say so in its log).
	Path string `toml:"-"`
	// Parts are the files of conf.d that were read.
	Parts []string `toml:"-"`

	Version    int        `toml:"version"`
	Paths      Paths      `toml:"paths" reload:"restart"`
	Defaults   Defaults   `toml:"defaults"`
	Limits     Limits     `toml:"limits"`
	Placement  Placement  `toml:"placement" reload:"restart"`
	Arbiter    Arbiter    `toml:"arbiter"`
	Metrics    Metrics    `toml:"metrics"`
	NVML       NVML       `toml:"nvml" reload:"restart"`
	CUDA       CUDA       `toml:"cuda" reload:"restart"`
	Slurm      Slurm      `toml:"slurm" reload:"restart"`
	Memory     Memory     `toml:"memory" reload:"restart"`
	MPS        MPS        `toml:"mps"`
	Health     Health     `toml:"health"`
	Audit      Audit      `toml:"audit"`
	Accounting Accounting `toml:"accounting" reload:"restart"`

	Log   Log   `toml:"log"`
	Debug Debug `toml:"debug" reload:"restart"`

	// Cards are settings of single cards by NVML UUID, and those of all other
	// cards under [AllCards].
	Cards map[string]Card `toml:"card"`
}

// Paths are absolute.
type Paths struct {
	RunDir   string `toml:"run_dir"`
	StateDir string `toml:"state_dir"`
	Library  string `toml:"library"` // libvgpu.so, as tasks see it
}

// Socket is gresd's Unix socket.
func (p Paths) Socket() string { return filepath.Join(p.RunDir, "gresd.sock") }

// Metrics is the Unix socket of all metrics.
func (p Paths) Metrics() string { return filepath.Join(p.RunDir, "metrics.sock") }

// Preload is the file bound over /etc/ld.so.preload in tasks.
func (p Paths) Preload() string { return filepath.Join(p.RunDir, "preload") }

// Ask marks a node where gresd chooses the cards. Slurm does not pass shares to tasks there. So the
// SPANK plugin asks gresd about each job that has neither a folder nor the state no-share.
func (p Paths) Ask() string { return filepath.Join(p.RunDir, "ask-gresd") }

// Loses is there unless this Slurm is known to start no job without the shards that it asks for:
// tasks and hooks then do not take a job without shards for one without a share.
func (p Paths) Loses() string { return filepath.Join(p.RunDir, "loses-shards") }

// Cards is there where some cards are MIG instances: "INDEX UUID", a line each. Jobs of whole
// cards (gres/gpu) then learn theirs by it, for Slurm's numbers are not CUDA's.
func (p Paths) Cards() string { return filepath.Join(p.RunDir, "cards") }

// JobStates is the folder of the states of jobs, which the Prolog writes (spank/prolog/state.go).
func (p Paths) JobStates() string { return filepath.Join(p.RunDir, "state") }

// Waiting is the line of jobs that found no card.
func (p Paths) Waiting() string { return filepath.Join(p.StateDir, "waiting.json") }

// Past holds what jobs that have ended did.
func (p Paths) Past() string { return filepath.Join(p.StateDir, "past") }

// Jobs is the folder of all job folders.
func (p Paths) Jobs() string { return filepath.Join(p.RunDir, "jobs") }

// MPS is the folder of all MPS daemons.
func (p Paths) MPS() string { return filepath.Join(p.RunDir, "mps") }

// Job is the folder of one job.
func (p Paths) Job(id uint32) string {
	return filepath.Join(p.Jobs(), strconv.FormatUint(uint64(id), 10))
}

// Ledger is the durable record of grants.
func (p Paths) Ledger() string { return filepath.Join(p.StateDir, "ledger.json") }

// Survivors are the jobs that ran when the ledger was found lost, until slurmctld has said what they
// hold.
func (p Paths) Survivors() string { return filepath.Join(p.StateDir, "survivors.json") }

// Defaults for what users leave open.
type Defaults struct {
	Mode     gpu.Mode     `toml:"mode"` // without a ceiling: that is a user's wish
	Priority gpu.Priority `toml:"priority"`
	Policy   gpu.Policy   `toml:"policy"`
	// What follows is never more than the job's share covers: slurmctld has
	// counted no more.
	Mem          string    `toml:"mem"`           // per card, "8G" or "25%"; "": as the share
	CoresPercent gpu.Share `toml:"cores_percent"` // per card; 0: as the share
	// Cards is over how many a share is split, where gresd chooses the card and the
	// user asks for a share alone that they divide; 0: as few as can be.
	Cards uint32 `toml:"cards"`
}

// Limits of what users may ask for.
type Limits struct {
	AllowOff        bool       `toml:"allow_off"` // mode off
	Modes           []gpu.Mode `toml:"modes"`     // of hard and soft
	MinSharePercent gpu.Share  `toml:"min_share_percent"`
	MaxSharePercent gpu.Share  `toml:"max_share_percent"`
	MaxMem          string     `toml:"max_mem"` // per card, "64G" or "50%"; "": no limit
	// MaxCoresPercent is of one card, MaxCards of one job on this node.
	MaxCoresPercent gpu.Share      `toml:"max_cores_percent"`
	MaxCards        uint32         `toml:"max_cards"`
	Priorities      []gpu.Priority `toml:"priorities"`
	Policies        []gpu.Policy   `toml:"policies"`
}

// Who chooses the card.
const (
	PlacementSlurm = "slurm" // slurmctld, through gres/shard; gresd checks it
	PlacementGresd = "gresd" // gresd, with a plain count of gres/vgpu
)

// Placement says who chooses cards.
type Placement struct {
	Mode string `toml:"mode"`
	// WaitS is how long a job waits on the node for room, before it goes back into
	// the queue. Only with PlacementGresd, as is Patience.
	WaitS uint32 `toml:"wait_s"`
	// Patience is how often a job must find no room before cards are kept free for
	// it; 0: never.
	Patience uint32 `toml:"patience"`
}

// Wait is how long a job waits on the node for room.
func (p Placement) Wait() time.Duration { return time.Duration(p.WaitS) * time.Second }

// What divides a contended card.
const (
	EngineAuto   = "auto"   // slices, and turns where they are refused or ignored
	EngineSlices = "slices" // hardware time slices
	EngineTurns  = "turns"  // one job at a time, by the clock
)

// Arbiter divides the time of cards between jobs.
type Arbiter struct {
	Engine      string `toml:"engine"`        // EngineAuto, …
	PeriodUS    uint32 `toml:"period_us"`     // one turn of all jobs of a card
	MaxPeriodUS uint32 `toml:"max_period_us"` // a turn is stretched up to this
	MinSliceUS  uint32 `toml:"min_slice_us"`  // so that no slice is below this
	TickMS      uint32 `toml:"tick_ms"`       // between two looks at the jobs
	SliceTest   bool   `toml:"slice_test"`    // whether cards obey slices is tested
}

// Tick is the time between two looks at the jobs.
func (a Arbiter) Tick() time.Duration { return time.Duration(a.TickMS) * time.Millisecond }

// Metrics for Prometheus.
type Metrics struct {
	Listen    string `toml:"listen" reload:"restart"` // loopback address and port; "": none
	Jobs      bool   `toml:"jobs" reload:"restart"`   // series of jobs there, which every user of the node can read
	Group     string `toml:"group" reload:"restart"`  // that may read Paths.Metrics; "": root alone
	Processes bool   `toml:"processes"`               // series of single processes beside those of jobs
}

// Debug is for those who look into gresd itself.
type Debug struct {
	Pprof string `toml:"pprof"` // loopback address and port, or path of a Unix socket; "": none
}

// NVML is how the cards are read.
type NVML struct {
	Library string `toml:"library"` // "": libnvidia-ml.so.1
}

// CUDA is how gresd measures what a context costs.
type CUDA struct {
	Library string `toml:"library"` // "": beside NVML's where that names a folder, else libcuda.so.1
}

// Slurm is how slurmctld is asked.
type Slurm struct {
	Scontrol string `toml:"scontrol"`  // squeue is beside it
	Conf     string `toml:"conf"`      // "": what the Prolog names, else Slurm's default
	TimeoutS uint32 `toml:"timeout_s"` // for each command
}

// Timeout for each command.
func (s Slurm) Timeout() time.Duration { return time.Duration(s.TimeoutS) * time.Second }

// Memory accounting.
type Memory struct {
	ContextMiB uint32 `toml:"context_mib"` // what the card counts for a process with one context; 0: learned
	// UncountedMiB is what of it NVML does not count for the process. It is used
	// only with ContextMiB.
	UncountedMiB uint32 `toml:"uncounted_mib"`
	DriverLimits bool   `toml:"driver_limits"` // the driver holds limits as well, where it can
}

// MPS is NVIDIA's Multi-Process Service as the engine that divides a card.
type MPS struct {
	Enabled          bool   `toml:"enabled"`                  // users may ask for it
	Default          bool   `toml:"default"`                  // jobs of one card get it unless they say otherwise
	AllowAcrossUsers bool   `toml:"allow_across_users"`       // servers of several users on one card
	Concurrent       bool   `toml:"concurrent"`               // users may ask for one server of all users on a card
	Auto             bool   `toml:"auto"`                     // jobs get gpu.Auto unless they say otherwise
	Trust            string `toml:"trust"`                    // TrustAccount, …: whose jobs gpu.Auto puts side by side
	Control          string `toml:"control" reload:"restart"` // nvidia-cuda-mps-control
}

// Whose jobs trust each other.
const (
	TrustAccount = "account" // those of one account of Slurm
	TrustUser    = "user"    // those of one user
	TrustAll     = "all"
)

// What is done with a sick card.
const (
	HealthCordon = "cordon" // no new jobs on it
	HealthDrain  = "drain"  // and none on its node
	HealthNone   = "none"   // it is reported
)

// Health of cards.
type Health struct {
	Action      string   `toml:"action"`       // HealthCordon, …
	IgnoreXIDs  []uint32 `toml:"ignore_xids"`  // of no concern for the card
	ProbeS      uint32   `toml:"probe_s"`      // between two looks at a card
	CleanProbes uint32   `toml:"clean_probes"` // that make a card well; 0: only an administrator does
}

// What is done with a process that breaks a rule.
const (
	AuditReport = "report" // log, metric, message
	AuditKill   = "kill"   // and SIGKILL
	AuditIgnore = "ignore"
)

// Audit of what runs on granted cards.
type Audit struct {
	Unregistered string `toml:"unregistered"`  // of a job, without the library: AuditReport, …
	Escaped      string `toml:"escaped"`       // the same, with more than its job's limit leaves: AuditReport, …
	Exceeded     string `toml:"exceeded"`      // a job above its memory limit: AuditReport, …
	Strangers    string `toml:"strangers"`     // of no job: AuditReport or AuditIgnore
	GraceS       uint32 `toml:"grace_s"`       // for which it must last
	ToleranceMiB uint32 `toml:"tolerance_mib"` // above a memory limit
}

// Where what a job has used is written to.
const (
	UsageNone    = "none"
	UsageSystem  = "system_comment"
	UsageAdmin   = "admin_comment"
	UsageComment = "comment" // the user's own
)

// Accounting is what gresd adds to Slurm's (slurmdbd).
type Accounting struct {
	Usage string `toml:"usage"` // UsageNone, …
}

// AllCards is the name in Cards for cards without a table of their own. What
// such a table leaves out is taken from here.
const AllCards = "default"

// Card is the setting of one card.
type Card struct {
	// MemScaling is how many times its memory is shared out.
	MemScaling float64 `toml:"mem_scaling"`
	// Type is what Slurm calls it, as in Type= of gres.conf; "": made of its name.
	Type string `toml:"type"`
}

// Apply returns a card as its settings make it.
func (c Card) Apply(card gpu.Card) gpu.Card {
	card.Type = cmp.Or(c.Type, card.Type)
	return card.Scaled(c.MemScaling)
}

// Card returns the settings of a card.
func (c Config) Card(uuid gpu.UUID) Card {
	if card, own := c.Cards[string(uuid)]; own {
		return card
	}
	return c.Cards[AllCards]
}

// Log is what gresd writes.
type Log struct {
	Level string `toml:"level"` // debug, info, warn, error
}

// Default returns the shipped configuration.
func Default() Config {
	return Config{
		Version:   1,
		Paths:     Paths{RunDir: "/run/vgpu", StateDir: "/var/lib/vgpu", Library: "/usr/lib/vgpu/libvgpu.so"},
		Defaults:  Defaults{Mode: gpu.Hard, Priority: gpu.Normal, Policy: gpu.Binpack},
		Limits:    Limits{Modes: []gpu.Mode{gpu.Hard, gpu.Soft}, MinSharePercent: 1, MaxSharePercent: 100, MaxCoresPercent: 100, MaxCards: request.MaxCards, Priorities: gpu.Priorities(), Policies: gpu.Policies()},
		Placement: Placement{Mode: PlacementSlurm, WaitS: 120, Patience: 3},
		Arbiter:   Arbiter{Engine: EngineAuto, PeriodUS: 20000, MaxPeriodUS: 50000, MinSliceUS: 500, TickMS: 50, SliceTest: true},
		Metrics:   Metrics{Listen: "127.0.0.1:9464"},
		Slurm:     Slurm{Scontrol: "scontrol", TimeoutS: 10},
		MPS:       MPS{Trust: TrustAccount, Control: "nvidia-cuda-mps-control"},
		Health:    Health{Action: HealthCordon, IgnoreXIDs: gpu.HarmlessXIDs(), ProbeS: 5, CleanProbes: 60},
		Audit:     Audit{Unregistered: AuditReport, Escaped: AuditKill, Exceeded: AuditReport, Strangers: AuditReport, GraceS: 5, ToleranceMiB: 64},
		Log:       Log{Level: "info"},

		Accounting: Accounting{Usage: UsageNone},

		Cards: map[string]Card{AllCards: {MemScaling: 1}},
	}
}

// Probe is the time between two looks at a card.
func (h Health) Probe() time.Duration { return time.Duration(h.ProbeS) * time.Second }

// Ignored are the XIDs to ignore.
func (h Health) Ignored() []uint64 {
	var all []uint64
	for _, xid := range h.IgnoreXIDs {
		all = append(all, uint64(xid))
	}
	return all
}

// Grace is how long a rule must be broken.
func (a Audit) Grace() time.Duration { return time.Duration(a.GraceS) * time.Second }

// StateOfCards is the durable record of sick cards.
func (p Paths) StateOfCards() string { return filepath.Join(p.StateDir, "cards.json") }

// RequestDefaults returns the defaults for requests.
func (c Config) RequestDefaults() request.Defaults {
	memory, _ := parseMemory(c.Defaults.Mem) // Validate has read it
	return request.Defaults{
		Mode: c.Defaults.Mode, Priority: c.Defaults.Priority, Policy: c.Defaults.Policy,
		Memory: memory, Cores: c.Defaults.CoresPercent, Cards: int(c.Defaults.Cards),
	}
}

// RequestLimits returns the limits for requests. The configuration must have
// been validated.
func (c Config) RequestLimits() request.Limits {
	// Validate has read max_mem already; an empty one is no limit.
	memory, _ := parseMemory(c.Limits.MaxMem)
	modes := slices.Clone(c.Limits.Modes)
	if c.Limits.AllowOff {
		modes = append(modes, gpu.Off)
	}
	return request.Limits{
		MinShare:  c.Limits.MinSharePercent,
		MaxShare:  c.Limits.MaxSharePercent,
		MaxMemory: memory,
		Modes:     modes,

		MaxCores: c.Limits.MaxCoresPercent, MaxCards: int(c.Limits.MaxCards),
		Priorities: c.Limits.Priorities, Policies: c.Limits.Policies,
	}
}

// parseMemory reads an amount of memory; "" is none.
func parseMemory(text string) (request.Memory, error) {
	if text == "" {
		return request.Memory{}, nil
	}
	return request.ParseMemory(text)
}
