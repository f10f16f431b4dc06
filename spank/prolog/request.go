// SPDX-License-Identifier: Apache-2.0

package prolog

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/BurntSushi/toml"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/atomicfile"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/gpu"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
	"github.com/slurm-vgpu/slurm-vgpu/gresd/wire"
)

// maxText is the longest text that is passed on. Names are shorter; a longer
// option value is a mistake of its user, and stays one when it is cut.
const maxText = 256

// request reads what Slurm says of the job.
func (h *Hook) request(op wire.Op) (wire.Request, error) {
	job, err := strconv.ParseUint(h.Getenv("SLURM_JOB_ID"), 10, 32)
	if err != nil || job == 0 {
		return wire.Request{}, fmt.Errorf("SLURM_JOB_ID: %q: want a job id", h.Getenv("SLURM_JOB_ID"))
	}
	return wire.Request{
		Op:        op,
		JobID:     uint32(job),
		UID:       h.number("SLURM_JOB_UID"),
		GID:       h.number("SLURM_JOB_GID"),
		User:      h.text("SLURM_JOB_USER"),
		Account:   h.text("SLURM_JOB_ACCOUNT"),
		Partition: h.text("SLURM_JOB_PARTITION"),
		GPUs:      cardIndexes(h.Getenv("SLURM_JOB_GPUS")),
		Conf:      h.conf(),
		Node:      h.text("SLURMD_NODENAME"),
		Cluster:   h.cluster(),
		Restart:   h.number("SLURM_JOB_RESTART_COUNT"),
		Options:   h.options(),
	}, nil
}

func (h *Hook) options() wire.Options {
	return wire.Options{
		Mem:      h.text("SPANK_VGPU_MEM"),
		Cores:    h.text("SPANK_VGPU_CORES"),
		Cards:    h.text("SPANK_VGPU_CARDS"),
		Mode:     h.text("SPANK_VGPU_MODE"),
		Priority: h.text("SPANK_VGPU_PRIORITY"),
		Policy:   h.text("SPANK_VGPU_POLICY"),
		Engine:   h.text("SPANK_VGPU_ENGINE"),
	}
}

func (h *Hook) number(name string) uint32 {
	n, err := strconv.ParseUint(h.Getenv(name), 10, 32)
	if err != nil {
		return 0
	}
	return uint32(n)
}

// text returns a variable so that gresd accepts the line.
func (h *Hook) text(name string) string { return clean(h.Getenv(name)) }

// clean makes words fit for a request: SPANK variables hold whatever a user made of them, and must
// not make one that cannot be sent, because that would look like a broken node.
func clean(words string) string {
	words = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return '?'
		}
		return r
	}, strings.ToValidUTF8(words, "?"))
	if len(words) > maxText {
		words = strings.ToValidUTF8(words[:maxText], "")
	}
	return words
}

func (h *Hook) conf() string {
	if path := h.text("SLURM_CONF"); strings.HasPrefix(path, "/") {
		return path
	}
	return ""
}

// cardIndexes reads "0,2" and "0-2". What is no index is left out: gresd asks
// slurmctld for the truth.
func cardIndexes(list string) []int {
	var all []int
	for word := range strings.SplitSeq(list, ",") {
		some, _ := gpu.Ranges(word, 256)
		for _, card := range some {
			if len(all) < wire.MaxCards && !slices.Contains(all, card) {
				all = append(all, card)
			}
		}
	}
	return all
}

// The state of a job is one word in run_dir/state/JOB. The Prolog writes it, and the tasks of the job
// read it: TaskProlog and the SPANK plugin (spank/plugin/jobstate.c).
const (
	// noShare: the job has no share, also if its environment names one: sbatch inside a job with a
	// share passes the environment on.
	noShare = "no-share"
	// lostShards: slurmctld has started the job without the shards that it asks for, and gresd has not
	// decided yet. The tasks must not run.
	lostShards = "lost"
	// undecided: neither gresd nor slurmctld answered. The SPANK plugin hides the cards from the tasks.
	undecided = "undecided"
)

func (h *Hook) statePath(job string) string { return filepath.Join(h.Config.RunDir, "state", job) }

// state returns the state of a job, or "".
func (h *Hook) state(job string) string {
	text, _ := os.ReadFile(h.statePath(job))
	return strings.TrimSpace(string(text))
}

func (h *Hook) setState(job uint32, state string) error {
	path := h.statePath(strconv.FormatUint(uint64(job), 10))
	err := os.MkdirAll(filepath.Dir(path), 0o755)
	if err == nil {
		err = atomicfile.Replace(path, []byte(state+"\n"), 0o644)
	}
	if err != nil {
		return fmt.Errorf("write the job's state: %w", err)
	}
	return nil
}

