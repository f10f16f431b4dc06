// SPDX-License-Identifier: Apache-2.0

package doctor

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/slurm-vgpu/slurm-vgpu/gresd/slurm"
)

func (s settings) get(name string) string { return s[strings.ToLower(name)] }

// list is a value that is a list.
func (s settings) list(name string) []string {
	return strings.FieldsFunc(s.get(name), func(r rune) bool { return r == ',' || r == ' ' })
}

func (s settings) has(name, value string) bool { return slices.Contains(s.list(name), value) }

// fetched is where slurmd keeps the files that it has from slurmctld.
var fetched = "/run/slurm/conf"

// dir is the folder of this host's files of Slurm. slurmctld reports its own slurm.conf. If this host
// has no file of that name, Slurm's programs read the file that slurmd has fetched (configless).
func (s settings) dir() string {
	conf := s.get("SLURM_CONF")
	if _, err := os.Stat(conf); err != nil {
		if _, err := os.Stat(filepath.Join(fetched, "slurm.conf")); err == nil {
			return fetched
		}
	}
	return filepath.Dir(conf)
}

// all are the values of a setting. slurmctld reports a list as Prolog[0], Prolog[1] and so on.
func (s settings) all(name string) []string {
	values := s.list(name)
	for i := range 8 {
		values = append(values, s.list(fmt.Sprintf("%s[%d]", name, i))...)
	}
	return values
}

// isController reports whether slurm.conf names this host as a SlurmctldHost.
func (s settings) isController() bool {
	host, short := hostNames()
	return slices.ContainsFunc(s.all("SlurmctldHost"), func(value string) bool {
		name, _, _ := strings.Cut(value, "(")
		return name == host || name == short
	})
}

// lookSettings reads the settings from slurmctld. Without an answer, it reads slurm.conf.
func lookSettings(_ context.Context, n *node) error {
	if n.settings = n.slurm; n.slurm != nil {
		return nil
	}
	path := cmp.Or(n.cfg.Slurm.Conf, os.Getenv("SLURM_CONF"), "/etc/slurm/slurm.conf")
	read, err := slurm.ReadConf(path)
	if err != nil {
		return skip("no slurm.conf")
	}
	n.settings = read
	n.settings["slurm_conf"] = path
	return nil
}

// callPrologs reports whether one of the programs is vgpu-prolog, or a script that names vgpu-prolog. An
// error is that of the first program that cannot run.
func callPrologs(programs []string) (calls bool, err error) {
	for _, path := range programs {
		if calls, err = callsProlog(path); calls || err != nil {
			break
		}
	}
	return calls, err
}

func callsProlog(path string) (bool, error) {
	info, err := os.Stat(path)
	switch {
	case err != nil:
		return false, err
	case info.Mode()&0o111 == 0:
		return false, fmt.Errorf("%s is not executable", path)
	case strings.HasPrefix(filepath.Base(path), "vgpu"):
		return true, nil
	case info.Size() > 1<<20:
		return false, nil
	}
	text, _ := os.ReadFile(path) // a file that only root may read names nothing
	return strings.Contains(string(text), "vgpu"), nil
}

// script is a Lua script that Slurm must run.
type script struct {
	setting, path string
	active, ours  bool // the setting has lua; the file names vgpu
	err           error
}

func (n *node) script(setting, file string) script {
	s := script{setting: setting, path: filepath.Join(n.settings.dir(), file), active: n.settings.has(setting, "lua")}
	text, err := os.ReadFile(s.path)
	s.ours, s.err = strings.Contains(string(text), "vgpu"), err
	return s
}

// judgeScript reports the faults of a script, and the broken function. here: the file must be on this host.
func (n *node) judgeScript(r *results, s script, here bool, broken string) {
	r.fail(!s.active, "%[1]s=lua in slurm.conf, and restart slurmctld", "%s lacks lua: %s", s.setting, broken)
	r.fail(s.active && s.err != nil && here, "", "%v: %s", s.err, broken)
	r.fail(s.active && s.err == nil && !s.ours, "", "%s knows nothing of vgpu: %s", s.path, broken)
}

func lookPlugin(ctx context.Context, n *node) (err error) {
	if err := lookSettings(ctx, n); err != nil {
		return err
	}
	n.plugstack = cmp.Or(n.settings.get("PlugStackConfig"), filepath.Join(n.settings.dir(), "plugstack.conf"))
	n.plugin, err = findPlugin(n.plugstack, 0)
	return err
}

// findPlugin returns the words of the line that loads the plugin, nil when there is none.
func findPlugin(path string, depth int) ([]string, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(string(text)) {
		line, _, _ := strings.Cut(line, "#")
		words := strings.Fields(line)
		switch {
		case len(words) < 2:
		case words[0] == "include" && depth < 4:
			pattern := words[1]
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(path), pattern)
			}
			files, err := filepath.Glob(pattern)
			if err != nil {
				return nil, fmt.Errorf("%s: include %s: %w", path, words[1], err)
			}
			for _, file := range files {
				if found, err := findPlugin(file, depth+1); err != nil || found != nil {
					return found, err
				}
			}
		case filepath.Base(words[1]) == "vgpu.so":
			return words, nil
		}
	}
	return nil, nil
}

// checkPlugin searches the plugin as Slurm does, and returns an error if Slurm cannot use it.
func (n *node) checkPlugin(name string) error {
	if filepath.IsAbs(name) {
		return trusted(name)
	}
	dirs := filepath.SplitList(n.settings.get("PluginDir"))
	if len(dirs) == 0 {
		dirs, _ = filepath.Glob("/usr/lib*/*/slurm*") // the pattern is a good one
		dirs = append(dirs, "/usr/lib64/slurm", "/usr/lib/slurm", "/usr/local/lib/slurm")
	}
	for _, dir := range dirs {
		path := filepath.Join(dir, name)
		if _, err := os.Stat(path); err == nil {
			return trusted(path)
		}
	}
	return fmt.Errorf("%s is not in %s", name, strings.Join(dirs, ", "))
}

func lookGresConf(ctx context.Context, n *node) error {
	if err := lookSettings(ctx, n); err != nil {
		return err
	}
	if n.cards == nil || n.listErr != nil {
		return skip("no driver to compare with, or not every card can be read")
	}
	path := filepath.Join(n.settings.dir(), "gres.conf")
	lines, err := slurm.ConfLines(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return err
	case err != nil:
		return skip(err.Error())
	}
	n.gres = linesOf(lines, n.slurmName(ctx))
	return nil
}
