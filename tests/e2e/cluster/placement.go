// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// placedByGresd is the part of vgpu.toml that makes gresd choose the card.
const placedByGresd = "\n[placement]\nby = \"gresd\"\n"

// gresdWrites tells Slurm of the cards what "gresd gres-conf" prints for a node,
// with the device files in a folder.
func (c *Cluster) gresdWrites(cards gresConf, devices string) (gresConf, error) {
	const conf = Dir + "/placement.toml"
	text, lua := "version = 1\n", "return {"
	if c.opts.GresdPlaces {
		text, lua = text+placedByGresd, `return {placement = "gresd", `
	}
	if err := os.WriteFile(conf, []byte(text), 0o644); err != nil {
		return gresConf{}, err
	}
	out, err := exec.Command(Dir+"/bin/gresd", "--config", conf, "gres-conf").CombinedOutput()
	if err != nil {
		return gresConf{}, fmt.Errorf("gresd gres-conf: %w: %s", err, out)
	}
	first, _, _ := strings.Cut(string(out), "\n")
	_, node, found := strings.Cut(first, " Gres=")
	if !found {
		return gresConf{}, fmt.Errorf("gresd gres-conf printed no Gres=: %s", out)
	}
	return gresConf{
		conf: "AutoDetect=off\n" + strings.ReplaceAll(string(out), "/dev/nvidia", devices+"/nvidia"),
		node: node,
		lua:  strings.Replace(cards.lua, "return {", lua, 1),
	}, nil
}
