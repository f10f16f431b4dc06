// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"bytes"
	"crypto/rand"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// unitsPerCard is the number of shards that stand for one card.
const unitsPerCard = 100

// baseConf is the private Slurm itself; what slurm-vgpu needs follows it. No
// cgroups: containers and CI machines seldom have any to give away.
const baseConf = `ClusterName=private
SlurmctldHost=` + hostName + `(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5
StateSaveLocation=` + Dir + `/state/slurmctld
SlurmdSpoolDir=` + Dir + `/state/%n
SlurmctldPidFile=/run/slurmctld.pid
SlurmdPidFile=/run/slurmd-%n.pid
SlurmctldDebug=debug
SlurmdDebug=debug
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectTypeParameters=CR_CPU
SchedulerType=sched/backfill
SchedulerParameters=bf_interval=1,sched_interval=1,sched_min_interval=0,batch_sched_delay=0
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmctldTimeout=30
SlurmdTimeout=30
KillWait=2
SlurmdParameters=config_overrides
HealthCheckInterval=5
`

// configure writes every configuration file and lists the daemons.
func (c *Cluster) configure(gres gresConf) error {
	vgpu := fmt.Sprintf("version = 1\n\n[paths]\nstate_dir = %q\nlibrary = %q\n", stateDir, Dir+"/lib/libvgpu.so")
	not := append([]string{"TaskPlugin=", "HealthCheckInterval=", "NodeName="}, c.opts.Without...)
	if c.opts.GresdPlaces {
		vgpu += placedByGresd
		not = append(not, "CliFilterPlugins=") // it is for shards
	}
	shipped, err := c.shipped("slurm.conf", not...)
	if err != nil {
		return err
	}
	accounts := "AccountingStorageType=accounting_storage/none\n"
	if c.opts.Accounting {
		accounts, gres = accountingConf, gres.counted(c.cards)
	}
	plugstacks := "PlugStackConfig=/etc/slurm/plugstack.conf\n"
	if c.opts.Configless { // slurmctld hands out the file of that name beside slurm.conf alone
		plugstacks = "SlurmctldParameters=enable_configless\n"
	}
	slurm := baseConf + accounts + shipped + plugstacks + c.opts.Slurm +
		"\n" + c.nodeLines(gres.node) +
		"PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE State=UP\n"
	plugstack := ""
	if !c.opts.NoPlugin {
		if plugstack, err = c.shipped("plugstack.conf"); err != nil {
			return err
		}
	}
	key := make([]byte, 128)
	if _, err := rand.Read(key); err != nil {
		return err
	}
	for _, f := range []struct {
		path, text string
		mode       os.FileMode
	}{
		{slurmConf, slurm, 0o644},
		{"/etc/slurm/gres.conf", gres.conf + c.opts.GRES, 0o644},
		{"/etc/slurm/vgpu_cards.lua", gres.lua, 0o644},
		{"/etc/slurm/cgroup.conf", "CgroupPlugin=cgroup/v1\n", 0o644},
		{"/etc/slurm/plugstack.conf", plugstack, 0o644},
		{vgpuConf, vgpu + c.opts.Config, 0o644},
		{"/etc/munge/munge.key", string(key), 0o600},
	} {
		if err := os.WriteFile(f.path, []byte(f.text), f.mode); err != nil {
			return err
		}
	}
	for _, script := range []string{"job_submit.lua", "cli_filter.lua"} {
		if err := copyFile(filepath.Join(c.build, "etc/slurm", script), filepath.Join("/etc/slurm", script), 0o644); err != nil {
			return err
		}
	}
	for name, text := range c.opts.Files {
		if err := os.WriteFile(filepath.Join("/etc/slurm", name), []byte(text), 0o644); err != nil {
			return err
		}
	}
	if c.opts.Configless {
		if err := c.toServer(); err != nil {
			return err
		}
	}
	c.daemons()
	if c.opts.Accounting {
		if err := c.accounting(); err != nil {
			return err
		}
	}
	return c.moreNodes(vgpu + c.opts.Config)
}

// configlessDir is slurmctld's folder of slurm.conf where nobody else has one.
const configlessDir = "/etc/slurm-server"

// toServer leaves /etc/slurm empty: what slurmctld hands out is all there is.
func (c *Cluster) toServer() error {
	if err := os.RemoveAll(configlessDir); err != nil {
		return err
	}
	if err := os.Rename("/etc/slurm", configlessDir); err != nil {
		return err
	}
	return os.Mkdir("/etc/slurm", 0o755)
}

