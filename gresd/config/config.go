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
	// Warnings name the keys of version 0.10 that the files still have, with file and line.
	Warnings []string `toml:"-" json:"-"`

	Version    int        `toml:"version"`
	Paths      Paths      `toml:"paths" reload:"restart"`
	Defaults   Defaults   `toml:"defaults"`
	Limits     Limits     `toml:"limits"`
	Placement  Placement  `toml:"placement" reload:"restart"`
	Arbiter    Arbiter    `toml:"arbiter"`
	Metrics    Metrics    `toml:"metrics"`
	NVML       NVML       `toml:"nvml" reload:"restart"`
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
	// Mode has no ceiling: a ceiling is a user's wish. Policy exclusive takes whole cards, and
	// slurmctld must know that from the job.
	Mode     gpu.Mode     `toml:"mode" of:"hard soft off"`
	Priority gpu.Priority `toml:"priority" of:"high normal low"`
	Policy   gpu.Policy   `toml:"policy" of:"binpack spread topology"`
	// Mem and CoresPercent are never more than the job's share covers: slurmctld has counted no more.
	Mem          string    `toml:"mem"`                         // per card, "8G" or "25%"; "": as the share
	CoresPercent gpu.Share `toml:"cores_percent" range:"0 100"` // per card; 0: as the share
	// Cards is the number of cards that a share is split over, if gresd chooses the cards and the
	// user asks for a share alone that Cards divides; 0: as few as possible.
	Cards uint32 `toml:"cards" range:"0 16"`
}

// Limits of what users may ask for.
type Limits struct {
	Modes           []gpu.Mode     `toml:"modes" of:"hard soft off"`
	MinSharePercent gpu.Share      `toml:"min_share_percent" range:"1 100"`
	MaxSharePercent gpu.Share      `toml:"max_share_percent" range:"1 100"`
	MaxMem          string         `toml:"max_mem"`                         // per card, "64G" or "50%"; "": no limit
	MaxCoresPercent gpu.Share      `toml:"max_cores_percent" range:"1 100"` // of one card
	MaxCards        uint32         `toml:"max_cards" range:"1 16"`          // of one job on this node
	Priorities      []gpu.Priority `toml:"priorities" of:"high normal low"`
	Policies        []gpu.Policy   `toml:"policies" of:"binpack spread topology exclusive"`
}

// Who chooses the card.
const (
	PlacementSlurm = "slurm" // slurmctld, through gres/shard; gresd checks it
	PlacementGresd = "gresd" // gresd, with a plain count of gres/vgpu
)

// Placement says who chooses cards.
type Placement struct {
	By string `toml:"by" of:"slurm gresd"`
	// WaitS is how long a job waits on the node for room before it goes back into the queue.
	// Patience is how often a job must find no room before cards are reserved for it; 0: never.
	// Both apply to PlacementGresd.
	WaitS    uint32 `toml:"wait_s" range:"0 120"`
	Patience uint32 `toml:"patience" range:"0 1000"`
}

// Wait is how long a job waits on the node for room.
func (p Placement) Wait() time.Duration { return time.Duration(p.WaitS) * time.Second }

// Arbiter divides the time of cards between jobs.
type Arbiter struct {
	SliceTest bool `toml:"slice_test"` // gresd tests whether cards obey time slices
}

// Metrics for Prometheus.
type Metrics struct {
	Listen    string `toml:"listen" reload:"restart"` // loopback address and port; "": none
	Jobs      bool   `toml:"jobs" reload:"restart"`   // series of jobs there, which every user of the node can read
	Group     string `toml:"group" reload:"restart"`  // that may read Paths.Metrics; "": root alone
	Processes bool   `toml:"processes"`               // series of single processes beside those of jobs
}

// Debug is for developers of gresd.
type Debug struct {
	Pprof string `toml:"pprof"` // loopback address and port, or path of a Unix socket; "": none
}

// NVML is how the cards are read. gresd loads libcuda.so.1 from the same folder.
type NVML struct {
	Library string `toml:"library"` // "": libnvidia-ml.so.1
}

// Slurm is how gresd reaches slurmctld.
type Slurm struct {
	Scontrol string `toml:"scontrol"` // squeue is beside it
	Conf     string `toml:"conf"`     // "": the file that the Prolog names, else Slurm's default
}