// clearState removes the state of an earlier run of the job.
func (h *Hook) clearState(job uint32) error {
	path := h.statePath(strconv.FormatUint(uint64(job), 10))
	if err := os.Remove(path); err != nil {
		if _, absent := os.Lstat(path); absent == nil { // a read-only file system also fails for an absent file
			return fmt.Errorf("remove the job's state: %w", err)
		}
	}
	return nil
}

// placedByGresd reports whether gresd chooses the cards of this node.
func (h *Hook) placedByGresd() bool { return h.isInRunDir("ask-gresd") }

// mayDropShards reports whether slurmctld can start a job without the shards that it asks for.
func (h *Hook) mayDropShards() bool { return h.isInRunDir("loses-shards") }

func (h *Hook) isInRunDir(name string) bool {
	_, err := os.Stat(filepath.Join(h.Config.RunDir, name))
	return err == nil
}

// Config is the little that hooks need of vgpu.toml. gresd/config is the
// authority for the file and checks it; here a file of a newer gresd is read
// as well.
type Config struct {
	RunDir  string
	Library string
	// Scontrol and SlurmConf are gresd's own values; "": slurmd's.
	Scontrol, SlurmConf string
	Found               bool // there is a file with any content
}

// DefaultConfigPath is used where $VGPU_CONFIG is not set.
const DefaultConfigPath = "/etc/vgpu/vgpu.toml"

// ReadConfig reads path. Without the file, and with an error, it returns the defaults: a hook must
// never fail for them.
func ReadConfig(path string) (Config, error) {
	config := Config{RunDir: "/run/vgpu", Library: "/usr/lib/vgpu/libvgpu.so"}
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return config, nil
	}
	config.Found = true
	if err != nil {
		return config, fmt.Errorf("read configuration: %w", err)
	}
	var file struct {
		Paths struct {
			RunDir  string `toml:"run_dir"`
			Library string `toml:"library"`
		} `toml:"paths"`
		Slurm struct {
			Scontrol string `toml:"scontrol"`
			Conf     string `toml:"conf"`
		} `toml:"slurm"`
	}
	if _, err := toml.Decode(string(text), &file); err != nil {
		return config, fmt.Errorf("read configuration %s: %w", path, err)
	}
	config.RunDir = cmp.Or(file.Paths.RunDir, config.RunDir)
	config.Library = cmp.Or(file.Paths.Library, config.Library)
	config.Scontrol, config.SlurmConf = file.Slurm.Scontrol, file.Slurm.Conf
	return config, nil
}

const (
	// commandWait limits each of Slurm's commands. A Prolog runs up to three of them.
	commandWait = 5 * time.Second
	// exitMargin is the time between the Prolog's own deadline and Slurm's timeout.
	exitMargin = time.Second
)

func (h *Hook) client() slurmClient {
	if h.slurm != nil {
		return h.slurm
	}
	scontrol := h.Config.Scontrol
	if _, err := slurm.Find(scontrol, ownSlurmd()...); err != nil {
		scontrol = "" // any scontrol can requeue a job
	}
	return slurm.New(slurm.Options{Scontrol: scontrol, Slurmds: ownSlurmd, Conf: h.slurmConf(), Timeout: commandWait})
}

// ownSlurmd returns the slurmd that runs this hook. Slurm gives a hook no PATH, but its commands are
// next to slurmd.
func ownSlurmd() []string {
	slurmd, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", os.Getppid()))
	if err != nil {
		return nil
	}
	return []string{slurmd}
}

// answerDeadline returns how long a Prolog with this timeout may wait for an answer, so that it ends
// before Slurm ends it and drains the node. The rest of the timeout is for Slurm's commands.
func answerDeadline(timeout time.Duration) time.Duration {
	return max(time.Second, timeout-3*commandWait-exitMargin)
}

// timeout returns Slurm's limit for the Prolog: PrologTimeout of the slurm.conf that slurmd names,
// else PrologEpilogTimeout. 0: neither is set.
func (h *Hook) timeout() time.Duration {
	conf, _ := slurm.ReadConf(h.slurmConf()) // an unreadable file sets nothing
	seconds, err := strconv.ParseUint(cmp.Or(conf["prologtimeout"], conf["prologepilogtimeout"]), 10, 16)
	if err != nil || seconds >= slurm.NoTimeout {
		return 0
	}
	return time.Duration(seconds) * time.Second
}

// cluster returns the ClusterName of slurmd's slurm.conf in lower case, as Slurm does; "": unknown.
func (h *Hook) cluster() string {
	conf, _ := slurm.ReadConf(cmp.Or(h.conf(), h.Config.SlurmConf))
	return strings.ToLower(clean(conf["clustername"]))
}

// slurmConf returns the slurm.conf in force: that of vgpu.toml, else that of slurmd.
func (h *Hook) slurmConf() string { return cmp.Or(h.Config.SlurmConf, h.conf()) }
