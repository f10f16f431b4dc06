// SPDX-License-Identifier: Apache-2.0

package cluster

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Slurm's accounting: a MariaDB of the run's own, which listens on one Unix
// socket alone, and a slurmdbd. They are started only where [Options.Accounting]
// asks for them: it takes some seconds.
const (
	dbDir = Dir + "/db"
	// dbSocket is where MariaDB's client library looks for "localhost", also by
	// the name that later releases of Debian give the folder.
	dbSocket    = "/run/mysqld/mysqld.sock"
	dbOtherName = "/run/mariadbd"
	dbdConf     = "/etc/slurm/slurmdbd.conf"
)

const dbdText = `AuthType=auth/munge
DbdHost=` + hostName + `
DbdAddr=127.0.0.1
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=localhost
StorageUser=root
StorageLoc=slurm_acct
PidFile=/run/slurmdbd.pid
DebugLevel=info
`

// accountingConf is what slurm.conf says of it; limits are enforced.
const accountingConf = `AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStorageTRES=gres/gpu,gres/shard,gres/vgpu
AccountingStorageEnforce=associations,limits,qos
AccountingStoreFlags=job_comment
PriorityType=priority/multifactor
`

// counted adds a count of gres/vgpu to what Slurm is told of the cards, and lets
// jobs hold as much of it as of their card.
func (g gresConf) counted(cards int) gresConf {
	g.conf += fmt.Sprintf("Name=vgpu Count=%d Flags=CountOnly\n", cards*unitsPerCard)
	g.node += fmt.Sprintf(",vgpu:%d", cards*unitsPerCard)
	g.lua = strings.Replace(g.lua, "{", "{count = true, ", 1)
	return g
}

// accounting makes the database and lists its daemons.
func (c *Cluster) accounting() error {
	for _, dir := range []string{dbDir, filepath.Dir(dbSocket)} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	if err := os.Symlink(filepath.Dir(dbSocket), dbOtherName); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	if err := command("mariadb-install-db", "--no-defaults", "--datadir="+dbDir, "--user=root",
		"--auth-root-authentication-method=normal", "--skip-test-db"); err != nil {
		return fmt.Errorf("%w (are mariadb-server-core and mariadb-client-core installed?)", err)
	}
	// slurmdbd refuses a configuration that others may read.
	if err := os.WriteFile(dbdConf, []byte(dbdText), 0o600); err != nil {
		return err
	}
	log := func(name string) string { return filepath.Join(c.logs, name+".log") }
	c.accounts = []*Daemon{
		{
			name: "slurmdbd",
			argv: []string{"slurmdbd", "-D"},
			log:  log("slurmdbd"),
			// It answers only once its tables are made.
			ready: func() bool { return exec.Command("sacctmgr", "-n", "-i", "list", "cluster").Run() == nil },
		},
		{
			name: "mariadbd",
			argv: []string{
				"mariadbd", "--no-defaults", "--user=root", "--datadir=" + dbDir, "--socket=" + dbSocket,
				"--skip-networking", "--skip-ssl", "--pid-file=" + dbDir + "/pid", "--innodb-buffer-pool-size=32M",
				"--innodb-flush-log-at-trx-commit=0",
			},
			log:   log("mariadbd"),
			ready: listens("unix", dbSocket),
		},
	}
	return nil
}

// startAccounting starts the database and gives the users an account.
func (c *Cluster) startAccounting() error {
	for i := len(c.accounts) - 1; i >= 0; i-- {
		if err := c.accounts[i].Start(); err != nil {
			return err
		}
	}
	for _, words := range []string{
		"add cluster private",
		"add account research Description=research Organization=tests",
		"add user www-data,games,nobody Account=research",
	} {
		if _, err := c.Sacctmgr(strings.Fields(words)...); err != nil {
			return err
		}
	}
	return nil
}

// Sacctmgr runs sacctmgr as root, without questions.
func (c *Cluster) Sacctmgr(args ...string) (string, error) {
	out, err := exec.Command("sacctmgr", append([]string{"-i"}, args...)...).CombinedOutput()
	text := strings.TrimSpace(string(out))
	if err != nil {
		return text, fmt.Errorf("sacctmgr %s: %w: %s", strings.Join(args, " "), err, text)
	}
	return text, nil
}

// Sacct returns the named fields of a job's own line (job: "7", or "7_2" for a
// task of an array), once slurmdbd has them
// and done says that they are all there.
func (c *Cluster) Sacct(job string, limit time.Duration, done func(map[string]string) bool, names ...string) (map[string]string, error) {
	var out []byte
	var err error
	facts := map[string]string{}
	if until(limit, 200*time.Millisecond, func() bool {
		out, err = exec.Command("sacct", "-n", "-X", "-P", "--delimiter=\x01",
			"-j", job, "-o", strings.Join(names, ",")).Output()
		line, _, _ := strings.Cut(string(out), "\n")
		values := strings.Split(line, "\x01")
		if err != nil || len(values) != len(names) {
			return false
		}
		for i, name := range names {
			facts[name] = values[i]
		}
		return done(facts)
	}) {
		return facts, nil
	}
	return facts, fmt.Errorf("sacct of job %s: not complete after %s: %q, %w", job, limit, out, err)
}