// Memory accounting.
type Memory struct {
	DriverLimits bool `toml:"driver_limits"` // the driver enforces memory limits too, if it can
}

// MPS is NVIDIA's Multi-Process Service. It serves the engines mps and concurrent.
type MPS struct {
	Engines          []gpu.Engine `toml:"engines" of:"mps concurrent"` // that users may ask for
	DefaultEngine    gpu.Engine   `toml:"default_engine" of:"time mps auto"`
	AllowAcrossUsers bool         `toml:"allow_across_users"`          // servers of several users on one card
	Trust            string       `toml:"trust" of:"account user all"` // TrustAccount, …: the jobs that gpu.Auto puts side by side
}

// Offers reports whether users may ask for an engine.
func (m MPS) Offers(engine gpu.Engine) bool { return slices.Contains(m.Engines, engine) }

// Jobs that trust each other.
const (
	TrustAccount = "account" // those of one account of Slurm
	TrustUser    = "user"    // those of one user
	TrustAll     = "all"
)

// Actions of gresd on a sick card.
const (
	HealthCordon = "cordon" // no new jobs on it
	HealthDrain  = "drain"  // and none on its node
	HealthNone   = "none"   // gresd reports it
)

// Health of cards.
type Health struct {
	Action      string   `toml:"action" of:"cordon drain none"`
	IgnoreXIDs  []uint32 `toml:"ignore_xids"`                    // that leave a card in use
	CleanProbes uint32   `toml:"clean_probes" range:"0 1000000"` // that make a card well; 0: only an administrator does
}

// Actions of gresd on a process that breaks a rule.
const (
	AuditReport = "report" // log, metric, message
	AuditKill   = "kill"   // and SIGKILL
	AuditIgnore = "ignore"
)

// Audit of what runs on granted cards.
type Audit struct {
	Unregistered string `toml:"unregistered" of:"report kill ignore"` // of a job, without the library
	Escaped      string `toml:"escaped" of:"report kill ignore"`      // the same, with more than its job's limit leaves
	Exceeded     string `toml:"exceeded" of:"report kill ignore"`     // a job above its memory limit
	Strangers    string `toml:"strangers" of:"report ignore"`         // of no job; gresd kills processes of jobs only
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
	Usage string `toml:"usage" of:"none system_comment admin_comment comment"`
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
	Level string `toml:"level" of:"debug info warn error"`
}

// Default returns the shipped configuration.
func Default() Config {
	return Config{
		Version:   1,
		Paths:     Paths{RunDir: "/run/vgpu", StateDir: "/var/lib/vgpu", Library: "/usr/lib/vgpu/libvgpu.so"},
		Defaults:  Defaults{Mode: gpu.Hard, Priority: gpu.Normal, Policy: gpu.Binpack},
		Limits:    Limits{Modes: []gpu.Mode{gpu.Hard, gpu.Soft}, MinSharePercent: 1, MaxSharePercent: 100, MaxCoresPercent: 100, MaxCards: request.MaxCards, Priorities: gpu.Priorities(), Policies: gpu.Policies()},
		Placement: Placement{By: PlacementSlurm, WaitS: 120, Patience: 3},
		Arbiter:   Arbiter{SliceTest: true},
		Metrics:   Metrics{Listen: "127.0.0.1:9464"},
		Slurm:     Slurm{Scontrol: "scontrol"},
		MPS:       MPS{Engines: []gpu.Engine{}, DefaultEngine: gpu.Time, Trust: TrustAccount},
		Health:    Health{Action: HealthCordon, IgnoreXIDs: gpu.HarmlessXIDs(), CleanProbes: 60},
		Audit:     Audit{Unregistered: AuditReport, Escaped: AuditKill, Exceeded: AuditReport, Strangers: AuditReport},
		Log:       Log{Level: "info"},

		Accounting: Accounting{Usage: UsageNone},

		Cards: map[string]Card{AllCards: {MemScaling: 1}},
	}
}

// Ignored are the XIDs to ignore.
func (h Health) Ignored() []uint64 {
	var all []uint64
	for _, xid := range h.IgnoreXIDs {
		all = append(all, uint64(xid))
	}
	return all
}

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
	return request.Limits{
		MinShare:  c.Limits.MinSharePercent,
		MaxShare:  c.Limits.MaxSharePercent,
		MaxMemory: memory,
		Modes:     c.Limits.Modes,

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
