// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// SecondConf is slurm.conf of the cluster that [Cluster.Second] starts.
const SecondConf = "/etc/slurm-second/slurm.conf"

// Second starts a cluster of another name beside this one: slurmctld and slurmd of its own, with the
// same name for the node, the same cards, and the gresd that is there. Commands with SLURM_CONF=[SecondConf]
// are for it.
func (c *Cluster) Second() (slurmd *Daemon, err error) {
	dir, state := filepath.Dir(SecondConf), Dir+"/second"
	for _, d := range []string{dir, state + "/slurmctld", state + "/slurmd"} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	if err := command("cp", "-a", "/etc/slurm/.", dir); err != nil {
		return nil, err
	}
	text, err := os.ReadFile(SecondConf)
	if err != nil {
		return nil, err
	}
	own := strings.NewReplacer(
		"ClusterName=private\n", "ClusterName=second\nSlurmctldPort=7817\n", fmt.Sprint("Port=", firstPort), "Port=7818",
		Dir+"/state/slurmctld", state+"/slurmctld", Dir+"/state/%n", state+"/slurmd",
		"/run/slurm", "/run/second-slurm", "PlugStackConfig=/etc/slurm/", "PlugStackConfig="+dir+"/",
	).Replace(string(text))
	if err := os.WriteFile(SecondConf, []byte(own), 0o644); err != nil {
		return nil, err
	}
	log := func(name string) string { return filepath.Join(c.logs, "second-"+name+".log") }
	slurmctld := &Daemon{
		name:  "slurmctld of the second cluster",
		argv:  []string{"slurmctld", "-D", "-f", SecondConf},
		log:   log("slurmctld"),
		ready: listens("tcp", "127.0.0.1:7817"),
	}
	slurmd = &Daemon{
		name: "slurmd of the second cluster",
		argv: []string{"slurmd", "-D", "-N", c.nodeName(0), "-f", SecondConf},
		log:  log("slurmd"),
		ready: func() bool {
			out, err := c.ScontrolOf(SecondConf, "show", "node", "-o", c.nodeName(0))
			return err == nil && fields(out)["State"] == "IDLE"
		},
	}
	for _, d := range []*Daemon{slurmctld, slurmd} {
		if err := d.Start(); err != nil {
			return nil, err
		}
		c.hosts = append([]*Daemon{d}, c.hosts...)
	}
	return slurmd, nil
}