// shipped returns the settings of a file that admins are told to copy, but for
// those that this Slurm cannot have, with the programs where they are here.
func (c *Cluster) shipped(file string, not ...string) (string, error) {
	data, err := os.ReadFile(filepath.Join(c.build, "etc/slurm", file))
	if err != nil {
		return "", fmt.Errorf("%w (run make first)", err)
	}
	var out strings.Builder
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") || slices.ContainsFunc(not, func(name string) bool { return strings.HasPrefix(line, name) }) {
			continue
		}
		line = strings.ReplaceAll(line, "/usr/sbin/", Dir+"/bin/")
		out.WriteString(strings.Replace(line, " vgpu.so", " "+Dir+"/lib/vgpu.so library="+Dir+"/lib/libvgpu.so prolog="+Dir+"/bin/vgpu-prolog", 1))
	}
	return out.String(), nil
}

// listens returns a check that somebody listens there.
func listens(network, address string) func() bool {
	return func() bool {
		conn, err := net.DialTimeout(network, address, time.Second)
		if err != nil {
			return false
		}
		conn.Close()
		return true
	}
}

func (c *Cluster) daemons() {
	log := func(name string) string { return filepath.Join(c.logs, name+".log") }
	server, conf := "/etc/slurm", []string{"-f", slurmConf}
	if c.opts.Configless {
		server, conf = configlessDir, []string{"--conf-server", "127.0.0.1:6817"}
	}
	c.munged = &Daemon{
		name:  "munged",
		argv:  []string{"munged", "--foreground", "--force", "--num-threads=2", "--key-file=/etc/munge/munge.key", "--seed-file=/run/munge/seed"},
		log:   log("munged"),
		ready: listens("unix", "/run/munge/munge.socket.2"),
	}
	c.Slurmctld = &Daemon{
		name:  "slurmctld",
		argv:  []string{"slurmctld", "-D", "-f", filepath.Join(server, "slurm.conf")},
		log:   log("slurmctld"),
		ready: listens("tcp", "127.0.0.1:6817"),
	}
	c.Gresd = &Daemon{
		name:  "gresd",
		argv:  []string{Dir + "/bin/gresd"},
		env:   c.driverEnv(),
		log:   log("gresd"),
		ready: listens("unix", runDir+"/gresd.sock"),
	}
	c.Slurmd = &Daemon{
		name:  "slurmd",
		argv:  append([]string{"slurmd", "-D", "-N", c.nodeName(0)}, conf...),
		log:   log("slurmd"),
		ready: func() bool { return c.NodeState() == "IDLE" },
	}
}

func (c *Cluster) start() error {
	if err := c.munged.Start(); err != nil {
		return err
	}
	if c.opts.Accounting {
		if err := c.startAccounting(); err != nil {
			return err
		}
	}
	for _, d := range []*Daemon{c.Slurmctld, c.Gresd, c.Slurmd} {
		if err := d.Start(); err != nil {
			return err
		}
	}
	for _, n := range c.nodes {
		if err := n.start(); err != nil {
			return err
		}
	}
	return nil
}

// Scontrol runs scontrol as root.
func (c *Cluster) Scontrol(args ...string) (string, error) { return c.ScontrolOf("", args...) }

// ScontrolOf is Scontrol for the cluster of another slurm.conf.
func (c *Cluster) ScontrolOf(conf string, args ...string) (string, error) {
	cmd := exec.Command("scontrol", args...)
	if conf != "" {
		cmd.Env = append(os.Environ(), "SLURM_CONF="+conf)
	}
	out, err := cmd.CombinedOutput()
	text := string(bytes.TrimSpace(out))
	if err != nil {
		return text, fmt.Errorf("scontrol %s: %w: %s", strings.Join(args, " "), err, text)
	}
	return text, nil
}

// Release is the release of the Slurm that runs, such as 24, 11.
func (c *Cluster) Release() (year, month int, err error) {
	out, err := c.Scontrol("--version")
	if err != nil {
		return 0, 0, err
	}
	words := strings.Fields(out) // "slurm-wlm 24.11.5", "slurm 24.11.5"
	if _, err := fmt.Sscanf(words[len(words)-1], "%d.%d", &year, &month); err != nil {
		return 0, 0, fmt.Errorf("scontrol --version: %q: %w", out, err)
	}
	return year, month, nil
}

// Name is the first node's in Slurm.
func (c *Cluster) Name() string { return c.nodeName(0) }

// NodeState is the first node's state in Slurm's words, such as IDLE, MIXED or
// IDLE+DRAIN.
func (c *Cluster) NodeState() string { return c.nodeState(c.nodeName(0)) }

func (c *Cluster) nodeState(name string) string {
	out, err := c.Scontrol("show", "node", "-o", name)
	if err != nil {
		return ""
	}
	// The scheduler intends to start some job there later.
	return strings.ReplaceAll(fields(out)["State"], "+PLANNED", "")
}

// fields splits one line of scontrol's name=value words. A value that has
// spaces keeps its first word only.
func fields(line string) map[string]string {
	out := map[string]string{}
	for _, word := range strings.Fields(line) {
		if name, value, ok := strings.Cut(word, "="); ok {
			if _, seen := out[name]; !seen {
				out[name] = value
			}
		}
	}
	return out
}
