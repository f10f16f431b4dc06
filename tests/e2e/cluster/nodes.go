// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// Node is one more node of the cluster on this machine. It has a host name and
// a mount namespace of its own, so its gresd, its cards and the files of its
// jobs are at the usual paths and are not those of the first node. Homes, Slurm's
// configuration and the network are shared, as between real nodes.
type Node struct {
	Name string

	holder *Daemon // keeps the namespaces
	gresd  *Daemon
	slurmd *Daemon
}

// firstPort is slurmd's on the first node; the others count up from it.
const firstPort = 6818

func (c *Cluster) nodeName(i int) string {
	switch {
	case i == 0 && c.opts.NodeName != "":
		return c.opts.NodeName
	case i == 0:
		return hostName
	}
	return hostOf(i)
}

// hostOf is the host name of a node.
func hostOf(i int) string {
	if i == 0 {
		return hostName
	}
	return fmt.Sprintf("%s%d", hostName, i+1)
}

// nodeLines are the lines of slurm.conf for all nodes.
func (c *Cluster) nodeLines(gres string) string {
	var b strings.Builder
	for i := range max(1, c.opts.Nodes) {
		fmt.Fprintf(&b, "NodeName=%[1]s NodeHostname=%[4]s NodeAddr=127.0.0.1 Port=%[2]d CPUs=16 RealMemory=8000 State=UNKNOWN Gres=%[3]s\n",
			c.nodeName(i), firstPort+i, gres, hostOf(i))
	}
	return b.String()
}

// moreNodes lists the daemons of the nodes after the first. vgpu is the text of
// the first node's vgpu.toml.
func (c *Cluster) moreNodes(vgpu string) error {
	for i := 1; i < c.opts.Nodes; i++ {
		n := &Node{Name: c.nodeName(i)}
		private := filepath.Join(Dir, n.Name)
		for _, dir := range []string{private + "/simgpu", private + "/vgpu", filepath.Join(Dir, "state", n.Name)} {
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return err
			}
		}
		if err := command("cp", "-a", simDir+"/.", private+"/simgpu"); err != nil {
			return err
		}
		if err := os.MkdirAll(stateDir, 0o755); err != nil {
			return err
		}
		vgpu := fmt.Sprintf("%s\n[metrics]\nlisten = \"127.0.0.1:%d\"\n", vgpu, 9464+i)
		if err := os.WriteFile(private+"/vgpu.toml", []byte(vgpu), 0o644); err != nil {
			return err
		}
		log := func(name string) string { return filepath.Join(c.logs, name+"-"+n.Name+".log") }
		n.holder = &Daemon{
			name: "namespaces of " + n.Name,
			argv: []string{
				"unshare", "--mount", "--uts", "--propagation", "private", "bash", "-ec",
				`hostname "$0"; mount -t tmpfs -o mode=755 tmpfs ` + runDir + `
				mount --bind "$1/simgpu" ` + simDir + `; mount --bind "$1/vgpu" ` + stateDir + `
				mount --bind "$1/vgpu.toml" ` + vgpuConf + `; touch "$1/ready"; exec sleep infinity`,
				n.Name, private,
			},
			log:   log("namespaces"),
			ready: func() bool { _, err := os.Stat(private + "/ready"); return err == nil },
		}
		n.gresd = &Daemon{
			name:  "gresd of " + n.Name,
			env:   c.driverEnv(),
			log:   log("gresd"),
			ready: func() bool { _, err := os.Stat(n.path(runDir + "/gresd.sock")); return err == nil },
		}
		n.slurmd = &Daemon{
			name:  "slurmd of " + n.Name,
			log:   log("slurmd"),
			ready: func() bool { return c.nodeState(n.Name) == "IDLE" },
		}
		c.nodes = append(c.nodes, n)
	}
	return nil
}

// path is where this node's file can be opened from outside of its namespaces.
func (n *Node) path(file string) string {
	return fmt.Sprintf("/proc/%d/root%s", n.holder.PID(), file)
}

func (n *Node) start() error {
	if err := n.holder.Start(); err != nil {
		return err
	}
	enter := []string{"nsenter", "--mount", "--uts", "--target", fmt.Sprint(n.holder.PID())}
	n.gresd.argv = slices.Concat(enter, []string{Dir + "/bin/gresd"})
	n.slurmd.argv = slices.Concat(enter, []string{"slurmd", "-D", "-N", n.Name, "-f", slurmConf})
	if err := n.gresd.Start(); err != nil {
		return err
	}
	return n.slurmd.Start()
}

func (n *Node) daemons() []*Daemon { return []*Daemon{n.slurmd, n.gresd, n.holder} }

// leftovers lists the folders of jobs that have ended.
func (n *Node) leftovers() []string {
	folders, _ := filepath.Glob(n.path(runDir + "/jobs/*"))
	for i, f := range folders {
		folders[i] = "on " + n.Name + ": folder " + filepath.Base(f)
	}
	return folders
}

// WaitIdle waits until every node is idle.
func (c *Cluster) WaitIdle(limit time.Duration) error {
	var state string
	for i := range max(1, c.opts.Nodes) {
		name := c.nodeName(i)
		if !until(limit, 100*time.Millisecond, func() bool { state = c.nodeState(name); return state == "IDLE" }) {
			return fmt.Errorf("node %s: not idle after %s: %s", name, limit, state)
		}
	}
	return nil
}
